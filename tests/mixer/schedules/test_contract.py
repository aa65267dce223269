import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.schedules import (
    AdaBatch,
    BatchDecision,
    BatchObservation,
    Constant,
    CriticalBatchWarmup,
    Function,
    GradientNoise,
    LossChange,
    NoiseScale,
    NormTest,
    Ramp,
    Schedule,
    Seesaw,
    SmoothedLossChange,
    schedule_classes,
)

INITIAL = 16
NUM_STEPS = 24
BOUNDS = {"minimum": 4, "maximum": 200, "granularity": 4, "max_growth": 1.5}

MAKERS: dict[str, Callable[..., Schedule]] = {
    "Constant": Constant,
    "Function": lambda **bounds: Function(lambda step, size: size + step, **bounds),
    "AdaBatch": lambda **bounds: AdaBatch([3, 7, 9], unit="steps", factor=1.7, **bounds),
    "AdaBatch, every": lambda **bounds: AdaBatch(every=0.1, unit="progress", **bounds),
    "AdaBatch, much": lambda **bounds: AdaBatch(every=1e-300, factor=1e300, **bounds),
    "Ramp": lambda **bounds: Ramp(120, 500, unit="samples", **bounds),
    "Ramp, down": lambda **bounds: Ramp(4, 9_000, **bounds),
    "CriticalBatchWarmup": lambda **bounds: CriticalBatchWarmup({900: 32, 4_000: 100}, **bounds),
    "Seesaw": lambda **bounds: Seesaw(**{"maximum": 200, **bounds}),
    "Seesaw, smooth": lambda **bounds: Seesaw(1.5, smooth=True, **{"maximum": 200, **bounds}),
    "LossChange": lambda **bounds: LossChange(3, interval=1, **{"maximum": 200, **bounds}),
    "LossChange, steps": lambda **bounds: LossChange(3, interval=1, unit="steps", **{"maximum": 200, **bounds}),
    "SmoothedLossChange": lambda **bounds: SmoothedLossChange(0.05, 0.7, 2, **{"maximum": 200, **bounds}),
    "SmoothedLossChange, all": lambda **bounds: SmoothedLossChange(
        0.2,
        0.5,
        1,
        unit="epochs",
        on_plateau="shrink",
        otherwise=1.3,
        gradient_norm=True,
        after_warmup=True,
        **{"maximum": 200, **bounds},
    ),
    "NoiseScale": lambda **bounds: NoiseScale(decay=0.5, interval_steps=3, **bounds),
    "NoiseScale, plain": lambda **bounds: NoiseScale(0.3, powers_of_two=False, interval_steps=1, **bounds),
    "NormTest": NormTest,
    "NormTest, smoothed": lambda **bounds: NormTest(0.9, 0.8, **bounds),
}
every_schedule = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@dataclass(frozen=True)
class Shown:
    """What a step shows apart from where the run is."""

    loss: float
    gradient_norm: float
    learning_rate: float
    noise: GradientNoise | None


