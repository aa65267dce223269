"""Losses above those of a reference model, and losses after the optimizer step."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DataCollatorWithFlattening

from mixer import (
    FAMO,
    Decision,
    DoReMi,
    Ledger,
    MixingDataLoader,
    MixingTrainer,
    Mixture,
    ObjectiveDescent,
    Observation,
    Policy,
    Probing,
    Uniform,
)
from mixer.trainer.checkpointing.files import STATE_FILE
from mixer.trainer.observers.reference import excess_of
from tests.helpers import MODEL_DATA, build_model, three_streams, weights_of
from tests.mixer.comparing import (
    Leaning,
    Tagger,
    Watching,
    build,
    item_losses_of,
    means_of,
    train_by_hand,
)
from tests.mixer.trainer.checkpointing.test_resume import assert_same, end_of
from tests.mixer.trainer.test_recovery import limit_memory

BOTH = ("excess_loss", "loss_after")


def seen_by(trainer: MixingTrainer) -> list[tuple[Any, Any]]:
    return [(o.excess_losses, o.losses_after) for o in trainer.mixing.policy.seen]


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    assert len(found) == len(expected) > 0
    for own, others in zip(found, expected, strict=True):
        for mine, theirs in zip(own, others, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


# ---- What is measured ----


def test_clipped_is_each_item() -> None:
    # Differences 2, -3 and 1 (mean 0) have the clipped mean (2 + 0 + 1) / 3 = 1.
    excess = excess_of(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 4.0, 1.0]))
    assert excess.mean().item() == 1.0


@pytest.mark.parametrize(("mine", "reference"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, np.inf)])
def test_what_is_not_finite_has_no_excess(mine: float, reference: float) -> None:
    assert excess_of(torch.tensor([mine]), torch.tensor([reference])).isnan().all()


@pytest.mark.parametrize("size", [16, 3])  # in one micro-batch, and in three
@pytest.mark.parametrize("changes", [{}, {"max_tokens_per_micro_batch": 40}, {"mixing_weights": True}])
def test_both_are_those_of_a_loop_by_hand(tmp_path: Path, size: int, changes: dict[str, Any]) -> None:
    changes = dict(changes)
    policy = Weighing(*BOTH) if changes.pop("mixing_weights", False) else Watching(*BOTH)
    trainer = build(tmp_path, policy, args={"per_device_train_batch_size": size, "max_steps": 6}, **changes)
    expected = train_by_hand(trainer, Tagger(seed=7), Tagger())
    assert_close(seen_by(trainer), expected, 1e-12)
    # An epoch of 37 samples ends with a step of a single one: streams have no items in it.
    assert any(np.isnan(values).any() for values, _ in expected)
    differences = [o.losses - o.losses_after for o in policy.seen if "loss" in policy.needs]
    assert not differences or np.nanmax(np.abs(differences)) > 1e-3


class Weighing(Watching):
    """Weighs losses, one of them by 0, for which micro-batches are of one stream each."""

    def start(self, mixture: Mixture) -> Decision:
        super().start(mixture)
        return Decision(mixture.weights, loss_weights=np.array([2.0, 0.0, 1.0]))

    def update(self, observation: Observation) -> Decision:
        super().update(observation)
        return Decision(observation.weights, loss_weights=np.array([2.0, 0.0, 1.0]))


@pytest.mark.parametrize("name", ["llama", "llama-classifier", "bert-classifier", "bert-tokens"])
@pytest.mark.parametrize("compiled", [False, True])
def test_models_that_compute_their_losses_in_many_ways(tmp_path: Path, name: str, compiled: bool) -> None:
    reference, model = build_model(name), build_model(name)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    plain, policy = build_model(name), Watching(*BOTH)
    trainer = build(
        tmp_path, policy, model, reference_model=deepcopy(reference), train_dataset=three_streams(MODEL_DATA[name])
    )
    if compiled:  # losses of a compiled model are read from the logits, those of the reference are not
        trainer._parts.losses.new_reader = _unwrapped(trainer)
    expected = train_by_hand(trainer, reference, plain, shifts=name == "llama")
    assert_close(seen_by(trainer), expected, 2e-6)
    assert max(np.nanmax(values) for values, _ in expected) > 1e-3


def _unwrapped(trainer: MixingTrainer) -> Any:
    new_tracker = trainer._parts.losses.new_reader

    def without_loss_function(model: nn.Module, *args: Any) -> Any:
        return new_tracker(model, False, False) if args else new_tracker(model)

    return without_loss_function


@pytest.mark.parametrize("name", ["bert-regression", "bert-multi-label"])
def test_float_labels(tmp_path: Path, name: str) -> None:
    # A reference of another head's bias shifts every loss: it has to be that of each number.
    reference, model = build_model(name), build_model(name)
    with torch.no_grad():
        reference.classifier.bias.add_(0.5)
    seen: list[Any] = []
    trainer = build(
        tmp_path,
        Watching("excess_loss"),
        model,
        reference_model=reference,
        train_dataset=three_streams(MODEL_DATA[name]),
        args={"max_steps": 1, "per_device_train_batch_size": 9},
    )
    step = trainer._parts.steps.train

    def before(own: nn.Module, batch: Any, num_items: Any = None) -> Any:
        (micro,) = batch.micro_batches
        inputs = dict(micro.inputs)
        labels = inputs.pop("labels").reshape(9, -1)
        with torch.no_grad():
            logits = [m(**inputs).logits.reshape(9, -1) for m in (deepcopy(trainer.model).eval(), reference)]
        loss = nn.functional.mse_loss if name == "bert-regression" else nn.functional.binary_cross_entropy_with_logits
        mine, others = (loss(values, labels, reduction="none") for values in logits)
        excess = (mine - others).clamp(min=0)
        seen.append(means_of(list(zip(micro.stream_ids.tolist(), excess, strict=True))))
        return step(own, batch, num_items)

    trainer._parts.steps.train = before
    trainer.train()
    np.testing.assert_allclose(trainer.mixing.policy.seen[0].excess_losses, seen[0], atol=1e-6)


def test_smoothed_labels(tmp_path: Path) -> None:
    policy = Watching("loss", "excess_loss")
    model, reference = build_model("bert-tokens"), _perturbed(build_model("bert-tokens"))
    args = {"label_smoothing_factor": 0.2, "max_steps": 1, "learning_rate": 0.0}
    trainer = build(tmp_path, policy, model, reference_model=reference, args=args)
    batches: list[Any] = []
    step = trainer._parts.steps.train
    trainer._parts.steps.train = lambda model, batch, n=None: (batches.append(batch), step(model, batch, n))[1]
    trainer.train()

    def smoothed(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
        labels = inputs["labels"]
        with torch.no_grad():
            logits = model.eval()(**inputs).logits
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", label_smoothing=0.2)
        return [row[own != -100] for row, own in zip(losses, labels, strict=True)]

    found = []
    for micro in batches[0].micro_batches:
        pairs = zip(smoothed(model, micro.inputs), smoothed(reference, micro.inputs), strict=True)
        found += [
            (number, (a - b).clamp(min=0)) for number, (a, b) in zip(micro.stream_ids.tolist(), pairs, strict=True)
        ]
    np.testing.assert_allclose(policy.seen[0].excess_losses, means_of(found), rtol=0, atol=1e-6)


def test_packed_samples_are_told_apart_by_stream(tmp_path: Path) -> None:
    rows = {
        name: [{"input_ids": list(range(2 + k, 7 + (i + k) % 4 + k))} for i in range(9)] for k, name in enumerate("abc")
    }
    model, reference = build_model("llama"), build_model("llama")
    with torch.no_grad():
        reference.lm_head.weight.add_(0.1 * torch.randn(reference.lm_head.weight.shape))
    policy = Watching("loss", *BOTH)
    trainer = build(
        tmp_path,
        policy,
        model,
        reference_model=reference,
        train_dataset=rows,
        data_collator=DataCollatorWithFlattening(),
        args={"max_steps": 1, "learning_rate": 0.0, "per_device_train_batch_size": 4},
    )
    plain, other = deepcopy(model).eval(), deepcopy(reference).eval()
    assert not plain.config.use_cache  # with it, packed samples would attend to each other
    other.config.use_cache = False
    batches: list[Any] = []
    step = trainer._parts.steps.train
    trainer._parts.steps.train = lambda m, batch, n=None: (batches.append(batch), step(m, batch, n))[1]
    trainer.train()
    found = []
    for micro in batches[0].micro_batches:
        one, two = (item_losses_of(m, micro.inputs, shifts=True)[0] for m in (plain, other))
        found.append((int(micro.stream_ids[0]), (one - two).clamp(min=0)))
    seen = policy.seen[0]
    np.testing.assert_allclose(seen.excess_losses, means_of(found), atol=1e-6)
    np.testing.assert_allclose(seen.losses_after, seen.losses, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"bf16": True}])
def test_over_itself_a_model_has_no_excess_and_afterwards_some_or_none(tmp_path: Path, changes: Any) -> None:
    for model in (build_model("llama"), Tagger()):
        policy = Watching("excess_loss")
        kind = "causal-lm" if hasattr(model, "config") else "token-classification"
        trainer = build(
            tmp_path,
            policy,
            model,
            reference_model=deepcopy(model),
            train_dataset=three_streams(kind),
            args={**changes, "learning_rate": 0.5},
        )
        trainer.train()
        first, *others = [o.excess_losses for o in policy.seen]
        assert first[~np.isnan(first)].tolist() == [0.0] * int((~np.isnan(first)).sum())
        assert np.nanmax(others) > 0.0


@pytest.mark.parametrize("has_norm", [False, True])
def test_without_a_step_losses_are_the_same_dropout_and_all(tmp_path: Path, has_norm: bool) -> None:
    policy = Watching("loss", "loss_after")
    trainer = build(tmp_path, policy, Tagger(dropout=0.5, has_norm=has_norm), args={"learning_rate": 0.0})
    trainer.train()
    for seen in policy.seen:
        np.testing.assert_allclose(seen.losses_after, seen.losses, rtol=1e-14)


# ---- What it leaves alone ----


class RandomTagger(Tagger):
    """Draws random numbers in evaluation too, from all generators."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> Any:
        torch.rand(3), np.random.random()  # noqa: NPY002
        return super().forward(input_ids, labels)


