"""What is read of runs, from ledgers written without training."""

from pathlib import Path

import numpy as np

from mixer.ledger.ledger import Ledger
from mixer.tools.analysis.fit.runs import RecordedRuns
from tests.mixer.ledger.writing import record_step
from tests.refusals import refused


def recorded(
    folder: Path,
    counts: dict[str, list[int]],
    evaluations: dict[int, dict[str, float]] | None = None,
    progress: float = 1.0,
    tokens_of_a_sample: tuple[int, ...] = (1, 1),
) -> Path:
    """Writes a run with so many samples a stream and step."""
    ledger = Ledger(folder / "ledger", is_writer=True)
    ledger.begin(None, {})
    steps, rates = len(next(iter(counts.values()))), np.array(tokens_of_a_sample[: len(counts)])
    done = np.zeros(2, dtype=int)
    for step in range(1, steps + 1):
        count = np.array([given[step - 1] for given in counts.values()])
        columns = {"weight": count / count.sum(), "count": count, "items": count, "tokens": count * rates}
        done += count.sum(), (count * rates).sum()
        place = {"step": step, "samples": int(done[0]), "tokens": int(done[1]), "epoch": 1.0}
        clock = {**place, "progress": progress * step / steps}
        record_step(ledger, tuple(counts), clock, {**columns, "loss": np.ones(len(counts))})
    for step, found in (evaluations or {}).items():
        ledger.record_evaluation(step, found)
    ledger.finish()
    return folder


def test_what_was_trained_on_and_the_last_losses_are_read(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", {"a": [3, 3], "b": [1, 1]}, {0: {"a": 9, "b": 9}, 2: {"a": 1.5, "b": 2.5}})
    two = recorded(tmp_path / "two", {"b": [3, 3], "a": [1, 1]}, {2: {"b": 0.5, "a": 3.5}})
    runs = RecordedRuns([one, two])
    assert (runs.runs, runs.streams, runs.loss_names) == (("one", "two"), ("a", "b"), ("a", "b"))
    assert runs.mixtures.tolist() == [[6, 2], [2, 6]]  # by name, whatever the order
    assert runs.losses.tolist() == [[1.5, 2.5], [3.5, 0.5]]
    (note,) = runs.notes
    assert "The recipe of any run was not compared" in note


def test_shares_of_tokens(tmp_path: Path) -> None:
    run = recorded(tmp_path / "one", {"a": [3], "b": [1]}, {1: {"a": 1, "b": 1}}, tokens_of_a_sample=(10, 1))
    assert RecordedRuns([run], "tokens").mixtures.tolist() == [[30, 1]]
    none = recorded(tmp_path / "two", {"a": [3]}, {1: {"a": 1}}, tokens_of_a_sample=(0,))
    with refused("unit"):
        RecordedRuns([none], "tokens")


def test_evaluation_sets_beside_streams_are_losses_too_and_streams_without_are_named(tmp_path: Path) -> None:
    found = {"a": 1.0, "target": 2.0}
    runs = [recorded(tmp_path / name, {"a": [2], "memory": [1]}, {1: found}) for name in ("one", "two")]
    both = RecordedRuns(runs)
    assert both.loss_names == ("a", "target")
    assert both.notes[0] == "No run has a loss of ['memory']: the objective leaves them out."
    other = recorded(tmp_path / "three", {"a": [2], "memory": [1]}, {1: {"a": 1.0, "memory": 1.0}})
    some = RecordedRuns([*runs, other])
    # A stream's loss that only some runs have: the fit refuses and names them.
    assert some.loss_names == ("a", "memory")
    assert np.isnan(some.losses[:2, 1]).all()


def test_runs_of_other_streams_or_budgets_are_refused_by_name(tmp_path: Path) -> None:
    def one(name: str, counts: list[int], at: int, progress: float = 1.0) -> Path:
        return recorded(tmp_path / name, {"a": counts}, {at: {"a": 1.0}}, progress=progress)

    usual = [one(f"run-{number}", [10] * 10, 10) for number in range(3)]
    others = recorded(tmp_path / "others", {"c": [10] * 10}, {10: {"c": 1.0}})
    with refused("runs"):
        RecordedRuns([*usual, others])
    for folder, figure in (
        (one("long", [10] * 12, 12), "long (120)"),
        (one("stopped", [10] * 10, 10, 0.5), "stopped (50%)"),
        (one("early", [10] * 10, 6), "early (60%)"),
    ):
        with refused("runs") as error:
            RecordedRuns([*usual, folder])
        assert figure in str(error.value)
        assert folder.name in RecordedRuns([*usual, folder], allow_different_budgets=True).runs
    RecordedRuns([*usual, one("near", [10] * 9 + [13], 10)])


def test_losses_of_models_that_were_hardly_trained_are_refused(tmp_path: Path) -> None:
    def three(word: str, step: int) -> list[Path]:
        return [recorded(tmp_path / f"{word}-{number}", {"a": [10] * 40}, {step: {"a": 1.0}}) for number in range(3)]

    untrained = three("untrained", 0)
    for is_allowed in (False, True):
        with refused("runs"):
            RecordedRuns(untrained, allow_different_budgets=is_allowed)
    early = three("early", 37)
    with refused("runs"):
        RecordedRuns(early)
    assert RecordedRuns(early, allow_different_budgets=True).runs
    assert RecordedRuns(three("late", 38)).runs


def test_what_is_no_run_or_has_nothing_to_fit_is_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path / "one", {"a": [1]})
    for folders in ([run], [run, tmp_path / "x" / ".." / "one"]):
        with refused("runs"):
            RecordedRuns(folders)
