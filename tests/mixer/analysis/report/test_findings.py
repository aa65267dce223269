from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mixer.analysis.report.findings import Finding, changed, findings_of
from mixer.analysis.report.findings.finding import combined
from mixer.analysis.report.run import Run
from tests.mixer.analysis.report.runs import BATCH_SIZE, NUM_STEPS, calm_run, cosines


@pytest.fixture
def run() -> Run:
    return calm_run()


def only(run: Run) -> Finding:
    (found,) = findings_of([run])
    assert found.run == run.name
    assert found.text.endswith(".")
    return found


@pytest.mark.parametrize("seed", range(5))
def test_of_a_calm_run_nothing_is_said(seed: int) -> None:
    assert findings_of([calm_run(seed=seed)]) == []


def test_runs_come_one_after_the_other(run: Run) -> None:
    run.timings["load_seconds"] = 1.0
    other = replace(calm_run(), name="other")
    other.timings["load_seconds"] = 1.0
    assert [one.run for one in findings_of([run, calm_run(), other])] == ["run", "other"]


class TestSkipped:
    def test_samples_that_were_left_out_are_told_with_their_share(self, run: Run) -> None:
        for name, rows in run.streams.items():
            rows["skipped"] = 0 if name != "code" else np.arange(len(rows)) // 10
        found = only(run)
        last = run.streams["code"].iloc[-1]
        assert (found.kind, found.streams) == ("skipped", ("code",))
        share = f"{last['skipped'] / last['seen']:.2%}"
        told = f"{int(last['skipped'])} of the {int(last['seen']):,} samples drawn from code ({share})"
        assert found.text == f"Samples could not be loaded and were skipped: {told}."


class TestNotFinite:
    @pytest.mark.parametrize("loss", [np.nan, np.inf])
    def test_a_loss_with_items(self, run: Run, loss: float) -> None:
        run.streams["code"].loc[[9, 20], "loss"] = loss
        found = only(run)
        assert (found.kind, found.streams) == ("not finite", ("code",))
        assert found.text == "The loss was not finite: code in 2 steps, first at step 10."

    def test_a_stream_without_items_has_no_loss(self, run: Run) -> None:
        run.streams["code"].loc[9, ["loss", "items"]] = [np.nan, 0]
        assert findings_of([run]) == []

    def test_an_evaluation(self, run: Run) -> None:
        run.evaluations["chat"].loc[6, "loss"] = np.nan
        assert "chat in 1 evaluation, first at step 240" in only(run).text


class TestStarved:
    def test_a_stream_that_gave_less_than_was_asked_for(self, run: Run) -> None:
        run.streams["code"]["count"] = 5
        message = f"code gave 1,200 samples, but its weights requested {NUM_STEPS * BATCH_SIZE / 3:,.0f}"
        assert only(run).text == f"Far too few samples of a stream were used: {message}."

    def test_what_chance_explains_is_nothing(self, run: Run) -> None:
        for rows in run.streams.values():
            rows["weight"] = 0.0005  # 4 samples asked for
        run.streams["code"]["count"] = 0
        assert findings_of([run]) == []

    def test_samples_on_top_of_a_batch_were_not_asked_of_the_others(self, run: Run) -> None:
        run.clock["total"] = 2 * BATCH_SIZE
        assert findings_of([run]) == []

    def test_a_weight_that_fell_to_next_to_nothing(self, run: Run) -> None:
        weights = np.linspace(1 / 3, 0.0, NUM_STEPS)
        run.streams["code"]["weight"] = weights
        run.streams["code"]["count"] = (BATCH_SIZE * weights).round()
        found = only(run)
        assert (found.kind, found.streams) == ("starved", ("code",))
        assert "code fell from a weight of 0.317 to 0.016" in found.text

    @pytest.mark.parametrize("why", ["schedule", "left"])
    def test_a_weight_that_was_meant_to_fall(self, run: Run, why: str) -> None:
        rows = run.streams["code"]
        rows["weight"] = np.linspace(1 / 3, 0.0, NUM_STEPS)
        rows["count"] = (BATCH_SIZE * rows["weight"]).round()
        if why == "schedule":
            run.description["mixing"] = {"class_path": "Scheduled", "init_args": {}}
        else:
            rows.loc[NUM_STEPS - 1, "active"] = False
        assert findings_of([run]) == []

    def test_a_stream_that_lags_behind_the_mixture(self, run: Run) -> None:
        rows = run.streams["code"]
        rows["passes"] = rows["coverage"] = rows["seen"] / 40_000
        assert "code was covered by 6.0%, while 0.77 epochs of data were used" in only(run).text

    def test_a_stream_that_came_late_does_not(self, run: Run) -> None:
        rows = run.streams["code"]
        rows["passes"] = rows["coverage"] = rows["seen"] / 40_000
        rows.loc[: NUM_STEPS - 60, "active"] = False
        assert findings_of([run]) == []

    def test_a_stream_of_weight_zero_is_meant_not_to_be_used(self, run: Run) -> None:
        run.streams["code"][["weight", "count", "passes", "coverage"]] = 0
        assert findings_of([run]) == []