@pytest.mark.parametrize("needs", [("excess_loss",), ("loss_after",), BOTH])
def test_training_is_the_same_to_the_bit(tmp_path: Path, needs: tuple[str, ...]) -> None:
    ends = []
    for name, wanted in (("plain", ()), ("comparing", needs)):
        options: Any = {"reference_model": RandomTagger(seed=7, has_norm=True, dropout=0.5)}
        options = options if "excess_loss" in wanted else {}
        model = Tagger(dropout=0.3, has_norm=True)
        args = {"max_steps": 7, "optim": "adamw_torch"}
        trainer = build(tmp_path / name, Watching(*wanted), model, args=args, **options)
        trainer.train()
        ends.append({**end_of(trainer), "norm": model.norm.running_mean.tolist(), "random": torch.rand(3).tolist()})
    for entry in ends[1]["logs"]:
        for key in [key for key in entry if key.startswith(("excess_loss/", "loss_after/"))]:
            del entry[key]
    assert_same(ends[1], {name: value for name, value in ends[0].items() if name != "comparisons"})


def test_the_reference_keeps_no_keys_and_values_meanwhile(tmp_path: Path) -> None:
    reference = build_model("llama")
    assert reference.config.use_cache
    caches: list[Any] = []
    reference.register_forward_hook(lambda module, args, output: caches.append(output.past_key_values))
    model = build_model("llama")
    build(tmp_path, Watching("excess_loss"), model, reference_model=reference, train_dataset=three_streams()).train()
    assert caches
    assert all(cache is None for cache in caches)
    assert reference.config.use_cache


