"""Losses above those of a reference model, and losses after the optimizer step."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer import FAMO, Decision, DoReMi, Ledger, MixingDataLoader, MixingTrainer, Observation, Policy, Uniform
from mixer.checkpoint.checkpoint_files import STATE_FILE
from mixer.measure.reference import excess_of
from mixer.measurements import ExcessLoss, Loss, LossAfter
from tests.helpers import MODEL_DATA, build_model, three_streams, weights_of
from tests.mixer.checkpoint.test_resume import assert_same, end_of
from tests.mixer.comparing import Leaning, Tagger, Watching, build, cross_entropies, train_by_hand
from tests.mixer.trainer.test_recovery import limit_memory

BOTH = (ExcessLoss(), LossAfter())


def seen_by(trainer: MixingTrainer) -> list[tuple[Any, Any]]:
    return [(o[ExcessLoss], o[LossAfter]) for o in trainer.mixing.policy.seen]


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    assert len(found) == len(expected) > 0
    for own, others in zip(found, expected, strict=True):
        for mine, theirs in zip(own, others, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


def perturbed(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def named(folder: Path, policy: Policy, name: str, model: nn.Module | None = None, **changes: Any) -> MixingTrainer:
    fields = {"reference_model": perturbed(build_model(name)), "train_dataset": three_streams(MODEL_DATA[name])}
    return build(folder, policy, build_model(name) if model is None else model, **{**fields, **changes})


@pytest.mark.parametrize(
    ("mine", "reference", "expected"),
    [
        ([3.0, 1.0, 2.0], [1.0, 4.0, 1.0], 1.0),  # each item is clipped: of the mean difference nothing would be left
        *(([one], [other], np.nan) for one, other in [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, np.inf)]),
    ],
)
def test_the_excess_of_items(mine: list[float], reference: list[float], expected: float) -> None:
    excess = excess_of(torch.tensor(mine), torch.tensor(reference))
    np.testing.assert_equal(excess.mean().item(), expected)


@pytest.mark.parametrize(("size", "changes"), [(16, {}), (3, {}), (16, {"max_tokens_per_micro_batch": 40})])
def test_both_are_those_of_a_loop_by_hand(tmp_path: Path, size: int, changes: dict[str, Any]) -> None:
    policy = Watching(Loss(), *BOTH)
    trainer = build(tmp_path, policy, args={"per_device_train_batch_size": size, "max_steps": 6}, **changes)
    expected = train_by_hand(trainer, Tagger(seed=7), Tagger())
    assert_close(seen_by(trainer), expected, 1e-12)
    # An epoch of 37 samples ends with a step of a single one: streams have no items in it.
    assert any(np.isnan(values).any() for values, _ in expected)
    assert np.nanmax([np.abs(o[Loss] - o[LossAfter]) for o in policy.seen]) > 1e-3


def _squares(logits: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(logits, labels[:, None], reduction="none")


def _binary(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def _smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=0.2)


@pytest.mark.parametrize(
    ("name", "compiled", "loss_of"),
    [
        *((name, False, cross_entropies) for name in ("llama", "llama-classifier", "bert-classifier", "bert-tokens")),
        *((name, True, cross_entropies) for name in ("llama", "bert-tokens")),
        ("bert-regression", False, _squares),
        ("bert-multi-label", False, _binary),
        ("bert-tokens", False, _smoothed),
    ],
)
def test_models_that_compute_their_losses_in_many_ways(tmp_path: Path, name: str, compiled: bool, loss_of: Any) -> None:
    args = {"label_smoothing_factor": 0.2 * (loss_of is _smoothed)}
    trainer = named(tmp_path, Watching(*BOTH), name, args=args)
    if compiled:  # losses of a compiled model are read from the logits, those of the reference are not
        read = trainer._parts.losses.new_reader
        trainer._parts.losses.new_reader = lambda model, *args: read(model, *[False, False][: 2 * len(args)])
    reference, plain = perturbed(build_model(name)), build_model(name)
    expected = train_by_hand(trainer, reference, plain, name == "llama", loss_of)
    assert_close(seen_by(trainer), expected, 2e-6)
    assert max(np.nanmax(values) for values, _ in expected) > 1e-3


@pytest.mark.parametrize("has_norm", [False, True])
def test_without_a_step_losses_are_the_same_dropout_and_all(tmp_path: Path, has_norm: bool) -> None:
    policy = Watching(Loss(), LossAfter())
    build(tmp_path, policy, Tagger(dropout=0.5, has_norm=has_norm), args={"learning_rate": 0.0}).train()
    for seen in policy.seen:
        np.testing.assert_allclose(seen[LossAfter], seen[Loss], rtol=1e-14)


class RandomTagger(Tagger):
    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Any = None) -> Any:
        torch.rand(3), np.random.random()  # noqa: NPY002
        return super().forward(input_ids, labels)


@pytest.mark.parametrize("needs", [(ExcessLoss(),), BOTH])
def test_training_is_the_same_to_the_bit_and_so_is_the_state(tmp_path: Path, needs: tuple[Any, ...]) -> None:
    ends, states = [], []
    for name, wanted in (("plain", ()), ("comparing", needs)):
        reference = RandomTagger(seed=7, has_norm=True, dropout=0.5)
        options: Any = {"reference_model": reference} if ExcessLoss() in wanted else {}
        model = Tagger(dropout=0.3, has_norm=True)
        args = {"max_steps": 7, "optim": "adamw_torch", "save_strategy": "steps", "save_steps": 7}
        trainer = build(tmp_path / name, Watching(*wanted), model, args=args, **options)
        trainer.train()
        ends.append({**end_of(trainer), "norm": model.norm.running_mean.tolist(), "random": torch.rand(3).tolist()})
        states.append(sorted(json.loads((tmp_path / name / "checkpoint-7" / STATE_FILE).read_text())))
    for entry in ends[1]["logs"]:
        for key in [key for key in entry if key.startswith(("excess_loss/", "loss_after/"))]:
            del entry[key]
    assert_same(ends[1], {name: value for name, value in ends[0].items() if name != "comparisons"})
    assert states[0] == states[1]


def test_the_reference_is_as_it_was_and_in_no_checkpoint(tmp_path: Path) -> None:
    reference = Tagger(seed=7, has_norm=True, dropout=0.5)
    reference.dropout.eval()  # some parts of it may be in another mode than others
    modes = {name: module.training for name, module in reference.named_modules()}
    before = deepcopy(reference.state_dict())
    args = {"save_strategy": "steps", "save_steps": 2}
    named(tmp_path, Watching(ExcessLoss()), "bert-tokens", reference_model=reference, args=args).train()
    assert all(torch.equal(value, before[name]) for name, value in reference.state_dict().items())
    assert {name: module.training for name, module in reference.named_modules()} == modes
    assert all(parameter.grad is None for parameter in reference.parameters())
    files = [path.name for path in (tmp_path / "checkpoint-2").rglob("*") if path.suffix == ".safetensors"]
    assert files == ["model.safetensors"]


def test_a_step_that_is_repeated_counts_once(tmp_path: Path) -> None:
    seen = {}
    for where in ("whole", "forward", "training", "backward", "reference"):
        model, reference = build_model("llama"), perturbed(build_model("llama"))
        if where != "whole":
            limit_memory(*((reference, 2) if where == "reference" else (model, 2, where)))
        args = {"per_device_train_batch_size": 8, "auto_find_batch_size": True, "max_steps": 3}
        trainer = named(tmp_path / where, Watching(*BOTH), "llama", model, args=args, reference_model=reference)
        trainer.train()
        assert trainer._parts.run.loader.cap.max_samples == (8 if where == "whole" else 2)
        seen[where] = seen_by(trainer)
        assert_close(seen[where], seen["whole"], 2e-6)


class Broken(Tagger):
    """Its loss is not a number for rows that begin with the token 1."""

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Any = None) -> Any:
        logits = super().forward(input_ids, labels)["logits"]
        bad = (input_ids[:, :1] == 1)[..., None]
        logits = torch.where(bad, logits * float("nan"), logits)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@pytest.fixture
def broken_streams() -> dict[str, Any]:
    streams = three_streams("token-classification")
    for name, data in streams.items():
        for row in data.rows:
            row["input_ids"][0] = 1 if name == "b" else 5
    return streams


@pytest.mark.parametrize("nonfinite", ["warn", "skip"])
def test_a_loss_that_is_not_finite(tmp_path: Path, nonfinite: Any, broken_streams: Any) -> None:
    policy, model = Watching(Loss(), *BOTH), Broken()
    before = weights_of(model)
    options = {"nonfinite": nonfinite, "train_dataset": broken_streams, "args": {"max_steps": 1}}
    trainer = build(tmp_path, policy, model, **options)
    trainer.train()
    (seen,) = policy.seen
    assert np.isnan(seen[Loss]).tolist() == np.isnan(seen[ExcessLoss]).tolist() == [False, True, False]
    # A step that was left out has nothing after it.
    assert np.isnan(seen[LossAfter]).all()
    assert torch.equal(weights_of(model), before)
    assert [entry.keys() for entry in compared_entries(trainer)] == [{"excess_loss/a", "excess_loss/c"}]
    assert trainer.ledger.comparisons()["excess_loss"].isna().tolist() == [False, True, False]
    other = Watching(Loss(), *BOTH)
    build(tmp_path / "other", other, reference_model=Broken(seed=7), **options).train()
    assert np.isnan(other.seen[0][ExcessLoss]).tolist() == [False, True, False]
    assert np.isfinite([other.seen[0][Loss], other.seen[0][LossAfter]]).all()


def test_a_step_that_a_scaler_leaves_out_has_nothing_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Watching(*BOTH)
    trainer = build(tmp_path, policy, args={"max_steps": 2})
    accelerator = type(trainer.accelerator)
    monkeypatch.setattr(accelerator, "optimizer_step_was_skipped", property(lambda self: not policy.seen))
    trainer.train()
    first, second = policy.seen
    assert np.isnan(first[LossAfter]).all()
    assert np.isfinite([first[ExcessLoss], second[ExcessLoss], second[LossAfter]]).all()


def compared_entries(trainer: MixingTrainer) -> list[dict[str, float]]:
    entries = [entry for entry in trainer.state.log_history if "train_coverage" in entry]
    compared = ("excess_loss/", "loss_after/")
    return [{key: value for key, value in entry.items() if key.startswith(compared)} for entry in entries]


class Spoiling(Watching):
    def update(self, observation: Observation) -> Decision:
        for values in (observation[ExcessLoss], observation[LossAfter]):
            assert values is not None
            values[:] = -1.0
        return super().update(observation)


@pytest.mark.parametrize("policy", [FAMO(), Spoiling(*BOTH)])
def test_the_ledger_and_the_log_have_what_the_policy_saw(tmp_path: Path, policy: Policy) -> None:
    seen: list[Observation] = []
    update = policy.update

    def noted(observation: Observation) -> Decision:
        seen.append(deepcopy(observation))
        return update(observation)

    policy.update = noted  # type: ignore[method-assign]
    trainer = build(tmp_path, policy, args={"max_steps": 10, "logging_steps": 5})
    trainer.train()
    rows = Ledger(tmp_path / "ledger").comparisons()
    assert rows["step"].tolist() == [step for step in range(1, 11) for _ in "abc"]
    assert rows["stream"].tolist() == list("abc") * 10
    items = trainer.ledger.to_pandas()["items"].to_numpy().reshape(10, 3)
    expected: list[dict[str, float]] = [{}, {}]
    for kind in (ExcessLoss, LossAfter):
        need = kind.column
        found = rows[need].to_numpy().reshape(10, 3)
        if kind() not in policy.needs:
            assert np.isnan(found).all()
            continue
        np.testing.assert_array_equal(found, [observation[kind] for observation in seen])
        assert np.isnan(found).any()  # the single sample that an epoch ends with
        for entry, part in zip(expected, (slice(0, 5), slice(5, 10)), strict=True):
            means = np.nansum(found[part] * items[part], axis=0) / items[part].sum(axis=0)
            entry |= {f"{need}/{stream}": mean for stream, mean in zip("abc", means, strict=True)}
    assert [entry.keys() for entry in compared_entries(trainer)] == [entry.keys() for entry in expected]
    for entry, wanted in zip(compared_entries(trainer), expected, strict=True):
        assert entry == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("policy", [Uniform(), DoReMi(reference_losses={"a": 1.0, "b": 1.0, "c": 1.0})])
def test_runs_that_compare_nothing_have_no_table(tmp_path, policy, caplog) -> None:
    reference = Tagger()
    reference.register_forward_hook(lambda *_: pytest.fail("it was run"))
    trainer = build(tmp_path, policy, reference_model=reference)
    trainer.train()
    assert f"reference_model is set, but mixing={policy.name} does not need one" in caplog.text
    assert not (tmp_path / "ledger" / "comparisons").exists()
    assert trainer.ledger.comparisons().empty
    assert compared_entries(trainer) == [{}] * 4


@pytest.mark.parametrize("needs", [(LossAfter(),), BOTH])
def test_a_run_that_is_cut_off_goes_on_to_the_bit(tmp_path: Path, needs: tuple[Any, ...]) -> None:
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


SHARED = Tagger()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (None, r"Watching needs the losses of a reference model.*reference_model=\.\.\..*reco"),
        ("my/model", r"reference_model must be a model, got a str: load it first"),
        (SHARED, r"shares parameters .*deepcopy"),
    ],
)
def test_a_reference_is_a_model_of_its_own(tmp_path: Path, reference: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build(tmp_path, Watching(ExcessLoss()), SHARED, reference_model=reference)


class Silent(Tagger):
    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Any = None) -> Any:
        return {"loss": super().forward(input_ids, labels)["loss"]}


class Regularised(Tagger):
    """Whose loss is mostly something else than what its logits say."""

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Any = None) -> Any:
        output = super().forward(input_ids, labels)
        return {**output, "loss": output["loss"] + 10 * self.output.weight.square().sum()}


@pytest.mark.parametrize("model", [Silent, Regularised])
def test_a_model_whose_items_are_not_known(tmp_path: Path, model: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"needs the loss of each item .*not the sum of separate terms"):
        build(tmp_path, Watching(ExcessLoss()), model()).train()
    policy = Watching(Loss(), LossAfter())
    build(tmp_path, policy, model(), args={"learning_rate": 0.0}).train()  # losses of streams are known all the same
    for seen in policy.seen:
        np.testing.assert_allclose(seen[LossAfter], seen[Loss], rtol=1e-12)


def test_a_reference_whose_items_are_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reference_model has no loss on the same items"):
        build(tmp_path, Watching(ExcessLoss()), reference_model=Silent()).train()


def test_a_loop_of_ones_own_reports_both(caplog: pytest.LogCaptureFixture) -> None:
    policy = Watching(*BOTH)
    loader = MixingDataLoader({"a": list(range(8)), "b": list(range(8))}, batch_size=4, mixing=policy)
    batches = iter(loader)
    next(batches)
    loader.observe(measured={ExcessLoss: {"b": 0.5}, LossAfter: [1.0, float("inf")]})
    next(batches)
    np.testing.assert_array_equal(policy.seen[0][ExcessLoss], [np.nan, 0.5])
    np.testing.assert_array_equal(policy.seen[0][LossAfter], [1.0, np.nan])
    with pytest.raises(ValueError, match=r"ExcessLoss has \['c'\], but the streams are \['a', 'b'\]"):
        loader.observe(measured={ExcessLoss: {"c": 0.5}})
    assert "depends on" not in caplog.text
    next(batches)  # without a report
    assert "depends on ['ExcessLoss', 'LossAfter']" in caplog.text
    assert policy.seen[1][ExcessLoss] is policy.seen[1][LossAfter] is None