awkward = st.floats(-1.0, 10.0) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308, -1e308, 1e-300, 5e-324])
noises = st.none() | st.builds(GradientNoise, awkward, awkward)
courses = st.lists(st.builds(Shown, awkward, awkward, awkward, noises), min_size=1, max_size=NUM_STEPS // 2)


def usual_course(num_steps: int = NUM_STEPS, phase: float = 0.0) -> list[Shown]:
    """A warm-up, a cosine, a falling loss that comes to rest, and noise that grows."""
    course = []
    for step in range(1, num_steps + 1):
        share = step / num_steps
        learning_rate = min(step / 4, 0.5 + 0.5 * math.cos(math.pi * share))
        noise = GradientNoise(1.0 - 0.9 * share + 0.2 * math.sin(step + phase), 20.0 + step) if step % 3 else None
        course.append(Shown(math.exp(-9 * share) + 2 + phase, 1.0 + math.exp(-5 * share), learning_rate, noise))
    return course


def observe(shown: Shown, step: int, num_samples: int, batch_size: int) -> BatchObservation:
    return BatchObservation(
        step=step,
        progress=min(1.0, step / NUM_STEPS),
        num_epochs_done=step // 5,
        num_samples=num_samples,
        num_tokens=10 * num_samples,
        batch_size=batch_size,
        loss=shown.loss,
        gradient_norm=shown.gradient_norm,
        learning_rate=shown.learning_rate,
        noise=shown.noise,
    )


class Run:
    """What a trainer does with a schedule: bounds applied, sizes counted."""

    def __init__(self, schedule: Schedule, initial: int = INITIAL):
        self.schedule = schedule
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
            self._take(self.schedule.update(observe(shown, self.step, self.num_samples, self.sizes[-1])))
        return self

    def resumed_by(self, schedule: Schedule, initial: int = INITIAL) -> "Run":
        """The same run gone on by another schedule, which takes up the state through JSON."""
        other = Run(schedule, initial)
        schedule.load_state_dict(json.loads(json.dumps(self.schedule.state_dict(), allow_nan=False)))
        other.step, other.num_samples = self.step, self.num_samples
        other.decisions, other.sizes = list(self.decisions), list(self.sizes)
        return other


def test_every_schedule_stands_under_the_contract() -> None:
    assert {name.partition(",")[0] for name in MAKERS} == set(schedule_classes())


@every_schedule
class TestDecisions:
    @given(course=courses)
    def test_they_are_finite_and_positive_whatever_is_shown(self, make: Callable[..., Schedule], course) -> None:
        for bounds in ({}, BOUNDS):
            run = Run(make(**bounds)).follow([*course, *usual_course(), *course])
            for decision in run.decisions:
                assert math.isfinite(decision.batch_size)
                assert decision.batch_size > 0
                assert decision.learning_rate_factor is None or 0.0 < decision.learning_rate_factor < math.inf
            assert min(run.sizes) >= 1

    @given(course=courses)
    def test_bounds_hold_when_they_are_applied(self, make: Callable[..., Schedule], course) -> None:
        sizes = Run(make(**BOUNDS)).follow([*usual_course(8), *course]).sizes
        assert all(4 <= size <= 200 and size % 4 == 0 for size in sizes)
        assert all(new <= max(1.5 * old, old + 4) for old, new in pairwise(sizes))

    def test_the_run_begins_with_the_initial_size(self, make: Callable[..., Schedule]) -> None:
        assert Run(make(**BOUNDS)).sizes == [INITIAL]

    def test_what_is_not_needed_is_not_looked_at(self, make: Callable[..., Schedule]) -> None:
        needs = make().needs
        assert needs <= {"loss", "gradient_norm", "learning_rate", "tokens", "gradient_noise"}
        hidden = {name: math.nan for name in ("loss", "gradient_norm", "learning_rate") if name not in needs}
        if "gradient_noise" not in needs:
            hidden["noise"] = None
        course = usual_course()
        blind = Run(make()).follow([replace(shown, **hidden) for shown in course])
        assert blind.decisions == Run(make()).follow(course).decisions

    def test_tokens_are_needed_where_they_are_looked_at(self, make: Callable[..., Schedule]) -> None:
        if "tokens" in make().needs:
            return
        one, other = make(), make()
        one.start(INITIAL), other.start(INITIAL)
        for step, shown in enumerate(usual_course(), start=1):
            seen = observe(shown, step, 100 * step, INITIAL)
            assert one.update(seen) == other.update(replace(seen, num_tokens=0))


@every_schedule
class TestState:
    @given(course=courses, cut=st.integers(0, NUM_STEPS))
    def test_saved_at_any_step_it_goes_on_alike(self, make: Callable[..., Schedule], course, cut: int) -> None:
        whole = [*usual_course(6), *course, *usual_course()]
        run = Run(make(**BOUNDS)).follow(whole[:cut])
        resumed = run.resumed_by(make(**BOUNDS))
        assert resumed.schedule.state_dict() == run.schedule.state_dict()
        run.follow(whole[cut:])
        resumed.follow(whole[cut:])
        assert resumed.decisions == run.decisions
        assert resumed.sizes == run.sizes

    def test_resumed_with_another_default_size_it_goes_on_alike(self, make: Callable[..., Schedule]) -> None:
        course = usual_course()
        run = Run(make(**BOUNDS)).follow(course[:9])
        resumed = run.resumed_by(make(**BOUNDS), initial=2 * INITIAL)
        assert resumed.follow(course[9:]).decisions == run.follow(course[9:]).decisions

    def test_saving_changes_nothing_and_the_saved_does_not_change(self, make: Callable[..., Schedule]) -> None:
        watched, course = Run(make()), usual_course()
        for shown in course:
            saved = watched.schedule.state_dict()
            before = json.dumps(saved, allow_nan=False)
            watched.follow([shown])
            assert json.dumps(saved) == before
        assert watched.decisions == Run(make()).follow(course).decisions

    def test_starting_again_forgets_the_earlier_run(self, make: Callable[..., Schedule]) -> None:
        schedule = make()
        Run(schedule, INITIAL + 8).follow(usual_course(9, phase=1.0))
        assert Run(schedule).follow(usual_course()).decisions == Run(make()).follow(usual_course()).decisions

    def test_two_runs_are_the_same(self, make: Callable[..., Schedule]) -> None:
        assert Run(make()).follow(usual_course()).sizes == Run(make()).follow(usual_course()).sizes

    def test_the_state_of_something_else_is_refused(self, make: Callable[..., Schedule]) -> None:
        schedule = make()
        schedule.start(INITIAL)
        with pytest.raises(ValueError, match=f"{schedule.name} remembers .* saved schedule state has"):
            schedule.load_state_dict({"something else": 1})


@every_schedule
class TestBounds:
    def test_they_are_passed_on(self, make: Callable[..., Schedule]) -> None:
        schedule = make(**BOUNDS)
        limits = schedule.limits
        assert (limits.minimum, limits.maximum, limits.granularity, limits.max_growth) == (4, 200, 4, 1.5)

    def test_the_first_size_is_checked_against_them(self, make: Callable[..., Schedule]) -> None:
        if make().name == "Constant":
            assert Constant(16).initial == 16
            return
        assert make(initial=16).initial == 16
        with pytest.raises(ValueError, match="initial=18 is not a batch size within the bounds"):
            make(initial=18, **BOUNDS)

    def test_a_misspelt_bound_is_refused(self, make: Callable[..., Schedule]) -> None:
        with pytest.raises(TypeError, match="minimun"):
            make(minimun=4)

    def test_the_learning_rate_follows_by_rule(self, make: Callable[..., Schedule]) -> None:
        if make().name == "Seesaw":
            with pytest.raises(TypeError, match="learning_rate"):
                make(learning_rate="sqrt")
            return
        assert make(learning_rate="none").learning_rate_factor(64, 16) == 1.0
        assert make(learning_rate="linear").learning_rate_factor(64, 16) == 4.0
        assert make(learning_rate="sqrt").learning_rate_factor(64, 16) == 2.0
        with pytest.raises(ValueError, match="learning_rate must be 'none', 'linear' or 'sqrt', got 'cubic'"):
            make(learning_rate="cubic")


STATELESS = [
    name for name in MAKERS if name.partition(",")[0] in ("AdaBatch", "Ramp", "CriticalBatchWarmup", "Constant")
]


@pytest.mark.parametrize("name", STATELESS)
def test_a_schedule_of_the_position_alone_forgets_how_it_got_there(name: str) -> None:
    at = observe(usual_course()[0], step=8, num_samples=300, batch_size=INITIAL)
    direct, run = MAKERS[name](), Run(MAKERS[name]()).follow(usual_course())
    direct.start(INITIAL)
    assert direct.update(at) == run.schedule.update(at)