def test_the_reference_is_as_it_was_and_in_no_checkpoint(tmp_path: Path) -> None:
    reference = Tagger(seed=7, has_norm=True, dropout=0.5)
    reference.dropout.eval()  # some parts of it may be in another mode than others
    modes = {name: module.training for name, module in reference.named_modules()}
    before = deepcopy(reference.state_dict())
    args = {"save_strategy": "steps", "save_steps": 2}
    model = build_model("bert-tokens")
    trainer = build(tmp_path, Watching("excess_loss"), model, reference_model=reference, args=args)
    trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in reference.state_dict().items())
    assert {name: module.training for name, module in reference.named_modules()} == modes
    assert set(modes.values()) == {True, False}
    assert all(parameter.grad is None for parameter in reference.parameters())
    assert not reference._forward_hooks
    files = [path.name for path in (tmp_path / "checkpoint-2").rglob("*") if path.suffix == ".safetensors"]
    assert files == ["model.safetensors"]


@pytest.mark.parametrize("where", ["forward", "training", "backward"])
def test_a_step_that_is_repeated_counts_once(tmp_path: Path, where: str) -> None:
    seen = []
    for name, most in (("whole", 99), ("halved", 2)):
        model, policy = build_model("llama"), Watching(*BOTH)
        limit_memory(model, most, where)
        trainer = build(
            tmp_path / name,
            policy,
            model,
            reference_model=_perturbed(build_model("llama")),
            train_dataset=three_streams(),
            args={"per_device_train_batch_size": 8, "auto_find_batch_size": True},
        )
        trainer.train()
        seen.append(seen_by(trainer))
    assert trainer._parts.run.loader.cap.max_samples == 2
    assert_close(seen[1], seen[0], 2e-6)


