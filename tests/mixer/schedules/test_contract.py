import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer import schedules
from mixer.measurements import GradientNoise, GradientNorm, LearningRate, MeanLoss, Noise, Rates, names_of
from mixer.schedules import BatchDecision, BatchObservation, Constant, Function, NoiseScale, Ramp, Schedule, as_schedule
from mixer.utils.errors import InvalidTypeError
from tests.helpers import layouts
from tests.mixer.kinds import parted
from tests.refusals import refused

INITIAL, NUM_STEPS = 16, 24
BOUNDS = {"minimum": 4, "maximum": 200, "granularity": 4, "max_growth": 1.5}
STEPS: dict[str, Any] = {"maximum": 200, "interval": 1, "unit": "steps"}
ALL: dict[str, Any] = {"maximum": 200, "unit": "epochs", "on_plateau": "shrink", "otherwise": 1.3}
ALL |= {"gradient_norm": True, "after_warmup": True}

MAKERS: dict[str, Callable[..., Schedule]] = {
    "Constant": schedules.Constant,
    "Function": lambda **bounds: schedules.Function(lambda step, size: size + step, **bounds),
    "AdaBatch": lambda **bounds: schedules.AdaBatch([3, 7, 9], unit="steps", factor=1.7, **bounds),
    "AdaBatch, every": lambda **bounds: schedules.AdaBatch(every=0.1, unit="progress", **bounds),
    "AdaBatch, much": lambda **bounds: schedules.AdaBatch(every=1e-300, factor=1e300, **bounds),
    "Ramp": lambda **bounds: schedules.Ramp(120, 500, unit="samples", **bounds),
    "Ramp, down": lambda **bounds: schedules.Ramp(4, 9_000, **bounds),
    "CriticalBatchWarmup": lambda **bounds: schedules.CriticalBatchWarmup({900: 32, 4_000: 100}, **bounds),
    "Seesaw": lambda **bounds: schedules.Seesaw(**{"maximum": 200, **bounds}),
    "Seesaw, smooth": lambda **bounds: schedules.Seesaw(1.5, smooth=True, **{"maximum": 200, **bounds}),
    "LossChange": lambda **bounds: schedules.LossChange(3, interval=1, **{"maximum": 200, **bounds}),
    "LossChange, steps": lambda **bounds: schedules.LossChange(3, **{**STEPS, **bounds}),
    "SmoothedLossChange": lambda **bounds: schedules.SmoothedLossChange(0.05, 0.7, 2, **{"maximum": 200, **bounds}),
    "SmoothedLossChange, all": lambda **bounds: schedules.SmoothedLossChange(0.2, 0.5, 1, **{**ALL, **bounds}),
    "NoiseScale": lambda **bounds: schedules.NoiseScale(decay=0.5, interval_steps=3, **bounds),
    "NoiseScale, plain": lambda **bounds: schedules.NoiseScale(0.3, powers_of_two=False, interval_steps=1, **bounds),
    "NormTest": schedules.NormTest,
    "NormTest, smoothed": lambda **bounds: schedules.NormTest(0.9, 0.8, **bounds),
}
every_schedule = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@dataclass(frozen=True)
class Shown:
    """What a step shows apart from where the run is."""

    loss: float
    gradient_norm: float
    learning_rate: float
    noise: Noise | None


