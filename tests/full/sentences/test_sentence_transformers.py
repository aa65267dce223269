"""The trainers of sentence-transformers on a mixture, against the same trainers on the same batches."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from sentence_transformers import (  # noqa: E402 after the check that it is there
    CrossEncoderTrainer,
    MultiVectorEncoderTrainer,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SparseEncoderTrainer,
)
from sentence_transformers.base.sampler import DefaultBatchSampler  # noqa: E402
from sentence_transformers.cross_encoder.losses import MultipleNegativesRankingLoss as CrossNegatives  # noqa: E402
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator  # noqa: E402
from sentence_transformers.sentence_transformer.losses import (  # noqa: E402
    BatchAllTripletLoss,
    CachedMultipleNegativesRankingLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)

from mixer import Exposure, Fixed, LossChange, MixingConfig, Stream  # noqa: E402
from mixer.trainer.sentence_transformers.sampled import steps_of  # noqa: E402
from mixer.trainer.sentence_transformers.trainers import SentenceMixin  # noqa: E402
from replay import ReplayBuffer  # noqa: E402
from tests.full.sentences.cases import (  # noqa: E402
    KINDS,
    make,
    model_of,
    options,
    pairs,
    replaying,
    rows_of,
    scored,
    texts,
    three_sets,
    towards_a_target,
    weights_of,
)
from tests.refusals import refused  # noqa: E402

pytestmark = pytest.mark.full
STOCK = {
    "sentence": SentenceTransformerTrainer,
    "cross": CrossEncoderTrainer,
    "sparse": SparseEncoderTrainer,
    "multi_vector": MultiVectorEncoderTrainer,
}


def matryoshka(model: Any) -> Any:
    return MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [16, 8])


def cached(model: Any) -> Any:
    return CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)


def pairs_with_labels(seed: int, number: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": texts(seed, number), "label": [k % 4 for k in range(number)]})


def of_two_kinds() -> dict[str, datasets.Dataset]:
    return {"a": pairs(1, 20), "b": scored(2, 11)}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "negatives": ("sentence", {"loss": MultipleNegativesRankingLoss}, {}),
    "accumulated": (
        "sentence",
        {"loss": MultipleNegativesRankingLoss, "train_dataset": {"a": pairs(1, 24), "b": pairs(2, 16)}},
        {"gradient_accumulation_steps": 2},
    ),
    "Matryoshka": ("sentence", {"loss": matryoshka}, {}),
    "cached": ("sentence", {"loss": cached}, {}),
    "losses and prompts by set": (
        "sentence",
        {"loss": {"a": MultipleNegativesRankingLoss, "b": CoSENTLoss}, "train_dataset": of_two_kinds()},
        {"prompts": {"a": {"anchor": "query: "}, "b": "w1 "}},
    ),
    "scores of pairs": ("cross", {"train_dataset": {"a": scored(1, 20), "b": scored(2, 11)}}, {}),
    "negatives of pairs": ("cross", {"loss": CrossNegatives}, {}),
    "sparse": ("sparse", {}, {}),
    "several vectors": ("multi_vector", {}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_packages_own_trainer_on_the_same_batches(tmp_path: Path, name: str) -> None:
    kind, given, args = CASES[name]
    trainer = make(tmp_path, kind, args={**args, "max_steps": 6}, **given)
    steps = rows_of(trainer)
    trainer.train()
    size = 4  # batches of a device; a step may have two
    batches = [(stream, rows[k : k + size]) for stream, rows in steps for k in range(0, len(rows), size)]
    sets = given.get("train_dataset") or three_sets()
    model, loss = model_of(kind, tmp_path), given.get("loss")
    if loss is not None:
        loss = loss(model) if callable(loss) else {stream: own(model) for stream, own in loss.items()}
    own_args = {**args, "max_steps": 6, "multi_dataset_batch_sampler": replaying([*sets], batches)}
    stock = STOCK[kind]
    own = stock(model, stock.training_args_class(**options(tmp_path / "own", **own_args)), sets, loss=loss)
    own.train()
    torch.testing.assert_close(weights_of(trainer.model), weights_of(own.model), rtol=1e-6, atol=1e-6)


def test_a_single_set_is_trained_on_without_a_name(tmp_path: Path) -> None:
    trainer = make(tmp_path, loss=MultipleNegativesRankingLoss, train_dataset=pairs(1, 20))
    trainer.train()
    assert trainer.mixing.names == ("train",)
    assert trainer.mixing.seen.tolist() == [32]


@pytest.mark.parametrize("sampler", ["batch_sampler", "no_duplicates"])
def test_a_resumed_run_is_the_whole_one_to_the_bit_and_its_checkpoint_is_a_model(tmp_path: Path, sampler: str) -> None:
    def new() -> Any:
        saves = {"save_strategy": "steps", "save_steps": 4, "lr_scheduler_type": "linear", "batch_sampler": sampler}
        policy = LossChange(num_warmup_observations=1)
        return make(tmp_path, args=saves, loss=MultipleNegativesRankingLoss, mixing=policy)

    whole, resumed = new(), new()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))
    assert whole.mixing.weights == resumed.mixing.weights
    saved = SentenceTransformer(str(tmp_path / "checkpoint-8"), device="cpu")
    assert torch.equal(torch.tensor(saved.encode("w1 w2")), torch.tensor(whole.model.encode("w1 w2")))


def test_evaluations_are_those_of_the_packages_own_trainer(tmp_path: Path) -> None:
    sets, judge = {"a": pairs(11, 8), "b": pairs(12, 6)}, scored(13, 12)
    evaluator = EmbeddingSimilarityEvaluator(judge["sentence1"], judge["sentence2"], judge["score"], name="judge")
    common: dict[str, Any] = {"eval_dataset": sets, "evaluator": evaluator}
    args = {"eval_strategy": "steps", "eval_steps": 8}
    trainer = make(tmp_path, args=args, loss=MultipleNegativesRankingLoss, **common)
    trainer.train()
    model = trainer.model
    stock_args = SentenceTransformerTrainer.training_args_class(**options(tmp_path / "own"))
    own = SentenceTransformerTrainer(model, stock_args, loss=MultipleNegativesRankingLoss(model), **common)
    expected, logged = own.evaluate(), {}
    for entry in trainer.state.log_history:
        logged.update(entry)
    for key in ("eval_a_loss", "eval_b_loss"):
        assert logged[key] == pytest.approx(expected[key], abs=1e-6)
    assert logged["eval_judge_pearson_cosine"] == pytest.approx(own.evaluate(sets["a"])["eval_judge_pearson_cosine"])
    assert logged["eval_loss"] == pytest.approx((logged["eval_a_loss"] + logged["eval_b_loss"]) / 2)


class TestBatchSamplers:
    def test_no_text_comes_twice_in_a_step(self, tmp_path: Path) -> None:
        repeated = pairs(1, 24).map(lambda row, k: {"positive": f"w{k % 6}"}, with_indices=True)
        args = {"batch_sampler": "no_duplicates", "max_steps": -1, "num_train_epochs": 3}
        trainer = make(
            tmp_path, args=args, loss=MultipleNegativesRankingLoss, train_dataset={"a": repeated, "b": pairs(2, 8)}
        )
        steps = rows_of(trainer)
        trainer.train()
        for stream, rows in steps:
            if stream == "a":
                assert len({row % 6 for row in rows}) == len(rows)
        assert {row for stream, rows in steps if stream == "a" for row in rows} == {*range(24)}

    def test_labels_come_twice_in_a_step(self, tmp_path: Path) -> None:
        sets = {"a": pairs_with_labels(1, 27), "b": pairs_with_labels(2, 17)}  # more rows than the sampler gives
        args = {"batch_sampler": "group_by_label", "per_device_train_batch_size": 8}
        args |= {"max_steps": -1, "num_train_epochs": 2}
        trainer = make(tmp_path, args=args, loss=BatchAllTripletLoss, train_dataset=sets)
        steps = rows_of(trainer)
        trainer.train()
        for _, rows in steps:
            labels = [row % 4 for row in rows]
            assert min(map(labels.count, labels)) >= 2

    def test_a_sampler_of_ones_own_makes_the_steps(self, tmp_path: Path) -> None:
        class Backwards(DefaultBatchSampler):
            def __iter__(self) -> Any:
                yield [3, 2]
                yield [1, 0]

        def sampler(dataset: Any, **given: Any) -> Any:
            return Backwards(range(len(dataset)), **given)

        args = {"batch_sampler": sampler}
        trainer = make(tmp_path, args=args, loss=MultipleNegativesRankingLoss, mixing="Uniform")
        steps = rows_of(trainer)
        trainer.train()
        assert [rows for stream, rows in steps if stream == "a"][:2] == [[3, 2], [1, 0]]
        assert sorted(Exposure(tmp_path).at(1)["row"]) == sorted(steps[0][1])

    def test_each_rank_gets_whole_batches(self) -> None:
        batches = [[10 * number + k for k in range(4)] for number in range(6)]
        joined = [*steps_of(batches, num_batches=2, num_ranks=2, drops=True)]
        assert [sorted(step) for step in joined] == [
            [*range(4), *range(10, 14), *range(20, 24), *range(30, 34)],
            [*range(40, 44), *range(50, 54)],
        ]
        of_ranks = [joined[0][rank::2] for rank in range(2)]
        assert of_ranks == [[*batches[0], *batches[2]], [*batches[1], *batches[3]]]

    @pytest.mark.parametrize(("drops", "sizes"), [(True, [8, 3]), (False, [8, 4, 3])])
    def test_batches_that_do_not_fill_a_step(self, drops: bool, sizes: list[int]) -> None:
        batches = [[0] * 4, [1] * 4, [2] * 4, [3] * 3]
        assert [len(step) for step in steps_of(batches, 1, 2, drops)] == sizes


def test_auto_moves_towards_the_source_that_helps_a_target(tmp_path: Path) -> None:
    trainer = towards_a_target(tmp_path, max_steps=128, learning_rate=3e-4, per_device_train_batch_size=48)
    trainer.train()
    assert trainer.mixing.weights["near"] > 0.6


def test_sets_that_can_only_be_iterated_are_mixed(tmp_path: Path) -> None:
    sets = {name: own.to_iterable_dataset() for name, own in three_sets().items()}
    trainer = make(tmp_path, loss=MultipleNegativesRankingLoss, train_dataset=sets, mixing={"a": 2, "b": 1, "c": 1})
    trainer.train()
    assert trainer.mixing.seen.sum() == pytest.approx(32, abs=4)
    assert trainer.mixing.seen[0] >= trainer.mixing.seen[1:].max()


def test_the_users_data_sets_stay_as_they_are(tmp_path: Path) -> None:
    sets = of_two_kinds()
    make(tmp_path, loss={"a": MultipleNegativesRankingLoss, "b": CoSENTLoss}, train_dataset=sets)
    assert {name: [*own[0]] for name, own in sets.items()} == {
        "a": ["anchor", "positive"],
        "b": ["sentence1", "sentence2", "score"],
    }


def test_rows_may_be_preprocessed_beside_losses_by_set(tmp_path: Path) -> None:
    streams = [
        Stream("a", pairs(1, 20), preprocess=lambda row: {"anchor": row["anchor"], "positive": "w1"}),
        Stream("b", scored(2, 11)),
    ]
    trainer = make(tmp_path, loss={"a": MultipleNegativesRankingLoss, "b": CoSENTLoss}, train_dataset=streams)
    trainer.train()
    assert trainer.state.global_step == 8


def test_micro_batches_of_one_set_each_make_mixed_steps(tmp_path: Path) -> None:
    args = {"one_stream_per": "micro_batch", "gradient_accumulation_steps": 4}
    trainer = make(tmp_path, args=args, loss=MultipleNegativesRankingLoss)
    trainer.train()
    counts = trainer.ledger.read("streams").to_pandas().groupby("step")["count"]
    assert (counts.apply(lambda own: (own > 0).sum()) > 1).any()


def test_the_model_card_tells_of_sets_and_mixture(tmp_path: Path) -> None:
    trainer = make(tmp_path, loss=MultipleNegativesRankingLoss)
    trainer.train()
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "MultipleNegativesRankingLoss" in card
    assert "mixture" in card.lower()


def test_tokens_are_not_shared_where_texts_are_not_counted(tmp_path: Path) -> None:
    policy = Fixed({"a": 1, "b": 1}, unit="tokens")
    trainer = make(tmp_path, "cross", train_dataset={"a": scored(1, 20), "b": scored(2, 11)}, mixing=policy)
    with pytest.raises(ValueError, match="unit='tokens'"):
        trainer.train()


def test_tokens_of_all_columns_are_counted(tmp_path: Path) -> None:
    trainer = make(tmp_path, loss=MultipleNegativesRankingLoss, args={"max_steps": 2})
    steps = rows_of(trainer)
    trainer.train()
    sets, tokenizer = three_sets(), trainer.model.tokenizer
    rows = [sets[name][row] for name, own in steps for row in own]
    expected = sum(len(tokenizer(row[column])["input_ids"]) for row in rows for column in ("anchor", "positive"))
    assert trainer.mixing.num_tokens.sum() == expected


class _Body(SentenceTransformerTrainer):
    """With the overrides of the trainer that SetFit trains its body with."""

    def log(self, logs: Any, *args: Any, **kwargs: Any) -> None:
        super().log(
            {f"embedding_{key}" if key == "loss" else key: value for key, value in logs.items()}, *args, **kwargs
        )

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        return super().evaluate(eval_dataset, ignore_keys, f"{metric_key_prefix}_embedding")


def test_the_body_of_setfit_is_trained_on_pairs_of_each_source(tmp_path: Path) -> None:
    class Mixed(SentenceMixin, _Body):
        pass

    def pairs_of(seed: int, number: int) -> datasets.Dataset:
        columns = {"sentence_1": texts(seed, number), "sentence_2": texts(seed + 9, number)}
        return datasets.Dataset.from_dict({**columns, "label": [float(row % 2) for row in range(number)]})

    data = {"a": pairs_of(1, 20), "b": pairs_of(2, 11)}
    args, model = KINDS["sentence"][1](**options(tmp_path, max_steps=4)), model_of("sentence", tmp_path)
    trainer = Mixed(model, args=args, train_dataset=data, eval_dataset=data, loss=CosineSimilarityLoss(model))
    trainer.train()
    assert [entry["embedding_loss"] for entry in trainer.state.log_history if "embedding_loss" in entry]
    assert (
        trainer.evaluate()["eval_embedding_a_embedding_loss"] > 0
    )  # as in the Trainer, which evaluates each set of two


class TestRefusals:
    @pytest.mark.parametrize(
        ("option", "changes"),
        [
            ("multi_dataset_batch_sampler", {"args": {"multi_dataset_batch_sampler": "round_robin"}}),
            ("one_stream_per", {"args": {"one_stream_per": None}}),
        ],
    )
    def test_options(self, tmp_path: Path, option: str, changes: dict[str, Any]) -> None:
        with refused(option):
            make(tmp_path, loss=MultipleNegativesRankingLoss, **changes)

    def test_data_sets_of_another_library(self, tmp_path: Path) -> None:
        with refused("dataset", TypeError, stream="a"):
            make(tmp_path, train_dataset={"a": [{"anchor": "w1", "positive": "w2"}]})

    def test_a_buffer_beside_losses_by_set(self, tmp_path: Path) -> None:
        losses = {"a": MultipleNegativesRankingLoss, "memory": MultipleNegativesRankingLoss}
        streams = [Stream("a", pairs(1, 20)), Stream("memory", ReplayBuffer(8))]
        with refused("train_dataset", stream="memory"):
            make(tmp_path, loss=losses, train_dataset=streams)

    def test_a_loader_of_ones_own(self, tmp_path: Path) -> None:
        class Mine(SentenceTransformerTrainer):
            def get_train_dataloader(self) -> Any:
                return super().get_train_dataloader()

        class Mixed(SentenceMixin, Mine):
            pass

        with refused("get_train_dataloader", TypeError):
            Mixed(
                model_of("sentence", tmp_path),
                args=KINDS["sentence"][1](**options(tmp_path)),
                train_dataset=three_sets(),
            )

    def test_arguments_of_another_trainer(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="SentenceTransformerTrainingArguments"):
            KINDS["sentence"][0](
                model_of("sentence", tmp_path), args=MixingConfig(**options(tmp_path)), train_dataset=three_sets()
            )


def test_its_own_arguments_get_the_defaults_of_these_trainers(tmp_path: Path) -> None:
    args = SentenceTransformerTrainer.training_args_class(**options(tmp_path))
    model = model_of("sentence", tmp_path)
    trainer = KINDS["sentence"][0](
        model, args=args, train_dataset=three_sets(), loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    assert json.loads((tmp_path / "ledger" / "ledger.json").read_text())["run"]["one_stream_per"] == "step"
