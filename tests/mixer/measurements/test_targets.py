"""Losses and gradients of an objective's targets, on rows of their own."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from torch import Tensor
from transformers import default_data_collator

import mixer
from mixer import MarginalValue, MixingTrainer, Objective, Uniform
from mixer.gradients.metric import OptimizerMetric
from mixer.loading.loaded_step import MicroBatch
from mixer.measurements import Alignment
from mixer.measurements.alignment import TargetStatistics
from mixer.measurements.hooks.target_gradients import TargetProbe
from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.mixer.comparing import KIND, Tagger, Watching, build, streams
from tests.mixer.trainer.runs import make
from tests.refusals import refused

OUTSIDE = {**streams(), "outside": Tokens(40, 9, KIND)}
OWN = {"outside": Tokens(9, 3, KIND)}


class Aligned(Watching):
    def __init__(
        self, metric: Any = "optimizer", interval_steps: int = 2, joined: bool = False, test_losses: bool = False
    ):
        super().__init__(Alignment(metric, interval_steps, joined, test_losses))


def train(folder: Path, policy: Any, optim: str = "adamw_torch", **changes: Any) -> MixingTrainer:
    args = {"max_steps": 6, "optim": optim, "learning_rate": 0.01, **changes.pop("args", {})}
    options = {"eval_dataset": OUTSIDE, "objective": ["outside", "a"], "model": Tagger(), **changes}
    trainer = build(folder, policy, args=args, **options)
    trainer.train()
    return trainer


def by_autograd(
    trainer: MixingTrainer, seen: TargetStatistics, probe: TargetProbe, step: int, directions: Any
) -> np.ndarray:
    """The same products by whole gradients of the same rows."""
    model, metric = trainer.model, OptimizerMetric(trainer.optimizer)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def one_batch(target: Any) -> MicroBatch:
        rows = [target._rows[index] for index in target._cursor.references(probe._positions(0, step)).tolist()]
        return MicroBatch(default_data_collator(rows), np.zeros(len(rows), dtype=np.int64), False)

    def gradient(micro: Any) -> list[Tensor]:
        loss = trainer.auxiliary_passes.mean_loss(micro)
        return list(torch.autograd.grad(loss, parameters))

    found = np.zeros((len(directions), len(trainer.streams)))
    for j, weights in enumerate(directions):
        parts = [gradient(one_batch(target)) for target in probe._targets]
        whole = [sum(w * p for w, p in zip(weights, own, strict=True)) for own in zip(*parts, strict=True)]
        if seen.metric != "plain":
            metric.scale(parameters, whole)
        for k, start in enumerate(trainer.mixing.seen.tolist()):
            micros = trainer.auxiliary_passes.samples({k: probe._positions(start, step)})
            items = [float(trainer.auxiliary_passes.items(micro).sum()) for micro in micros]
            parts = [sum(float((a * b).sum()) for a, b in zip(whole, gradient(m), strict=True)) for m in micros]
            found[j, k] = np.average(parts, weights=items)
    return found


@pytest.mark.parametrize(
    ("optim", "metric", "name", "weights"),
    [
        ("adamw_torch", "optimizer", "adam", np.eye(2)),
        ("sgd", "optimizer", "plain", np.eye(2)),
        ("adamw_torch", "plain", "plain", np.eye(2)),
        ("adamw_torch", "optimizer", "adam", [[0.75, 0.25]]),  # one gradient for both
    ],
)
def test_alignment_is_that_of_whole_gradients(tmp_path, optim, metric, name, weights, monkeypatch) -> None:
    expected, measure = [], TargetProbe._measure
    monkeypatch.setattr("mixer.measurements.hooks.target_gradients._FALL", 1e-4)  # the limit of a short step

    def both(probe: TargetProbe, step: int) -> TargetStatistics:
        before = weights_of(trainer.model)
        found = measure(probe, step)
        assert all(torch.equal(one, other) for one, other in zip(before, weights_of(trainer.model), strict=True))
        expected.append(by_autograd(trainer, found, probe, step, weights))
        return found

    monkeypatch.setattr(TargetProbe, "_measure", both)
    policy = Aligned(metric, joined=len(weights) == 1)
    options = {"eval_dataset": OUTSIDE, "objective": {"outside": 3, "a": 1}, "model": Tagger()}
    args = {"max_steps": 6, "optim": optim, "learning_rate": 0.01, "per_device_train_batch_size": 5}
    trainer = build(tmp_path, policy, args=args, **options)
    trainer.train()
    seen = [observation[Alignment] for observation in policy.seen]
    measured = [one for one in seen if one is not None]
    assert [one is not None for one in seen] == [False, True, False, True, False, True]
    assert trainer.ledger.timings().query("0 < probe_seconds < train_seconds")["step"].tolist() == [2, 4, 6]
    for one, products in zip(measured, expected, strict=True):
        assert one.metric == name
        np.testing.assert_allclose(one.alignment, products, rtol=1e-5, atol=1e-9)
        assert np.isfinite(one.losses).all()
        assert (one.error > 0).all()


def test_measuring_leaves_a_run_as_it_is(tmp_path: Path) -> None:
    ends = []
    for name, policy in (("plain", Uniform()), ("measured", mixer.Safeguard(Uniform(), target_share=0.0))):
        trainer = train(tmp_path / name, policy, model=Tagger(dropout=0.3))
        ends.append(weights_of(trainer.model))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_step_is_due_early_and_often_and_then_by_its_cost(tmp_path: Path) -> None:
    trainer = build(tmp_path, MarginalValue(), eval_dataset=OUTSIDE, objective=["outside"], args={"max_steps": 1})
    steps = next(hook for hook in trainer._parts.hooks if isinstance(hook, TargetProbe)).paid_steps
    # One target and three streams: a backward, and two forwards of three streams. Of a step's 9 rows 5 % pay for 0.15.
    rows = {step: steps.at(step).num_rows for step in range(1, 3_000) if steps.at(step).num_rows}
    due = [*rows]
    assert due[:5] == [32, 64, 90, 128, 181]
    assert (rows[32], rows[64]) == (4, 5)  # 32 · 0.15 = 4.8; 64 · 0.15 − 4 = 5.6
    assert np.diff(due)[-3:].tolist() == [steps.interval_steps] * 3
    assert rows[due[-1]] == 64


def test_the_objective_is_logged_on_test_rows(tmp_path: Path) -> None:
    args = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "objective", "greater_is_better": False}
    args |= {"save_strategy": "steps", "save_steps": 3, "load_best_model_at_end": True}
    trainer = train(tmp_path, MarginalValue(), objective=Objective({"outside": 3, "a": 1}), args=args)
    assert len(trainer.eval_dataset["outside"]) == 30
    assert len(trainer.eval_dataset["b"]) == len(OUTSIDE["b"])
    entries = [entry for entry in trainer.state.log_history if "eval_objective" in entry]
    losses = [entry["eval_outside_loss"] for entry in trainer.state.log_history if "eval_outside_loss" in entry]
    others = [entry["eval_a_loss"] for entry in trainer.state.log_history if "eval_a_loss" in entry]
    expected = 0.75 * np.array(losses) + 0.25 * np.array(others)
    np.testing.assert_allclose([entry["eval_objective"] for entry in entries], expected[: len(entries)])
    assert trainer.state.best_metric == pytest.approx(min(expected))
    assert trainer.describe_run()["objective"]["targets"] == {"outside": 0.75, "a": 0.25}
    first, last = (Run(tmp_path).objective_value(place) for place in (0, -1))
    assert (first, last) == pytest.approx((expected[0], expected[1]))
    assert next(comparison([Run(tmp_path)]).columns[0].cells) == "objective"


@pytest.mark.parametrize(
    ("policy", "changes", "development", "taken"),
    [
        (Uniform(), {}, {}, {}),
        (mixer.Fixed(), {"objective": Objective(["outside"], development_sets=OWN)}, {}, {}),
        (mixer.TargetLoss({"a": 1.0, "b": 1.0, "c": 1.0}), {"args": {"eval_strategy": "epoch"}}, {}, {}),
        (MarginalValue(), {}, {"a": 5, "outside": 10}, {"a": 5, "outside": 10}),
        (
            MarginalValue(),
            {"objective": Objective(["outside"], development_share=0.0, development_sets=OWN)},
            {"outside": 9},
            {},
        ),
        # The same rows judge a baseline, if that is asked for.
        (Uniform(), {"objective": Objective(["outside"], development_share=0.25)}, {}, {"outside": 10}),
    ],
)
def test_development_rows_are_set_aside_and_told_only_where_a_policy_follows_them(
    tmp_path, policy, changes, development, taken, caplog
) -> None:
    trainer = build(tmp_path, policy, **{"eval_dataset": OUTSIDE, "objective": ["outside", "a"], **changes})
    left = {name: len(OUTSIDE[name]) - number for name, number in taken.items()}
    assert {name: len(rows) for name, rows in trainer._parts.plan.target_splits.rows.items()} == development
    assert {name: len(OUTSIDE[name]) - len(own) for name, own in trainer.eval_dataset.items()} == {
        **dict.fromkeys(OUTSIDE, 0),
        **taken,
    }
    told = [
        f"{n} of {n + left[name]} rows of {name} are development rows, {left[name]} are evaluated"
        for name, n in taken.items()
    ]
    assert [one.message for one in caplog.records if "development" in one.message] == (
        [f"objective: {'; '.join(told)}."] if told else []
    )


def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    args, ends = {"save_strategy": "steps", "save_steps": 3}, []
    for checkpoint in (None, str(tmp_path / "checkpoint-3")):
        policy = mixer.Safeguard(MarginalValue(rate=1.0))
        options = {"eval_dataset": OUTSIDE, "objective": ["outside"], "model": Tagger()}
        trainer = build(tmp_path, policy, args={"max_steps": 8, "optim": "adamw_torch", **args}, **options)
        trainer.train(resume_from_checkpoint=checkpoint)
        ends.append((trainer.mixing.weights, policy.state_dict(), weights_of(trainer.model)))
    assert ends[0][:2] == ends[1][:2]
    assert all(torch.equal(one, other) for one, other in zip(ends[0][2], ends[1][2], strict=True))


class _Own(MixingTrainer):
    """A loss whose rows cannot be separated."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def test_a_model_whose_rows_cannot_be_separated_is_measured_row_by_row(tmp_path: Path) -> None:
    found = []
    for name, kind in (("known", MixingTrainer), ("own", _Own)):
        policy = Aligned()
        args = {"max_steps": 2, "optim": "adamw_torch", "learning_rate": 0.01}
        options = {"train_dataset": streams(), "batch_size": 9, "eval_dataset": OUTSIDE, "objective": ["outside"]}
        kind(Tagger(), arguments(tmp_path / name, **args), mixing=policy, **options).train()
        found.append(policy.seen[1][Alignment])
    np.testing.assert_allclose(found[0].alignment, found[1].alignment, rtol=1e-6)


