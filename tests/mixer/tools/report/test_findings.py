from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mixer.policies.objective import Objective
from mixer.tools.records.run import Run
from mixer.tools.report.findings import Finding, findings_of
from tests.mixer.tools.report.runs import BATCH_SIZE, NUM_STEPS, calm_run, cosines

RISING = [5.0, 3.0, 2.5, 2.4, 2.5, 2.6, 2.8]
FLAT = [5.0, 3.0, 2.5, 2.4, 2.4, 2.4, 2.4]
FALLING = np.linspace(1 / 3, 0.0, NUM_STEPS)
LAST, LATE = NUM_STEPS - 1, slice(NUM_STEPS // 2, NUM_STEPS)
ALL = slice(None)
Alter = Callable[[Run], Any]


def put(name: str, column: str, values: Any, rows: Any = ALL) -> Alter:
    """Puts values, or a function of those there are, into the clock, a stream or its evaluations (`eval a`)."""

    def alter(run: Run) -> None:
        table = run.evaluations[name[5:]] if name.startswith("eval ") else vars(run).get(name)
        table = run.streams[name] if table is None else table
        table.loc[rows, column] = values(table[column]) if callable(values) else values

    return alter


def both(*alterations: Alter) -> Alter:
    return lambda run: [alter(run) for alter in alterations]


@pytest.fixture
def run() -> Run:
    return calm_run()


def only(run: Run) -> Finding:
    (found,) = findings_of([run])
    assert (found.run, found.text[-1]) == (run.name, ".")
    return found


def times(name: str, column: str, factor: float) -> Alter:
    return put(name, column, lambda values: factor * values)


def third(**described: Any) -> Alter:
    return lambda run: run.description["streams"][2].update(described)


def without_evaluations(*names: str) -> Alter:
    return lambda run: [run.evaluations.pop(name) for name in names]


def left_early(run: Run) -> None:
    run.streams["code"] = run.streams["code"].iloc[:130].assign(active=np.arange(130) < 120, loss=3.0)


fading = both(put("code", "weight", FALLING), put("code", "count", (BATCH_SIZE * FALLING).round()))
lagging = both(
    *(put("code", column, BATCH_SIZE // 3 * np.arange(1, NUM_STEPS + 1) / 40_000) for column in ("passes", "coverage"))
)
repeated, leaving = times("chat", "passes", 10), put("code", "active", False, LAST)
wave = 2.2 + 0.001 * np.sin(np.arange(NUM_STEPS - 100))
asked = f"its weights requested {NUM_STEPS * BATCH_SIZE / 3:,.0f}."
# How a calm run is altered, and the kind, streams and words of what is then said of it.
SAID: list[tuple[Alter, str, str, str]] = [
    (put("code", "skipped", np.arange(NUM_STEPS) // 10), "skipped", "code", "skipped: 23 of the 2,400 samples drawn"),
    (put("code", "loss", [np.nan, np.inf], [9, 20]), "not finite", "code", "code in 2 steps, first at step 10."),
    (put("eval chat", "loss", np.nan, 6), "not finite", "chat", "chat in 1 evaluation, first at step 240"),
    (put("code", "count", 5), "starved", "code", f"code gave 1,200 samples, but {asked}"),
    (fading, "starved", "code", "code fell from a weight of 0.317 to 0.016"),
    (lagging, "starved", "code", "code has a coverage of 6.0%, after 0.77 epochs of the mixture"),
    (repeated, "over-repeated", "chat", "chat 6.0 times without a cap, in 0.8 epochs of the mixture"),
    (both(repeated, third(max_epochs=2)), "over-repeated", "chat", "chat 6.0 times, beyond its cap of 2"),
    (put("eval code", "loss", RISING), "overfitting", "code", "code from 2.400 at step 120 to 2.800"),
    (both(put("eval code", "loss", RISING), put("code", "loss", 3.0, LATE)), "getting worse", "code", "from 2.400"),
    (both(put("eval code", "loss", RISING), left_early), "getting worse", "code", "code after it left from 2.400 at"),
    (put("eval code", "loss", [*FLAT[:4], 2.402, 2.399, 2.4]), "no longer learning", "code", "2.400 at best in the"),
    (
        both(without_evaluations("code", "chat"), put("code", "loss", wave, slice(100, NUM_STEPS))),
        *("no longer learning", "code", "training loss 2.200 and then 2.200"),
    ),
]


@pytest.mark.parametrize(("alter", "kind", "stream", "words"), SAID)
def test_what_stands_out_is_said(run: Run, alter: Alter, kind: str, stream: str, words: str) -> None:
    alter(run)
    found = only(run)
    assert (found.kind, found.streams) == (kind, [stream])
    assert words in found.text


few = [put(name, "weight", 0.0005) for name in ("math", "code", "chat")]  # 4 samples asked for
noise = 2.2 + np.random.default_rng(0).normal(0.0, 0.3, NUM_STEPS)
# What was meant, or is explained by chance or noise.
NOT_SAID: dict[str, Alter] = {
    "nothing at all": lambda run: None,
    "no items, no loss": both(put("code", "loss", np.nan, 9), put("code", "items", 0, 9)),
    "too few samples to tell": both(*few, put("code", "count", 0)),
    "samples on top of a batch": put("clock", "total", 2 * BATCH_SIZE),
    "a schedule": both(fading, lambda run: run.description.update(mixing={"class_path": "Scheduled"})),
    "a stream that leaves": both(fading, leaving),
    "a stream that came late": both(lagging, put("code", "active", False, slice(0, NUM_STEPS - 60))),
    "a weight of zero": both(*(put("code", column, 0) for column in ("weight", "count", "passes", "coverage"))),
    "many epochs of everything": both(repeated, times("clock", "epoch", 5)),
    "passes within a cap": both(repeated, third(max_epochs=6)),
    "passes over a memory": both(repeated, third(kind="memory")),
    "one bad evaluation": put("eval code", "loss", [5.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.3]),
    "noise in training": both(without_evaluations("code"), put("code", "loss", noise)),
    "too early to learn": both(put("eval code", "loss", FLAT), times("clock", "progress", 0.1)),
    "who left learns no more": both(put("eval code", "loss", FLAT), leaving),
}


@pytest.mark.parametrize("case", NOT_SAID)
def test_what_was_meant_or_chance_explains_is_not(run: Run, case: str) -> None:
    NOT_SAID[case](run)
    assert [found.text for found in findings_of([run])] == []


def test_a_negative_cosine_beyond_its_noise_is_a_conflict(run: Run) -> None:
    found = only(run.but(cosines=cosines(-0.3, 0.02)))
    assert (found.kind, found.streams) == ("in conflict", ["stream 0", "stream 1"])
    assert "stream 0 and stream 1, mean cosine -0.30 over 50 measurements" in found.text
    for mean, error, count in ((-0.3, 0.2, 50), (-0.04, 1e-3, 50), (-0.3, 0.02, 7), (0.3, 0.02, 50)):
        assert findings_of([run.but(cosines=cosines(mean, error, count))]) == []
    # More pairs take more to convince.
    assert findings_of([run.but(cosines=cosines(-0.35, 0.1))])
    assert findings_of([run.but(cosines=cosines(-0.35, 0.1, num_streams=30))]) == []
    many = only(run.but(cosines=cosines(-0.5, 0.02, num_streams=4)))
    assert (many.text.count("mean cosine"), many.text[-9:], len(many.streams)) == (3, "; 3 more.", 4)


def test_a_run_of_one_step_has_no_problems(run: Run) -> None:
    first = {name: rows.iloc[:1] for name, rows in run.streams.items()}
    assert findings_of([run.but(clock=run.clock.iloc[:1], streams=first, timings=run.timings.iloc[:1])]) == []


def test_with_an_objective_only_what_it_names_is_missed(run: Run) -> None:
    put("math", "weight", np.where(np.arange(NUM_STEPS) < 24, 1 / 3, 0.001))(run)
    put("eval math", "loss", RISING)(run)
    put("eval code", "loss", RISING)(run)
    found = {one.kind: one.streams for one in findings_of([run.but(objective=Objective(["code"]))])}
    assert found == {"overfitting": ["code"]}
    assert set(findings_of([run])[0].streams) == {"math"}