def test_a_reference_that_runs_out_of_memory_halves_too(tmp_path: Path) -> None:
    reference = _perturbed(build_model("llama"))
    rows = limit_memory(reference, 3)
    trainer = build(
        tmp_path,
        Watching("excess_loss"),
        build_model("llama"),
        reference_model=reference,
        train_dataset=three_streams(),
        args={"per_device_train_batch_size": 9, "auto_find_batch_size": True},
    )
    trainer.train()
    assert trainer._parts.run.loader.cap.max_samples <= 3
    assert not rows  # it never ran with gradients
    assert len(trainer.mixing.policy.seen) == 4


def _perturbed(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


# ---- Losses that are not finite ----


class Broken(Tagger):
    """Its loss is not a number for rows that begin with the token 1."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> Any:
        logits = super().forward(input_ids, labels)["logits"]
        bad = (input_ids[:, :1] == 1)[..., None]
        logits = torch.where(bad, logits * float("nan"), logits)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def broken_streams() -> dict[str, Any]:
    streams = three_streams("token-classification")
    for name, data in streams.items():
        for row in data.rows:
            row["input_ids"][0] = 1 if name == "b" else 5
    return streams


@pytest.mark.parametrize("nonfinite", ["warn", "skip"])
def test_a_loss_that_is_not_finite(tmp_path: Path, nonfinite: Any) -> None:
    policy = Watching("loss", *BOTH)
    model = Broken()
    before = weights_of(model)
    trainer = build(
        tmp_path,
        policy,
        model,
        nonfinite=nonfinite,
        train_dataset=broken_streams(),
        mixing=policy,
        args={"max_steps": 1},
    )
    trainer.train()
    (seen,) = policy.seen
    assert np.isnan(seen.losses).tolist() == np.isnan(seen.excess_losses).tolist() == [False, True, False]
    # A step that was left out has nothing after it; one that was not has ruined the weights.
    assert np.isnan(seen.losses_after).all()
    assert torch.equal(weights_of(model), before) == (nonfinite == "skip")


def test_a_reference_that_is_not_finite_gives_no_excess_there(tmp_path: Path) -> None:
    policy = Watching("loss", *BOTH)
    trainer = build(
        tmp_path, policy, reference_model=Broken(seed=7), train_dataset=broken_streams(), args={"max_steps": 1}
    )
    trainer.train()
    (seen,) = policy.seen
    assert np.isnan(seen.excess_losses).tolist() == [False, True, False]
    assert np.isfinite([seen.losses, seen.losses_after]).all()


# ---- What is kept of it ----


def compared_entries(trainer: MixingTrainer) -> list[dict[str, float]]:
    """Log entries on training, of which only those on what losses were compared with."""
    entries = [entry for entry in trainer.state.log_history if "train_coverage" in entry]
    compared = ("excess_loss/", "loss_after/")
    return [{key: value for key, value in entry.items() if key.startswith(compared)} for entry in entries]


class Spoiling(Watching):
    """Changes what it is shown."""

    def update(self, observation: Observation) -> Decision:
        kept = deepcopy(observation)
        decision = super().update(observation)
        for values in (observation.excess_losses, observation.losses_after):
            if values is not None:
                values[:] = -1.0
        self.seen[-1] = kept
        return decision


POLICIES: dict[str, Callable[[], Policy]] = {
    "DoReMi": lambda: DoReMi(acts_on="sampling"),
    "ObjectiveDescent": lambda: ObjectiveDescent("worst", interval_steps=2, loss="excess"),
    "FAMO": FAMO,
    "both": lambda: Watching(*BOTH),
    "spoiling": lambda: Spoiling(*BOTH),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_ledger_and_the_log_have_what_the_policy_saw(tmp_path: Path, name: str) -> None:
    policy = POLICIES[name]()
    seen: list[Observation] = []
    batch = policy.update

    def noted(observation: Observation) -> Decision:
        seen.append(deepcopy(observation))
        return batch(observation)

    policy.update = noted  # type: ignore[method-assign]
    trainer = build(tmp_path, policy, args={"max_steps": 10, "logging_steps": 5})
    trainer.train()
    rows = Ledger(tmp_path / "ledger").comparisons()
    assert rows["step"].tolist() == [step for step in range(1, 11) for _ in "abc"]
    assert rows["stream"].tolist() == list("abc") * 10
    items = trainer.ledger.to_pandas()["items"].to_numpy().reshape(10, 3)
    expected: list[dict[str, float]] = [{}, {}]
    for column, need in (("excess_losses", "excess_loss"), ("losses_after", "loss_after")):
        found = rows[need].to_numpy().reshape(10, 3)
        if need not in policy.needs:
            assert np.isnan(found).all()
            continue
        np.testing.assert_array_equal(found, [getattr(observation, column) for observation in seen])
        assert np.isnan(found).any()  # the single sample that an epoch ends with
        for entry, part in zip(expected, (slice(0, 5), slice(5, 10)), strict=True):
            means = np.nansum(found[part] * items[part], axis=0) / items[part].sum(axis=0)
            entry |= {f"{need}/{stream}": mean for stream, mean in zip("abc", means, strict=True)}
    assert [entry.keys() for entry in compared_entries(trainer)] == [entry.keys() for entry in expected]
    for entry, wanted in zip(compared_entries(trainer), expected, strict=True):
        assert entry == pytest.approx(wanted, rel=1e-12)


def test_what_is_not_known_does_not_count_in_the_log(tmp_path: Path) -> None:
    trainer = build(tmp_path, Watching(*BOTH), Broken(), train_dataset=broken_streams(), args={"max_steps": 1})
    trainer.train()
    # The step has ruined the weights: of what comes after it nothing is left.
    assert [entry.keys() for entry in compared_entries(trainer)] == [{"excess_loss/a", "excess_loss/c"}]
    assert trainer.ledger.comparisons()["excess_loss"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("policy", [Uniform(), DoReMi(reference_losses={"a": 1.0, "b": 1.0, "c": 1.0})])
def test_runs_that_compare_nothing_have_no_such_table(tmp_path: Path, policy: Policy) -> None:
    trainer = build(tmp_path, policy)
    trainer.train()
    assert not (tmp_path / "ledger" / "comparisons").exists()
    assert list(trainer.ledger.comparisons().columns) == ["step", "stream", "excess_loss", "loss_after"]
    assert trainer.ledger.comparisons().empty
    assert compared_entries(trainer) == [{}] * 4


# ---- Runs that are cut off ----


@pytest.mark.parametrize("needs", [("excess_loss",), ("loss_after",), BOTH])
def test_a_run_that_is_cut_off_goes_on_to_the_bit(tmp_path: Path, needs: tuple[str, ...]) -> None:
    args = {"save_strategy": "steps", "save_steps": 1, "max_steps": 7, "logging_steps": 3, "optim": "adamw_torch"}

    def make() -> MixingTrainer:
        return build(tmp_path, Leaning(*needs), Tagger(dropout=0.3, has_norm=True), args=args)

    whole = make()
    whole.train()
    expected = end_of(whole)
    assert len(whole.ledger.comparisons()) == 7 * 3
    assert len(compared_entries(whole)) == 2
    assert len(set(whole.ledger.to_pandas()["weight"])) > 10
    for step in (1, 4, 5):
        again = make()
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert_same(end_of(again), expected)


def test_a_trainer_trains_twice(tmp_path: Path) -> None:
    trainer = build(tmp_path, Watching(*BOTH), args={"learning_rate": 0.0})
    trainer.train()
    first = seen_by(trainer)
    trainer.train()
    assert_close(seen_by(trainer), first, 0.0)


# ---- What is refused ----


def test_a_policy_that_needs_a_reference_is_given_one(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"Watching needs the losses of a reference model.*reference_model=\.\.\..*reco"
    ):
        build(tmp_path, Watching("excess_loss"), reference_model=None)


def test_a_reference_is_a_model_of_its_own(tmp_path: Path) -> None:
    model = Tagger()
    with pytest.raises(TypeError, match=r"reference_model must be a model .*got a str: load it first"):
        build(tmp_path, Watching("excess_loss"), model, reference_model="my/model")
    with pytest.raises(ValueError, match=r"shares parameters .*deepcopy"):
        build(tmp_path, Watching("excess_loss"), model, reference_model=model)


def test_a_reference_that_nobody_needs_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference = Tagger()
    reference.register_forward_hook(lambda *_: pytest.fail("it was run"))
    trainer = build(tmp_path, Uniform(), reference_model=reference)
    trainer.train()
    assert "reference_model is set, but mixing=Uniform does not need one" in caplog.text


class Silent(Tagger):
    """Shows its loss alone."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> Any:
        return {"loss": super().forward(input_ids, labels)["loss"]}


class Regularised(Tagger):
    """Whose loss is mostly something else than what its logits say."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> Any:
        output = super().forward(input_ids, labels)
        return {**output, "loss": output["loss"] + 10 * self.output.weight.square().sum()}


@pytest.mark.parametrize("model", [Silent, Regularised])
def test_a_model_whose_items_are_not_known(tmp_path: Path, model: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"needs the loss of each item .*not the sum of separate terms"):
        build(tmp_path, Watching("excess_loss"), model()).train()
    trainer = build(tmp_path, policy := Watching("loss", "loss_after"), model(), args={"learning_rate": 0.0})
    trainer.train()  # losses of streams are known all the same
    for seen in policy.seen:
        np.testing.assert_allclose(seen.losses_after, seen.losses, rtol=1e-12)


def test_a_reference_whose_items_are_others(tmp_path: Path) -> None:
    for reference in (Silent(), _Shorter()):
        with pytest.raises(ValueError, match="reference_model has no loss on the same items"):
            build(tmp_path, Watching("excess_loss"), reference_model=reference).train()


class _Shorter(nn.Module):
    """Gives each row one class."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tagger()

    def forward(self, input_ids: Any, labels: Any, attention_mask: Any = None) -> Any:
        return {"logits": self.inner(input_ids, labels)["logits"][:, 0], "loss": torch.zeros(())}


def test_a_reference_that_fails_is_named(tmp_path: Path) -> None:
    reference = Tagger()
    reference.embedding = nn.Embedding(5, 6).double()
    with pytest.raises(IndexError) as error:
        build(tmp_path, Watching("excess_loss"), reference_model=reference).train()
    assert any("In the reference model, which" in note for note in error.value.__notes__)


def test_nothing_of_it_is_in_the_state(tmp_path: Path) -> None:
    args = {"save_strategy": "steps", "save_steps": 2}
    ends = []
    for name, needs in (("plain", ()), ("comparing", BOTH)):
        build(tmp_path / name, Watching(*needs), args=args).train()
        state = json.loads((tmp_path / name / "checkpoint-2" / STATE_FILE).read_text())
        ends.append(sorted(state))
    assert ends[0] == ends[1]


def test_a_step_that_a_gradient_scaler_leaves_out_has_nothing_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Watching(*BOTH)
    trainer = build(tmp_path, policy, args={"max_steps": 2})
    accelerator = type(trainer.accelerator)
    monkeypatch.setattr(accelerator, "optimizer_step_was_skipped", property(lambda self: not policy.seen))
    trainer.train()
    first, second = policy.seen
    assert np.isnan(first.losses_after).all()
    assert np.isfinite([first.excess_losses, second.excess_losses, second.losses_after]).all()


def test_beside_a_probe_of_gradients_numbers_are_the_same(tmp_path: Path) -> None:
    seen = []
    for name, needs in (("alone", ()), ("probed", ("gradient_variance",))):
        policy = Watching(*BOTH, *needs)
        changes: Any = {"probe": Probing()} if needs else {}
        trainer = build(
            tmp_path / name,
            policy,
            build_model("llama"),
            reference_model=_perturbed(build_model("llama")),
            train_dataset=three_streams(),
            **changes,
        )
        trainer.train()
        seen.append(seen_by(trainer))
        assert all((o.gradients is not None) == bool(needs) for o in policy.seen)
    assert_close(seen[1], seen[0], 2e-6)


# ---- A loop of one's own ----


def test_a_loop_of_ones_own_reports_both() -> None:
    policy = Watching(*BOTH)
    loader = MixingDataLoader({"a": list(range(8)), "b": list(range(8))}, batch_size=4, mixing=policy)
    batches = iter(loader)
    next(batches)
    loader.observe(excess_losses={"b": 0.5}, losses_after=[1.0, float("inf")])
    next(batches)
    (seen,) = policy.seen
    np.testing.assert_array_equal(seen.excess_losses, [np.nan, 0.5])
    np.testing.assert_array_equal(seen.losses_after, [1.0, np.nan])
    with pytest.raises(ValueError, match=r"excess_losses has \['c'\], but the streams are \['a', 'b'\]"):
        loader.observe(excess_losses={"c": 0.5})


def test_who_does_not_report_them_is_told(caplog: pytest.LogCaptureFixture) -> None:
    policy = Watching(*BOTH)
    batches = iter(MixingDataLoader({"a": list(range(8)), "b": list(range(8))}, batch_size=4, mixing=policy))
    next(batches), next(batches)
    assert "depends on ['excess_losses', 'losses_after']" in caplog.text
    assert policy.seen[0].excess_losses is policy.seen[0].losses_after is None
