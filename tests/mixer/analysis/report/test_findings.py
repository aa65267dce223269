from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mixer.analysis.report.findings import Finding, changed, findings_of
from mixer.analysis.report.findings.finding import combined
from mixer.analysis.report.run import Run
from tests.mixer.analysis.report.runs import BATCH_SIZE, NUM_STEPS, calm_run, cosines

RISING = [5.0, 3.0, 2.5, 2.4, 2.5, 2.6, 2.8]
FLAT = [5.0, 3.0, 2.5, 2.4, 2.4, 2.4, 2.4]
FALLING = np.linspace(1 / 3, 0.0, NUM_STEPS)
Alter = Callable[[Run], Any]


@pytest.fixture
def run() -> Run:
    return calm_run()


def only(run: Run) -> Finding:
    (found,) = findings_of([run])
    assert found.run == run.name
    assert found.text.endswith(".")
    return found


def put(name: str, **columns: Any) -> Alter:
    """Puts columns into the rows of a stream, or of the clock."""

    def alter(run: Run) -> None:
        rows = run.clock if name == "clock" else run.streams[name]
        rows[list(columns)] = list(columns.values())

    return alter


def evaluated(losses: list[float], name: str = "code") -> Alter:
    return lambda run: run.evaluations[name].__setitem__("loss", losses)


def all_of(*alterations: Alter) -> Alter:
    return lambda run: [alter(run) for alter in alterations]


def scaled(name: str, column: str, factor: float) -> Alter:
    def alter(run: Run) -> None:
        rows = run.clock if name == "clock" else run.streams[name]
        rows[column] = rows[column] * factor

    return alter


def fading(run: Run) -> None:
    run.streams["code"]["weight"] = FALLING
    run.streams["code"]["count"] = (BATCH_SIZE * FALLING).round()


def lagging(run: Run) -> None:
    rows = run.streams["code"]
    rows["passes"] = rows["coverage"] = rows["seen"] / 40_000


def leaves(run: Run) -> None:
    run.streams["code"].loc[NUM_STEPS - 1, "active"] = False


def left_early(run: Run) -> None:
    run.streams["code"] = run.streams["code"].iloc[:130].assign(active=np.arange(130) < 120, loss=3.0)


def no_stream_gets_worse(run: Run) -> None:
    run.evaluations["held out"] = run.evaluations.pop("code")
    evaluated(RISING, "held out")(run)


def skipping(run: Run) -> None:
    run.streams["code"]["skipped"] = np.arange(NUM_STEPS) // 10


def breaking(run: Run) -> None:
    run.streams["code"].loc[[9, 20], "loss"] = [np.nan, np.inf]


def breaking_late(run: Run) -> None:
    run.evaluations["chat"].loc[6, "loss"] = np.nan


def only_training_stands_still(run: Run) -> None:
    del run.evaluations["code"], run.evaluations["chat"]
    run.streams["code"].loc[100:, "loss"] = 2.2 + 0.001 * np.sin(np.arange(NUM_STEPS - 100))