def _of_rows(rows: Any, name: str = "outside") -> dict[str, Any]:
    return {"objective": Objective(["outside"], development_sets={name: rows})}


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"objective": ["x"]}, "objective.targets"),
        ({"objective": None}, "objective"),
        ({"objective": Objective(["outside"], metric="f1")}, "objective"),
        ({"args": {"metric_for_best_model": "objective", "eval_strategy": "epoch"}}, "greater_is_better"),
        ({"eval_dataset": None}, "objective"),
        (_of_rows(OUTSIDE["a"], "x"), "objective.development_sets"),
        *((_of_rows(rows), "development_sets") for rows in ([], "rows.jsonl", iter([]))),
        ({"eval_dataset": {**OUTSIDE, "outside": Tokens(1, 1, KIND)}}, "development_share"),
        ({"objective": Objective(["outside", "a"], development_share=0.0, development_sets=OWN)}, "development_share"),
    ],
)
def test_rows_and_names_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], option: str) -> None:
    with refused(option):
        build(tmp_path, MarginalValue(), **{"eval_dataset": OUTSIDE, "objective": ["outside"], **changes})


def test_a_target_without_labels_is_refused_and_a_lacking_metric_told(tmp_path, caplog) -> None:
    unlabelled = [{"input_ids": torch.arange(4)} for _ in range(8)]
    with refused("objective", stream="t"):
        make(tmp_path, train_dataset=streams(), eval_dataset={"t": unlabelled}, objective=["t"], mixing="auto")
    own = {"objective": Objective(["t"], metric="f1", greater_is_better=True), "eval_strategy": "epoch"}
    own |= {"compute_metrics": lambda results: {"accuracy": 1.0}, "eval_dataset": {"t": Tokens(8, 3)}}
    trainer = make(tmp_path, **own)
    for _ in range(2):
        assert "eval_objective" not in trainer.evaluate()
    said = "'f1' is missing for ['t']; compute_metrics returned {'t': ['accuracy']}"
    assert caplog.text.count(said) == 1


