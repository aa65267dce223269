from pathlib import Path

import numpy as np

from mixer.ledger.ledger import Ledger
from tests.mixer.made_measurements import measured

NAMES = ("math", "code")
COLUMNS = ["step", "stream", "weight", "count", "items", "loss", "tokens", "seen", "unique", "coverage", "epoch"]
COLUMNS += ["staleness", "undelivered", "policy_weight", "loss_weight", "owed", "active", "skipped", "labels"]
SECONDS = {"load_seconds": 0.5, "train_seconds": 1.5, "probe_seconds": 0.25}


def columns_of(step: int) -> dict[str, np.ndarray]:
    floats = {name: np.array([step / 3, np.nan]) for name in ("weight", "loss", "coverage", "epoch")}
    names = ("count", "items", "tokens", "seen", "unique", "staleness", "undelivered", "skipped")
    whole = {name: np.array([step, 2 * step]) for name in names}
    decided = {name: np.array([step / 4, 1.0]) for name in ("policy_weight", "loss_weight", "owed")}
    return {**floats, **whole, **decided, "active": np.array([True, False])}


def record(ledger: Ledger, *steps: int) -> None:
    for step in steps:
        ledger.record_streams(step, NAMES, columns_of(step))
        ledger.record_timings(step=step, total=8, micro_batches=2, hits=1, misses=0, **SECONDS)
        ledger.record_gradients(step, (*NAMES, "chat"), measured(seed=step))


def started(folder: Path, resume_step: int | None = None) -> Ledger:
    ledger = Ledger(folder, is_writer=True)
    ledger.begin(resume_step, {"streams": list(NAMES)})
    return ledger


def steps_of(ledger: Ledger) -> list[int]:
    return ledger.to_pandas()["step"].tolist()[:: len(NAMES)]


class TestRecords:
    def test_there_is_a_row_per_step_and_stream_and_timings_stand_in_a_table_of_their_own(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        assert list(ledger.to_pandas().columns) == COLUMNS
        for table in ("gradients", "cosines"):  # as of a version without them
            assert not (ledger.folder / table).exists()
            assert getattr(ledger, table)().empty
        record(ledger, 1, 2)
        frame = ledger.to_pandas()
        assert list(frame.columns) == COLUMNS
        assert frame[["step", "stream", "seen"]].values.tolist() == [
            [step, name, step * place] for step in (1, 2) for place, name in enumerate(NAMES, 1)
        ]
        assert frame["weight"].tolist()[::2] == [1 / 3, 2 / 3]
        assert frame["loss"].isna().tolist() == [False, True] * 2
        timed = {"step": 1, "total": 8, "micro_batches": 2, "hits": 1, "misses": 0, **SECONDS}
        assert ledger.timings().to_dict("records")[0] == timed

    def test_metrics_stand_beside_the_losses_and_those_after_a_checkpoint_go(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_evaluation(5, {"math": 1.5}, {"math": {"f1": 0.5, "size": 3.0}})
        assert ledger.num_evaluations(5) == (1, 2)
        ledger.record_evaluation(5, {"math": 1.25, "code": 2.5}, {"code": {"f1": 0.25}})
        assert ledger.num_evaluations(5) == (3, 3)
        assert ledger.metrics()["value"].tolist() == [0.5, 3.0, 0.25]
        ledger.begin(5, {}, 1, 2)
        assert ledger.num_evaluations(5) == (1, 2)
        assert ledger.evaluations().to_dict("list") == {"step": [5], "stream": ["math"], "loss": [1.5]}
        expected = {"step": [5, 5], "stream": ["math"] * 2, "metric": ["f1", "size"], "value": [0.5, 3.0]}
        assert ledger.metrics().to_dict("list") == expected
        ledger.finish()
        ledger.record_evaluation(5, {"held out": 2.5})  # after the end of the run
        assert ledger.evaluations()["stream"].tolist() == ["math", "held out"]

    def test_memories_are_told_by_source_and_by_class_and_the_last_of_a_step_counts(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_memory(5, "memory", {"math": 2, "code": 0}, {3: 1, 7: 1})
        ledger.record_memory(5, "other", {"code": 4})
        ledger.record_memory(5, "memory", {"math": 1, "code": 3}, {3: 0, 7: 1, 8: 3})
        held = [[5, "other", "code", 4], [5, "memory", "math", 1], [5, "memory", "code", 3]]
        for _ in range(2):  # in memory, then on disk
            assert ledger.memories().values.tolist() == held
            classes = ledger.memory_classes().values.tolist()
            assert classes == [[5, "memory", 3, 0], [5, "memory", 7, 1], [5, "memory", 8, 3]]
            ledger.finish()

    def test_cosines_are_those_of_the_statistics_a_row_a_pair(self, tmp_path: Path) -> None:
        ledger, names = started(tmp_path / "ledger"), ("math", "code", "chat")
        measurements = [measured(seed=0), measured(seed=1, missing=(1,))]
        for step, statistics in zip((5, 10), measurements, strict=True):
            ledger.record_gradients(step, names, statistics)
        ledger.record_gradients(15, names[:1], measured(1))  # no pair
        ledger.record_gradients(20, (*names, "web"), measured(4))  # streams may come
        frame = ledger.cosines()
        assert frame["step"].tolist() == [5] * 3 + [10] * 3 + [20] * 6
        pairs = [["math", "code"], ["math", "chat"], ["code", "chat"]]
        assert frame[["stream", "other"]].iloc[:6].to_numpy().tolist() == pairs * 2
        expected = [statistics.cosines[pair] for statistics in measurements for pair in ((0, 1), (0, 2), (1, 2))]
        np.testing.assert_array_equal(frame["cosine"].iloc[:6], expected)
        assert frame["cosine"].isna().sum() == 2


def test_a_resumed_run_has_what_an_unbroken_one_has_and_only_the_writer_writes(tmp_path: Path) -> None:
    record(whole := started(tmp_path / "whole"), *range(1, 9))
    record(broken := started(tmp_path / "broken"), *range(1, 7))
    reader = Ledger(tmp_path / "broken")
    broken.flush()
    reader.begin(None, {})
    assert steps_of(reader) == [1, 2, 3, 4, 5, 6]  # another process reads while the run goes on
    record(resumed := started(tmp_path / "broken", resume_step=4), *range(5, 9))
    for table in ("to_pandas", "timings", "gradients", "cosines"):
        found, expected = getattr(resumed, table)(), getattr(whole, table)()
        lists = {name: str for name in ("gram", "gram_error") if name in found}
        assert found.astype(lists).equals(expected.astype(lists))
        assert len(found) > 0
    other = Ledger(tmp_path / "other", is_writer=False)
    other.begin(None, {})
    record(other, 1)
    other.record_evaluation(1, {"math": 1.0})
    other.flush()
    other.finish()
    assert not (tmp_path / "other").exists()


def test_a_new_run_keeps_the_old_ledgers_beside_its_own(tmp_path: Path) -> None:
    for last in (1, 2, 3):
        ledger = started(tmp_path / "ledger")
        record(ledger, *range(1, last + 1))
        ledger.finish()
    ledger.begin(None, {})  # of the same process
    record(ledger, 1)
    assert steps_of(ledger) == [1]
    old = [steps_of(Ledger(tmp_path / f"ledger-{number}")) for number in (1, 2, 3)]
    assert old == [[1], [1, 2], [1, 2, 3]]