# How a calm run is altered, and the kind, streams and words of what is then said of it.
SAID: dict[str, tuple[Alter, str, str, str]] = {
    "skipped samples": (skipping, "skipped", "code", "were skipped: 23 of the 2,400 samples drawn from code (0.96%)."),
    "a loss that is not finite": (breaking, "not finite", "code", "finite: code in 2 steps, first at step 10."),
    "an evaluation that is not": (breaking_late, "not finite", "chat", "chat in 1 evaluation, first at step 240"),
    "fewer samples than asked for": (
        put("code", count=5),
        *("starved", "code", f"code gave 1,200 samples, but its weights requested {NUM_STEPS * BATCH_SIZE / 3:,.0f}."),
    ),
    "a weight that fell": (fading, "starved", "code", "code fell from a weight of 0.317 to 0.016"),
    "a stream that lags": (lagging, "starved", "code", "code was covered by 6.0%, while 0.77 epochs of data were used"),
    "passes without a cap": (
        scaled("chat", "passes", 10),
        *("over-repeated", "chat", "chat 6.0 times without a cap, in 0.8 epochs of the mixture"),
    ),
    "passes beyond a cap": (
        all_of(scaled("chat", "passes", 4), lambda run: run.description["streams"][2].update(max_epochs=2)),
        *("over-repeated", "chat", "chat 2.4 times, beyond its cap of 2"),
    ),
    "overfitting": (evaluated(RISING), "overfitting", "code", "code from 2.400 at step 120 to 2.800"),
    "a loss that rises while nothing is learned": (
        all_of(evaluated(RISING), lambda run: run.streams["code"].update(pd.DataFrame({"loss": 3.0}, range(120, 240)))),
        *("getting worse", "code", "code from 2.400"),
    ),
    "a stream that left": (
        all_of(evaluated(RISING), left_early),
        *("getting worse", "code", "code after it left from 2.400 at step 120 to 2.800"),
    ),
    "a set that is no stream": (no_stream_gets_worse, "getting worse", "held out", "held out from 2.400"),
    "a validation loss that stands still": (
        evaluated([5.0, 3.0, 2.5, 2.4, 2.402, 2.399, 2.40]),
        *("no longer learning", "code", "loss 2.400 at best in the first half of the evaluations and 2.399 in the"),
    ),
    "a training loss that does": (
        only_training_stands_still,
        *("no longer learning", "code", "training loss 2.200 and then 2.200"),
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_stands_out_is_said(run: Run, case: str) -> None:
    alter, kind, stream, words = SAID[case]
    alter(run)
    found = only(run)
    assert (found.kind, found.streams) == (kind, (stream,))
    assert words in found.text


def noisy_evaluations(run: Run) -> None:
    step = np.arange(0, 240, 8)
    noisy = 2 + 3 / np.sqrt(step + 1) + np.random.default_rng(0).normal(0.0, 0.2, len(step))
    noisy[-3:] += 0.1
    run.evaluations["code"] = pd.DataFrame({"step": step, "loss": noisy})


def noisy_training(run: Run) -> None:
    del run.evaluations["code"]
    run.streams["code"]["loss"] = 2.2 + np.random.default_rng(0).normal(0.0, 0.3, NUM_STEPS)


def too_few_to_tell(run: Run) -> None:
    for rows in run.streams.values():
        rows["weight"] = 0.0005  # 4 samples asked for
    run.streams["code"]["count"] = 0


def no_items(run: Run) -> None:
    run.streams["code"].loc[9, ["loss", "items"]] = [np.nan, 0]


def comes_late(run: Run) -> None:
    run.streams["code"].loc[: NUM_STEPS - 60, "active"] = False


# What was meant, or is explained by chance or noise.
NOT_SAID: dict[str, Alter] = {
    "another seed": lambda run: run.streams.update(calm_run(seed=1).streams),
    "no items, no loss": no_items,
    "too few samples to tell": too_few_to_tell,
    "samples on top of a batch": put("clock", total=2 * BATCH_SIZE),
    "a schedule": all_of(fading, lambda run: run.description.update(mixing={"class_path": "Scheduled"})),
    "a stream that leaves": all_of(fading, leaves),
    "a stream that came late": all_of(lagging, comes_late),
    "a weight of zero": put("code", weight=0.0, count=0, passes=0.0, coverage=0.0),
    "many epochs of everything": all_of(scaled("chat", "passes", 10), scaled("clock", "epoch", 5)),
    "passes within a cap": all_of(
        scaled("chat", "passes", 10), lambda run: run.description["streams"][2].update(max_epochs=6)
    ),
    "passes over a memory": all_of(
        scaled("chat", "passes", 10), lambda run: run.description["streams"][2].update(kind="memory")
    ),
    "one bad evaluation": evaluated([5.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.3]),
    "a little more": evaluated([5.0, 3.0, 2.5, 2.4, 2.3, 2.31, 2.32]),
    "noise in evaluations": noisy_evaluations,
    "noise in training": noisy_training,
    "too early to learn": all_of(evaluated(FLAT), scaled("clock", "progress", 0.1)),
    "who left learns no more": all_of(evaluated(FLAT), leaves),
}


@pytest.mark.parametrize("case", NOT_SAID)
def test_what_was_meant_or_chance_explains_is_not(run: Run, case: str) -> None:
    NOT_SAID[case](run)
    found = findings_of([run])
    assert [one.text for one in found if (case, one.kind) != ("noise in evaluations", "no longer learning")] == []


def test_runs_come_one_after_the_other(run: Run) -> None:
    other = replace(calm_run(), name="other")
    for one in (run, other):
        one.timings["load_seconds"] = 1.0
    assert [one.run for one in findings_of([run, calm_run(), other])] == ["run", "other"]


def test_a_negative_cosine_beyond_its_noise_is_a_conflict(run: Run) -> None:
    found = only(replace(run, cosines=cosines(-0.3, 0.02)))
    assert (found.kind, found.streams) == ("in conflict", ("stream 0", "stream 1"))
    assert "stream 0 and stream 1, mean cosine -0.30 over 50 measurements" in found.text
    for mean, error, count in ((-0.3, 0.2, 50), (-0.04, 1e-3, 50), (-0.3, 0.02, 7), (0.3, 0.02, 50)):
        assert findings_of([replace(run, cosines=cosines(mean, error, count))]) == []
    # More pairs take more to convince.
    assert findings_of([replace(run, cosines=cosines(-0.35, 0.1))])
    assert findings_of([replace(run, cosines=cosines(-0.35, 0.1, num_streams=30))]) == []
    many = only(replace(run, cosines=cosines(-0.5, 0.02, num_streams=4)))
    assert many.text.count("mean cosine") == 3
    assert many.text.endswith("; 3 more.")
    assert len(many.streams) == 4


@pytest.mark.parametrize(
    ("kind", "columns", "text"),
    [
        ("loading-bound", {"load_seconds": 0.5}, "50% of the time of steps went into loading"),
        ("prefetch misses", {"hits": 3, "misses": 1}, "25% of the samples were not prefetched in time"),
        ("costly measuring", {"probe_seconds": 0.17}, "25% of the time of steps went into measuring gradients"),
    ],
)
def test_time_that_is_lost(run: Run, kind: str, columns: dict[str, float], text: str) -> None:
    run.timings.loc[0, list(columns)] = 1000.0  # while everything warms up
    assert findings_of([run]) == []
    for name, value in columns.items():
        run.timings[name] = value
    assert only(run).kind == kind
    assert text in only(run).text


def test_the_worst_streams_are_named_and_the_others_counted() -> None:
    four, five = ({(str(number),): f"of {number}" for number in range(count)} for count in (4, 5))
    for told, text in ((four, "So: of 0; of 1; of 2; of 3."), (five, "So: of 0; of 1; of 2; 2 more.")):
        found = combined("kind", "run", "So: ", told)
        assert (found.text, found.streams) == (text, tuple(name for (name,) in told))


class TestChanged:
    def test_losses_weights_and_batch_size(self, run: Run) -> None:
        run.streams["code"]["weight"] = np.linspace(1 / 3, 0.5, NUM_STEPS)
        run.clock["batch_size"] = np.arange(NUM_STEPS) + 1
        assert changed(run) == (
            "the validation loss, averaged over 3 sets, went from 5.000 to 2.193; the weight of code moved most, from "
            "0.333 to 0.500; the batch size went from 1 to 240."
        )

    def test_a_weight_that_went_up_and_down(self, run: Run) -> None:
        run.streams["math"]["weight"] = 1 / 3 + 0.5 * np.sin(np.pi * np.linspace(0.0, 1.0, NUM_STEPS)).round(6)
        run.streams["code"]["weight"] = np.linspace(1 / 3, 0.4, NUM_STEPS)
        assert "the weight of math moved most, from 0.333 to 0.333 (between 0.333 and 0.833)" in changed(run)

    def test_what_stayed_and_who_came_and_went(self, run: Run) -> None:
        run.evaluations.clear()
        leaves(run)
        run.streams["chat"].loc[0, "active"] = False
        text = changed(run)
        assert text.startswith("the training loss went from 3.")
        assert "the weights ended where they began; the batch size is 32; chat joined the mixture; code left" in text

    @pytest.mark.parametrize("loss", [5.0, np.nan])
    def test_a_run_that_has_just_begun(self, run: Run, loss: float) -> None:
        first = {name: rows.iloc[:1] for name, rows in run.streams.items()}
        clock = run.clock.iloc[:1].assign(loss=loss)
        begun = replace(run, clock=clock, streams=first, evaluations={}, timings=run.timings.iloc[:1])
        assert changed(begun) == "the weights ended where they began; the batch size is 32."
        assert findings_of([begun]) == []