def test_bounds_that_a_policy_does_not_act_on_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"eval_dataset": OUTSIDE, "objective": Objective(["outside"], bounds={"a": 1.1})}
    for number, policy in enumerate((MarginalValue(), Uniform(), mixer.Safeguard(mixer.DGA()), mixer.DGA())):
        assert "does not act" not in caplog.text
        build(tmp_path / str(number), policy, **options)
    assert "mixing=DGA does not act on the bounds of the objective, {'a': 1.1}. " in caplog.text


def test_weights_of_few_bits_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, MarginalValue(interval_steps=2), model=Tagger().to(torch.bfloat16), args={"max_steps": 4})
    assert caplog.text.count("Most trained weights have 16 bits") == 1


class _Counting(Tagger):
    """Counts rows by whether they go back too, and whether a step trains on them."""

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        self.rows = getattr(self, "rows", Counter())
        self.rows[torch.is_grad_enabled(), self.training] += len(input_ids)
        return super().forward(input_ids, labels, attention_mask)


@pytest.mark.parametrize("objective", [["outside", "a"], Objective(["outside", "a"], kind="worst")])
def test_the_cost_of_measuring_is_told_before_the_run(tmp_path, objective, caplog) -> None:
    model, data = _Counting(), {"a": Tokens(20, 1, KIND), "b": Tokens(10, 2, KIND), "c": Tokens(6, 3, KIND)}
    policy = MarginalValue(interval_steps=4)
    train(tmp_path, policy, model=model, objective=objective, train_dataset=data, args={"max_steps": 16})
    [told] = re.findall(r"for the objective takes about ([\d.]+) % of the work", caplog.text)
    work = model.rows[True, False] + model.rows[False, False] / 3
    assert float(told) == pytest.approx(100 * work / model.rows[True, True], rel=0.05)


