"""Evaluation sets are judged as the streams that they are called like."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import Trainer

from mixer import Head, MixingTrainer, Objective, Stream
from mixer.utils.errors import ErrorFacts
from tests.helpers import On, Tokens, build_model
from tests.mixer.forms import NAMES, loss_sum_of_head, multi_task, num_items, task_data, task_streams
from tests.mixer.trainer import runs
from tests.refusals import refused

TOPIC = task_data("topic")


def _trainer(folder: Path, model: Any = None, **options: Any) -> MixingTrainer:
    sets = {name: task_data(name, 8, 7) for name in NAMES}
    own = {"train_dataset": task_streams(), "eval_dataset": sets, "batch_size": 8, **options}
    return runs.make(folder, multi_task() if model is None else model, **own)


def _by_hand(model: Any, name: str, data: Any) -> Any:
    """The mean loss of a set through a head."""
    rows = [{key: value[None] for key, value in data[index].items()} for index in range(len(data))]
    with torch.no_grad():
        total = sum(float(loss_sum_of_head(model.eval(), name, row)) for row in rows)
    return pytest.approx(total / sum(num_items(row) for row in rows), rel=1e-6)


def _size(prediction: Any) -> dict[str, float]:
    return {"size": float(len(prediction.label_ids))}


def test_each_set_goes_through_its_head_together_or_by_itself_by_its_prefix_or_its_name(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, compute_metrics=_size)
    metrics = trainer.evaluate()
    losses = {name: metrics[f"eval_{name}_loss"] for name in NAMES}
    assert metrics["eval_loss"] == pytest.approx(np.mean([*losses.values()]), rel=1e-6)
    assert metrics["eval_worst_loss"] == max(losses.values())
    assert [metrics[f"eval_{name}_size"] for name in NAMES] == [8.0] * 4
    found = trainer.predict(trainer.eval_dataset, None, "final_test")
    assert list(found) == list(NAMES)
    for name, data in trainer.eval_dataset.items():
        expected = _by_hand(trainer.model, name, data)
        assert losses[name] == expected
        assert trainer.evaluate(data, metric_key_prefix=f"eval_{name}")[f"eval_{name}_loss"] == expected
        assert trainer.evaluate(name)["eval_loss"] == expected
        assert trainer.evaluate({name: data}, metric_key_prefix="final_eval")[f"final_eval_{name}_loss"] == expected
        assert found[name].metrics[f"final_test_{name}_loss"] == expected
        prediction = trainer.predict(data, metric_key_prefix=f"test_{name}")
        np.testing.assert_array_equal(found[name].predictions, prediction.predictions)
        assert prediction.metrics[f"test_{name}_loss"] == expected
        shape = (8, 12) if name == "tags" else (8, trainer.model.heads[name].head.num_labels)
        assert prediction.predictions.shape[:2] == shape


def test_sets_that_nobody_knows_the_head_of_are_refused(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    for evaluate, data in ((trainer.evaluate, TOPIC), (trainer.predict, TOPIC), (trainer.evaluate, {"unseen": TOPIC})):
        with refused("eval_dataset"):
            evaluate(data)
    assert trainer._evaluation.task is None
    assert trainer.evaluate(task_data("topic"), metric_key_prefix="eval_topic")["eval_topic_loss"] > 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("eval_dataset", {"topic_dev": TOPIC}),
        ("eval_dataset", TOPIC),
        ("eval_dataset", [TOPIC, TOPIC]),
        ("compute_metrics", {"unknown": len}),
        ("compute_metrics", {"topic": 3}),
    ],
)
def test_sets_and_metrics_without_use_are_refused_early(tmp_path: Path, option: str, value: Any) -> None:
    with refused(option, ErrorFacts):
        _trainer(tmp_path, **{option: value}, eval_strategy="steps")


def test_heads_that_no_stream_has_no_streams_at_all_and_one_head_that_needs_no_name(tmp_path: Path) -> None:
    data = {"topic": task_data("topic"), "tags": task_data("tags", 8)}
    for streams in (task_streams(["topic", "stars"]), None):
        trainer = _trainer(tmp_path, train_dataset=streams, eval_dataset=data)
        assert trainer.evaluate()["eval_tags_loss"] == _by_hand(trainer.model, "tags", data["tags"])
    model = multi_task({"topic": Head(3, dropout=0.0)})
    streams = [Stream(name, TOPIC, head="topic") for name in "ab"]
    trainer = _trainer(tmp_path, model, train_dataset=streams, eval_dataset=task_data("topic", 6, 3), max_steps=1)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] == _by_hand(model, "topic", trainer.eval_dataset)


def test_metrics_by_set_see_their_set_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[int, ...]] = []

    def metric(prediction: Any) -> dict[str, float]:
        seen.append(np.shape(prediction.predictions))
        return _size(prediction)

    trainer = _trainer(tmp_path, compute_metrics=dict.fromkeys(("topic", "stars"), metric))
    metrics = trainer.evaluate()
    assert metrics["eval_topic_size"] == metrics["eval_stars_size"] == 8.0
    assert "eval_tags_size" not in metrics
    assert seen == [(8, 3), (8, 1)]
    assert trainer.predict(task_data("stars", 5), metric_key_prefix="test_stars").metrics["test_stars_size"] == 5.0
    assert "test_tags_size" not in trainer.predict(task_data("tags"), metric_key_prefix="test_tags").metrics
    assert "has no entry 'tags'" in caplog.text
    assert trainer.compute_metrics is None


@pytest.mark.parametrize("weights", [None, {"a": 3, "b": 1}])
def test_the_mean_of_a_metric_is_that_of_the_plain_trainers_results(tmp_path: Path, weights: Any) -> None:
    sets = {
        name: Tokens(size, seed, "sequence-classification") for seed, (name, size) in enumerate((("a", 40), ("b", 16)))
    }

    def accuracy(prediction: Any) -> dict[str, float]:
        hits = prediction.predictions.argmax(-1) == prediction.label_ids
        return {"accuracy": float(hits.mean()), **({"hits": 1.0} if len(hits) == 40 else {})}

    heard, model = list[dict[str, float]](), build_model("bert-classifier")  # by early stopping, say
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    options |= {"metric_for_best_model": "eval_mean_accuracy", "load_best_model_at_end": True, "eval_weights": weights}
    options |= {"objective": Objective(["a", "b"], metric="accuracy", greater_is_better=True)}
    options |= {"callbacks": [On(evaluate=lambda _, metrics, **__: heard.append(dict(metrics)))]}
    options |= {"train_dataset": sets, "eval_dataset": sets, "compute_metrics": accuracy}
    trainer = runs.train(tmp_path, model, **options)
    found = trainer.evaluate()
    plain = Trainer(model, trainer.args, eval_dataset=sets, compute_metrics=accuracy).evaluate()
    for name in sets:
        assert found[f"eval_{name}_accuracy"] == plain[f"eval_{name}_accuracy"]
    own = [plain["eval_a_accuracy"], plain["eval_b_accuracy"]]
    assert found["eval_mean_accuracy"] == pytest.approx(np.average(own, weights=[3, 1] if weights else None))
    assert "eval_mean_hits" not in found
    means = [metrics["eval_mean_accuracy"] for metrics in heard if "eval_mean_accuracy" in metrics]
    assert len(means) == 3
    assert trainer.state.best_metric == max(means[:2])


def _to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": sample["words"], "attention_mask": sample["kept"], "labels": sample["klass"]}


@pytest.mark.parametrize("is_iterable", [False, True])
def test_a_set_is_preprocessed_collated_and_judged_as_its_stream(tmp_path: Path, is_iterable: bool) -> None:
    def reversed_columns(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {key: torch.tensor([sample[key] for sample in samples]) for key in reversed(samples[0])}

    def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return 7 * F.cross_entropy(outputs.logits, labels)

    rows = {name: Tokens(8, seed, "sequence-classification") for seed, name in enumerate(["plain", "own"])}
    own = {"preprocess": _to_inputs, "data_collator": reversed_columns, "compute_loss_func": own_loss}
    names = {"input_ids": "words", "attention_mask": "kept", "labels": "klass"}  # rows of another form
    texts: Any = [{names[key]: values.tolist() for key, values in row.items()} for row in rows["own"].rows]
    streams = [Stream("plain", rows["plain"]), Stream("own", texts, **own)]
    texts = datasets.Dataset.from_list(texts).to_iterable_dataset() if is_iterable else texts
    model = build_model("bert-classifier")
    sets = {"plain": rows["plain"], "own": texts}
    trainer = _trainer(tmp_path, model, train_dataset=streams, eval_dataset=sets, max_steps=1)
    trainer.train()
    metrics = trainer.evaluate()
    model.eval()
    for name, factor in (("plain", 1.0), ("own", 7.0)):
        batch = {key: torch.stack([rows[name][index][key] for index in range(8)]) for key in rows[name][0]}
        with torch.no_grad():
            expected = factor * float(model(**batch).loss)
        assert metrics[f"eval_{name}_loss"] == pytest.approx(expected, rel=1e-5)
    assert trainer.compute_loss_func is None