awkward = st.floats(-1.0, 10.0) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308, -1e308, 1e-300, 5e-324])
noises = st.none() | st.builds(Noise, awkward, awkward)
courses = st.lists(st.builds(Shown, awkward, awkward, awkward, noises), min_size=1, max_size=NUM_STEPS // 2)


def usual(num_steps: int = NUM_STEPS, phase: float = 0.0) -> list[Shown]:
    """A warm-up, a cosine, a falling loss that comes to rest, and noise that grows."""
    course = []
    for step in range(1, num_steps + 1):
        share = step / num_steps
        learning_rate = min(step / 4, 0.5 + 0.5 * math.cos(math.pi * share))
        noise = Noise(1.0 - 0.9 * share + 0.2 * math.sin(step + phase), 20.0 + step) if step % 3 else None
        course.append(Shown(math.exp(-9 * share) + 2 + phase, 1.0 + math.exp(-5 * share), learning_rate, noise))
    return course


def observe(shown: Shown, step: int, num_samples: int, batch_size: int, num_tokens: int) -> BatchObservation:
    place = {"progress": min(1.0, step / NUM_STEPS), "num_epochs_done": step // 5, "num_samples": num_samples}
    measured = parted({**vars(shown), "learning_rate": Rates(shown.learning_rate)})[1]
    return BatchObservation(step=step, num_tokens=num_tokens, batch_size=batch_size, **place, measured=measured)


class Run:
    """What a trainer does with a schedule: bounds applied, sizes counted."""

    def __init__(self, schedule: Schedule, initial: int = INITIAL, tokens_per_sample: int = 10):
        self.schedule, self.tokens_per_sample = schedule, tokens_per_sample
        self.step = self.num_samples = 0
        self.decisions: list[BatchDecision] = []
        self.sizes = [initial]
        self._take(schedule.start(initial))
        self.sizes.pop(0)

    def _take(self, decision: BatchDecision) -> None:
        self.decisions.append(decision)
        self.sizes.append(self.schedule.limits.apply(decision.batch_size, self.sizes[-1]))

    def follow(self, course: Sequence[Shown]) -> "Run":
        for shown in course:
            self.step += 1
            self.num_samples += self.sizes[-1]
            tokens = self.tokens_per_sample * self.num_samples
            self._take(self.schedule.update(observe(shown, self.step, self.num_samples, self.sizes[-1], tokens)))
        return self

    def resumed_by(self, schedule: Schedule, initial: int = INITIAL) -> "Run":
        """The same run gone on by another schedule, which takes up the state through JSON."""
        other = Run(schedule, initial)
        schedule.load_state_dict(json.loads(json.dumps(self.schedule.state_dict(), allow_nan=False)))
        other.step, other.num_samples = self.step, self.num_samples
        other.decisions, other.sizes = list(self.decisions), list(self.sizes)
        return other


def laid_out(schedule: Schedule) -> Any:
    return layouts({name: getattr(schedule, name) for name in schedule._remembered_names()})


def test_every_schedule_stands_under_the_contract() -> None:
    assert {name.partition(",")[0] for name in MAKERS} == set(schedules.schedule_classes())


@every_schedule
@settings(max_examples=20)
@given(course=courses, cut=st.integers(0, NUM_STEPS))
def test_whatever_is_shown_sizes_are_within_the_bounds_and_a_saved_run_goes_on_alike(make, course, cut) -> None:
    whole = [*usual(8), *course, *usual(), *course]
    run = Run(make(**BOUNDS)).follow(whole[:cut])
    resumed = run.resumed_by(make(**BOUNDS), initial=INITIAL * (1 + cut % 2))  # also with another default size
    assert resumed.schedule.state_dict() == run.schedule.state_dict()
    assert laid_out(resumed.schedule) == laid_out(run.schedule)
    assert resumed.follow(whole[cut:]).decisions == run.follow(whole[cut:]).decisions
    assert resumed.sizes == run.sizes
    assert all(4 <= size <= 200 and size % 4 == 0 for size in run.sizes)
    assert all(new <= max(1.5 * old, old + 4) for old, new in pairwise(run.sizes))
    for decision in [*run.decisions, *Run(make()).follow(whole).decisions]:
        assert 0 < decision.batch_size < math.inf
        assert decision.learning_rate_factor is None or 0.0 < decision.learning_rate_factor < math.inf


@every_schedule
def test_what_is_not_needed_is_not_looked_at(make: Callable[..., Schedule]) -> None:
    needs = names_of(make().needs)
    kinds = {"loss": MeanLoss, "gradient_norm": GradientNorm, "learning_rate": LearningRate}
    hidden: dict[str, Any] = {name: math.nan for name, kind in kinds.items() if kind.__name__ not in needs}
    hidden |= {} if GradientNoise.__name__ in needs else {"noise": None}
    blind = Run(make(), tokens_per_sample=10 if make().unit == "tokens" else 0)
    blind.follow([replace(shown, **hidden) for shown in usual()])
    assert blind.decisions == Run(make()).follow(usual()).decisions


@every_schedule
def test_runs_repeat_also_of_one_started_again_and_saving_changes_nothing(make: Callable[..., Schedule]) -> None:
    schedule, expected = make(), Run(make()).follow(usual()).decisions
    Run(schedule, INITIAL + 8).follow(usual(9, phase=1.0))
    watched = Run(schedule)
    for shown in usual():
        saved = schedule.state_dict()
        before = json.dumps(saved, allow_nan=False)
        watched.follow([shown])
        assert json.dumps(saved) == before
    assert watched.decisions == expected
    with refused("state"):
        schedule.load_state_dict({"something else": 1})


@every_schedule
def test_bounds_and_the_rule_of_the_learning_rate_are_passed_on(make: Callable[..., Schedule]) -> None:
    assert Run(make(**BOUNDS)).sizes == [INITIAL]
    limits = make(**BOUNDS).limits
    assert (limits.minimum, limits.maximum, limits.granularity, limits.max_growth) == (4, 200, 4, 1.5)
    with refused(make().name, kind=InvalidTypeError):
        make(minimun=4)
    if make().name == "Constant":
        assert schedules.Constant(16).initial == 16
    else:
        assert make(initial=16).initial == 16
        with refused("initial"):
            make(initial=18, **BOUNDS)
    if make().name == "Seesaw":
        with refused("Seesaw", kind=InvalidTypeError):
            make(learning_rate="sqrt")
        return  # it has a rule of its own
    for rule, factor in (("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)):
        assert make(learning_rate=rule).learning_rate_factor(64, 16) == factor
    with refused("learning_rate"):
        make(learning_rate="cubic")


def test_schedules_names_functions_numbers_and_nothing_are_schedules() -> None:
    assert [type(as_schedule(name)) for name in ("noise_scale", "NOISE-scale")] == [NoiseScale] * 2
    schedule = Ramp(64, 1e6)
    assert as_schedule(schedule) is schedule
    function = as_schedule(lambda step, batch_size: 24)
    assert isinstance(function, Function)
    assert function.start(16).batch_size == 24
    for size, initial in ((32, 32), (np.int64(32), 32), (None, None)):  # nothing is left to the training arguments
        constant = as_schedule(size)
        assert isinstance(constant, Constant)
        assert constant.is_constant
        assert (constant.initial, type(constant.initial)) == (initial, type(initial))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("rmap", ValueError),
        ("ramp", ValueError),
        (Ramp, TypeError),
        (0, ValueError),
        *[(given, TypeError) for given in (True, 16.0, b"ramp", [16], {"ramp": 1})],
    ],
)
def test_anything_else_is_refused(given: Any, error: type[Exception]) -> None:
    with refused("batch_size", kind=error):
        as_schedule(given)