def test_a_run_that_pays_for_no_measurement_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = Aligned(interval_steps=0)
    train(tmp_path, policy, args={"max_steps": 3})
    assert "No measurement is paid for before step 64, and the run ends at step 3" in caplog.text
    assert "does not change" not in caplog.text  # a wrapper may change it unmeasured
    assert "% of the work" not in caplog.text
    assert all(seen[Alignment] is None for seen in policy.seen)


def test_streams_that_are_not_measured_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [OUTSIDE["c"][index] for index in range(6)]
    data = {"a": OUTSIDE["a"], "flow": IterableDataset.from_generator(lambda: iter(rows))}
    options = {"eval_dataset": OUTSIDE, "objective": ["outside"], "train_dataset": data}
    build(tmp_path, MarginalValue(), **options)
    assert caplog.text.count("mixing=MarginalValue does not measure the streams ['flow']") == 1


def test_gradients_are_compared_plainly_where_an_optimizer_has_no_squares_of_them(tmp_path: Path) -> None:
    policy = Aligned()
    train(tmp_path, policy, "adafactor", model=build_model("bert-tokens"), args={"max_steps": 2})
    assert policy.seen[1][Alignment].metric == "plain"


def test_the_metric_is_that_of_the_next_step() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.0, 0.9), eps=1e-3)
    for gradient in ([1.0, 0.0, 2.0], [0.5, 0.0, -1.0]):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    next_gradient = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    scaled = next_gradient.clone()
    OptimizerMetric(optimizer).scale([parameter], [scaled])
    before, parameter.grad = parameter.detach().clone(), next_gradient.clone()
    optimizer.step()  # without momentum, a step is the rate times the scaled gradient
    torch.testing.assert_close(before - parameter.detach(), 0.1 * scaled)
    assert OptimizerMetric(optimizer).name([parameter]) == "adam"
    optimizer.state[parameter]["step"] = torch.ones(3)  # of no known meaning
    optimizer.state["of all parameters"] = 2
    assert OptimizerMetric(optimizer).name([parameter]) == "plain"