class TestRepeated:
    def test_many_passes_without_a_cap(self, run: Run) -> None:
        run.streams["chat"]["passes"] *= 10
        found = only(run)
        assert (found.kind, found.streams) == ("over-repeated", ("chat",))
        assert "chat 6.0 times without a cap, in 0.8 epochs of the mixture" in found.text

    @pytest.mark.parametrize("why", ["all", "cap", "memory"])
    def test_passes_that_were_meant(self, run: Run, why: str) -> None:
        run.streams["chat"]["passes"] *= 10
        if why == "all":  # many epochs of everything
            run.clock["epoch"] *= 5
        elif why == "cap":
            run.description["streams"][2]["max_epochs"] = 6
        else:
            run.description["streams"][2]["kind"] = "memory"
        assert findings_of([run]) == []

    def test_passes_beyond_the_cap(self, run: Run) -> None:
        run.streams["chat"]["passes"] *= 4
        run.description["streams"][2]["max_epochs"] = 2
        assert "chat 2.4 times, beyond its cap of 2" in only(run).text


def validation(run: Run, name: str, *losses: float) -> None:
    run.evaluations[name]["loss"] = losses


class TestLearning:
    def test_overfitting(self, run: Run) -> None:
        validation(run, "code", 5.0, 3.0, 2.5, 2.4, 2.5, 2.6, 2.8)
        found = only(run)
        assert (found.kind, found.streams) == ("overfitting", ("code",))
        assert "code from 2.400 at step 120 to 2.800" in found.text

    def test_a_loss_that_rises_while_nothing_is_learned(self, run: Run) -> None:
        validation(run, "code", 5.0, 3.0, 2.5, 2.4, 2.5, 2.6, 2.8)
        run.streams["code"].loc[120:, "loss"] = 3.0
        assert only(run).kind == "getting worse"

    def test_a_stream_that_left_is_said_to_have(self, run: Run) -> None:
        validation(run, "code", 5.0, 3.0, 2.5, 2.4, 2.5, 2.6, 2.8)
        run.streams["code"] = run.streams["code"].iloc[:130].assign(active=np.arange(130) < 120, loss=3.0)
        assert "code after it left from 2.400 at step 120 to 2.800" in only(run).text

    def test_a_set_that_is_no_stream_can_get_worse(self, run: Run) -> None:
        run.evaluations["held out"] = run.evaluations.pop("code")
        validation(run, "held out", 5.0, 3.0, 2.5, 2.4, 2.5, 2.6, 2.8)
        assert (only(run).kind, only(run).streams) == ("getting worse", ("held out",))

    @pytest.mark.parametrize("losses", [(5.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.3), (5.0, 3.0, 2.5, 2.4, 2.3, 2.31, 2.32)])
    def test_one_bad_evaluation_or_a_little_more_is_no_rise(self, run: Run, losses: tuple[float, ...]) -> None:
        validation(run, "code", *losses)
        assert findings_of([run]) == []

    def test_noise_is_no_rise(self, run: Run) -> None:
        step = np.arange(0, 240, 8)
        noisy = 2 + 1 / np.sqrt(step + 1) + np.random.default_rng(0).normal(0.0, 0.2, len(step))
        noisy[-3:] += 0.1
        run.evaluations["code"] = pd.DataFrame({"step": step, "loss": noisy})
        assert [one.kind for one in findings_of([run]) if one.kind != "no longer learning"] == []

    def test_a_validation_loss_that_has_stopped_falling(self, run: Run) -> None:
        validation(run, "code", 5.0, 3.0, 2.5, 2.4, 2.402, 2.399, 2.40)
        found = only(run)
        assert (found.kind, found.streams) == ("no longer learning", ("code",))
        assert (
            "validation loss 2.400 at best in the first half of the evaluations and 2.399 in the second" in found.text
        )

    def test_a_training_loss_counts_where_there_is_no_validation(self, run: Run) -> None:
        del run.evaluations["code"], run.evaluations["chat"]
        run.streams["code"].loc[100:, "loss"] = 2.2 + 0.001 * np.sin(np.arange(NUM_STEPS - 100))
        found = only(run)
        assert (found.kind, found.streams) == ("no longer learning", ("code",))
        assert "training loss 2.200 and then 2.200" in found.text

    def test_noise_may_hide_a_fall(self, run: Run) -> None:
        del run.evaluations["code"]
        run.streams["code"]["loss"] = 2.2 + np.random.default_rng(0).normal(0.0, 0.3, NUM_STEPS)
        assert findings_of([run]) == []

    @pytest.mark.parametrize("why", ["early", "left"])
    def test_who_cannot_learn_yet_or_any_more(self, run: Run, why: str) -> None:
        validation(run, "code", 5.0, 3.0, 2.5, 2.4, 2.4, 2.4, 2.4)
        if why == "early":
            run.clock["progress"] *= 0.1
        else:
            run.streams["code"].loc[NUM_STEPS - 1, "active"] = False
        assert findings_of([run]) == []