def test_squares_of_bitsandbytes_are_read_in_32_and_8_bits() -> None:
    parameter, places, table = torch.nn.Parameter(torch.zeros(300)), torch.arange(300) % 256, torch.linspace(0, 1, 256)
    scales = torch.tensor([2.0, 0.5])
    squares = torch.cat([2.0 * table, 0.5 * table[:44]])
    whole = {"state2": squares, "step": 3}
    eight = {"state2": places.byte(), "qmap2": table, "absmax2": scales, "step": 3}
    group = {"params": [parameter], "lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}
    expected = 1.0 / (((0.99 * squares + 0.01) / (1 - 0.99**4)).sqrt() + 1e-8)
    for state in (whole, eight):
        metric = OptimizerMetric(SimpleNamespace(state={parameter: state}, param_groups=[group]))
        gradient = torch.ones(300)
        metric.scale([parameter], [gradient])
        assert metric.name([parameter]) == "adam"
        torch.testing.assert_close(gradient, expected)
    unknown = {**eight, "absmax2": scales[:1]}  # blocks of another length
    assert (
        OptimizerMetric(SimpleNamespace(state={parameter: unknown}, param_groups=[group])).name([parameter]) == "plain"
    )


def test_losses_that_bounds_go_by_are_of_the_same_rows_from_the_first_step_on(tmp_path: Path) -> None:
    policy = Aligned()
    train(tmp_path, policy, objective=Objective(["outside"], bounds={"a": 1.1}), args={"learning_rate": 0.0})
    losses = [observation[Alignment].losses for observation in policy.seen if observation[Alignment] is not None]
    assert [observation[Alignment] is not None for observation in policy.seen] == [True, True, False, True, False, True]
    assert np.isnan(policy.seen[0][Alignment].alignment).all()
    for own in losses[1:]:
        np.testing.assert_allclose(own, losses[0], rtol=1e-12)


def test_test_rows_and_development_rows_are_those_of_the_evaluation_set_by_hand(tmp_path: Path) -> None:
    sets, policy = {**streams(), "outside": Tokens(8, 9, KIND)}, Aligned(test_losses=True)
    aim = Objective(["outside"], development_sets={"outside": Tokens(7, 3, KIND)})
    trainer = train(tmp_path, policy, eval_dataset=sets, objective=aim, args={"max_steps": 2, "learning_rate": 0.0})
    seen = policy.seen[-1][Alignment]

    def mean_and_error(dataset: Any) -> np.ndarray:
        items = np.array([(row["labels"] != -100).sum() for row in dataset])
        with torch.no_grad():
            means = [trainer.model(**default_data_collator([row]))["loss"].item() for row in dataset]
        mean = items @ means / items.sum()
        return np.array([mean, np.sqrt(((items * (means - mean)) ** 2).sum()) / items.sum() / mean])

    development, test = mean_and_error(aim.development_sets["outside"]), mean_and_error(sets["outside"])
    np.testing.assert_allclose([seen.losses[0], seen.test_losses[0]], [development[0], test[0]])
    np.testing.assert_allclose(seen.gap_error, np.hypot(development[1], test[1]))