class TestConflict:
    def test_a_negative_cosine_beyond_its_noise(self, run: Run) -> None:
        found = only(replace(run, cosines=cosines(-0.3, 0.02)))
        assert (found.kind, found.streams) == ("in conflict", ("stream 0", "stream 1"))
        assert "stream 0 and stream 1, mean cosine -0.30 over 50 measurements" in found.text

    @pytest.mark.parametrize(
        ("mean", "error", "count"), [(-0.3, 0.2, 50), (-0.04, 1e-3, 50), (-0.3, 0.02, 7), (0.3, 0.02, 50)]
    )
    def test_what_noise_explains_or_is_small(self, run: Run, mean: float, error: float, count: int) -> None:
        assert findings_of([replace(run, cosines=cosines(mean, error, count))]) == []

    def test_more_pairs_take_more_to_convince(self, run: Run) -> None:
        assert findings_of([replace(run, cosines=cosines(-0.35, 0.1))])
        assert findings_of([replace(run, cosines=cosines(-0.35, 0.1, num_streams=30))]) == []

    def test_many_pairs_are_counted(self, run: Run) -> None:
        found = only(replace(run, cosines=cosines(-0.5, 0.02, num_streams=4)))
        assert found.text.count("mean cosine") == 3
        assert found.text.endswith("; 3 more.")
        assert len(found.streams) == 4


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
        run.streams["code"].loc[NUM_STEPS - 1, "active"] = False
        run.streams["chat"].loc[0, "active"] = False
        text = changed(run)
        assert text.startswith("the training loss went from 3.")
        assert "the weights ended where they began; the batch size is 32; chat joined the mixture; code left" in text

    @pytest.mark.parametrize("alter", [lambda run: None, lambda run: run.clock.assign(loss=np.nan)])
    def test_a_run_that_has_just_begun(self, run: Run, alter: Callable[[Run], pd.DataFrame | None]) -> None:
        altered = alter(run)
        clock = run.clock if altered is None else altered
        first = {name: rows.iloc[:1] for name, rows in run.streams.items()}
        begun = replace(run, clock=clock.iloc[:1], streams=first, evaluations={}, timings=run.timings.iloc[:1])
        assert changed(begun) == "the weights ended where they began; the batch size is 32."
        assert findings_of([begun]) == []
