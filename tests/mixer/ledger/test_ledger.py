import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mixer.ledger.ledger import FORMAT_VERSION, Ledger
from mixer.policies.gradient_statistics import GradientStatistics
from tests.mixer.measurements import measured

NAMES = ("math", "code")
COLUMNS = ["step", "stream", "weight", "count", "items", "loss", "tokens", "seen", "unique", "coverage", "epoch"]


def columns_of(step: int) -> dict[str, np.ndarray]:
    floats = {name: np.array([step / 3, np.nan]) for name in ("weight", "loss", "coverage", "epoch")}
    names = ("count", "items", "tokens", "seen", "unique", "staleness", "undelivered", "skipped")
    whole = {name: np.array([step, 2 * step]) for name in names}
    decided = {name: np.array([step / 4, 1.0]) for name in ("policy_weight", "loss_weight", "owed")}
    return {**floats, **whole, **decided, "active": np.array([True, False])}


def record(ledger: Ledger, *steps: int) -> None:
    for step in steps:
        ledger.record_streams(step, NAMES, columns_of(step))
        seconds = {"load_seconds": 0.5, "train_seconds": 1.5, "probe_seconds": 0.25}
        ledger.record_timings(step=step, total=8, micro_batches=2, hits=1, misses=0, **seconds)


def started(folder: Path, resume_step: int | None = None) -> Ledger:
    ledger = Ledger(folder, is_writer=True)
    ledger.begin(resume_step, {"streams": list(NAMES)})
    return ledger


def steps_of(ledger: Ledger) -> list[int]:
    return ledger.to_pandas()["step"].tolist()[:: len(NAMES)]


class TestRecords:
    def test_there_is_a_row_per_step_and_stream(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1, 2)
        frame = ledger.to_pandas()
        assert list(frame.columns) == [
            *COLUMNS,
            "staleness",
            "undelivered",
            "policy_weight",
            "loss_weight",
            "owed",
            "active",
            "skipped",
        ]
        assert frame["step"].tolist() == [1, 1, 2, 2]
        assert frame["stream"].tolist() == [*NAMES, *NAMES]
        assert frame["seen"].tolist() == [1, 2, 2, 4]
        assert frame["weight"].tolist()[::2] == [1 / 3, 2 / 3]
        assert frame["loss"].isna().tolist() == [False, True] * 2

    def test_timings_stand_in_a_table_of_their_own(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1)
        assert ledger.timings().to_dict("records") == [
            {
                "step": 1,
                "total": 8,
                "micro_batches": 2,
                "hits": 1,
                "misses": 0,
                "load_seconds": 0.5,
                "train_seconds": 1.5,
                "probe_seconds": 0.25,
            }
        ]
        assert not [name for name in ledger.to_pandas().columns if "second" in name]

    def test_evaluations(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_evaluation(10, {"math": 1.5, "code": 2.5})
        ledger.record_evaluation(20, {})
        assert ledger.evaluations().to_dict("list") == {"step": [10, 10], "stream": [*NAMES], "loss": [1.5, 2.5]}

    def test_metrics_stand_beside_the_losses_and_those_after_a_checkpoint_go(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_evaluation(5, {"math": 1.5}, {"math": {"f1": 0.5, "size": 3.0}})
        assert ledger.num_evaluations(5) == (1, 2)
        ledger.record_evaluation(5, {"math": 1.25, "code": 2.5}, {"code": {"f1": 0.25}})
        assert ledger.num_evaluations(5) == (3, 3)
        assert ledger.metrics()["value"].tolist() == [0.5, 3.0, 0.25]
        ledger.begin(5, {}, 1, 2)
        assert ledger.num_evaluations(5) == (1, 2)
        assert ledger.evaluations()["loss"].tolist() == [1.5]
        expected = {"step": [5, 5], "stream": ["math"] * 2, "metric": ["f1", "size"], "value": [0.5, 3.0]}
        assert ledger.metrics().to_dict("list") == expected

    def test_a_second_evaluation_after_the_end_of_the_run_is_kept(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_evaluation(10, {"math": 1.5})
        ledger.finish()
        ledger.record_evaluation(10, {"held out": 2.5})
        assert ledger.evaluations()["stream"].tolist() == ["math", "held out"]

    def test_memories_are_told_by_source_and_by_class_and_the_last_of_a_step_counts(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        ledger.record_memory(5, "memory", {"math": 2, "code": 0}, {3: 1, 7: 1})
        ledger.record_memory(5, "other", {"code": 4})
        ledger.record_memory(5, "memory", {"math": 1, "code": 3}, {3: 0, 7: 1, 8: 3})
        for _ in range(2):  # in memory, then on disk
            memories, classes = ledger.memories(), ledger.memory_classes()
            assert memories.values.tolist() == [
                [5, "other", "code", 4],
                [5, "memory", "math", 1],
                [5, "memory", "code", 3],
            ]
            assert classes.values.tolist() == [[5, "memory", 3, 0], [5, "memory", 7, 1], [5, "memory", 8, 3]]
            ledger.finish()

    def test_an_empty_ledger_has_its_columns(self, tmp_path: Path) -> None:
        frame = Ledger(tmp_path / "none").to_pandas()
        assert list(frame.columns) == [
            *COLUMNS,
            "staleness",
            "undelivered",
            "policy_weight",
            "loss_weight",
            "owed",
            "active",
            "skipped",
        ]
        assert frame.empty

    def test_the_same_run_writes_the_same_rows(self, tmp_path: Path) -> None:
        frames = []
        for name in ("first", "second"):
            ledger = started(tmp_path / name)
            record(ledger, *range(1, 30))
            ledger.finish()
            frames.append(ledger.to_pandas())
        assert frames[0].equals(frames[1])


class TestComparisons:
    @given(data=st.data(), num_streams=st.integers(1, 5), ending=st.sampled_from(["flush", "finish"]))
    def test_every_number_comes_back_to_the_bit(self, tmp_path_factory, data, num_streams: int, ending: str) -> None:
        columns = {
            name: data.draw(arrays.arrays(np.float64, num_streams))
            for name in data.draw(st.sets(st.sampled_from(["excess_loss", "loss_after"]), min_size=1))
        }
        names = tuple(f"stream {place}" for place in range(num_streams))
        ledger = started(tmp_path_factory.mktemp("run") / "ledger")
        ledger.record_comparisons(7, names, columns)
        getattr(ledger, ending)()
        frame = Ledger(ledger.folder).comparisons()
        assert list(frame.columns) == ["step", "stream", "excess_loss", "loss_after"]
        assert frame["step"].tolist() == [7] * num_streams
        assert frame["stream"].tolist() == list(names)
        for name in ("excess_loss", "loss_after"):
            np.testing.assert_array_equal(frame[name], columns.get(name, np.full(num_streams, np.nan)))

    def test_a_ledger_of_before_there_were_any_is_read_and_gone_on_with(self, tmp_path: Path) -> None:
        old = started(tmp_path / "ledger")
        record(old, 1, 2)
        old.finish()
        assert not (old.folder / "comparisons").exists()
        assert list(old.comparisons().columns) == ["step", "stream", "excess_loss", "loss_after"]
        assert old.comparisons().empty
        resumed = started(tmp_path / "ledger", resume_step=1)
        resumed.record_comparisons(2, NAMES, {"loss_after": np.array([1.0, np.nan])})
        resumed.finish()
        assert Ledger(tmp_path / "ledger").comparisons()["step"].tolist() == [2, 2]

    def test_a_resumed_run_has_what_an_unbroken_one_has(self, tmp_path: Path) -> None:
        def compare(ledger: Ledger, *steps: int) -> None:
            for step in steps:
                ledger.record_comparisons(step, NAMES, {"excess_loss": np.array([step / 3, np.nan])})

        compare(whole := started(tmp_path / "whole"), 1, 2, 3, 4)
        compare(broken := started(tmp_path / "broken"), 1, 2, 3)
        broken.flush()
        compare(resumed := started(tmp_path / "broken", resume_step=2), 3, 4)
        assert resumed.comparisons().equals(whole.comparisons())

    def test_only_the_writer_writes_them(self, tmp_path: Path) -> None:
        Ledger(tmp_path / "ledger").record_comparisons(1, NAMES, {"loss_after": np.ones(2)})
        assert not (tmp_path / "ledger").exists()


class TestGradients:
    @given(data=st.data(), num_streams=st.integers(1, 5), ending=st.sampled_from(["flush", "finish"]))
    def test_every_number_comes_back_to_the_bit(self, tmp_path_factory, data, num_streams: int, ending: str) -> None:
        def numbers(*shape: int) -> np.ndarray:
            return data.draw(arrays.arrays(np.float64, shape))

        square = (num_streams, num_streams)
        counts = data.draw(arrays.arrays(np.int64, num_streams))
        vectors = [numbers(num_streams) for _ in range(3)]
        statistics = GradientStatistics(numbers(*square), *vectors[:2], counts, vectors[2], numbers(*square))
        names = tuple(f"stream {place}" for place in range(num_streams))
        ledger = started(tmp_path_factory.mktemp("run") / "ledger")
        ledger.record_gradients(7, names, statistics)
        getattr(ledger, ending)()
        frame = Ledger(ledger.folder).gradients()
        assert frame["step"].tolist() == [7] * num_streams
        assert frame["stream"].tolist() == list(names)
        assert frame["count"].tolist() == counts.tolist()
        for name, vector in zip(("variance", "squared_norm", "share"), vectors, strict=True):
            np.testing.assert_array_equal(frame[name], vector)
        np.testing.assert_array_equal(np.stack(frame["gram"]), statistics.gram)
        np.testing.assert_array_equal(np.stack(frame["gram_error"]), statistics.gram_error)

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

    def test_a_ledger_without_measurements_has_the_columns(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1)
        ledger.finish()
        assert not (ledger.folder / "gradients").exists()
        columns = ["step", "stream", "count", "share", "squared_norm", "variance", "gram", "gram_error"]
        assert list(ledger.gradients().columns) == columns
        assert ledger.gradients().empty
        assert list(ledger.cosines().columns) == ["step", "stream", "other", "cosine"]
        assert ledger.cosines().empty

    def test_a_resumed_run_has_what_an_unbroken_one_has(self, tmp_path: Path) -> None:
        def measure(ledger: Ledger, *steps: int) -> None:
            for step in steps:
                ledger.record_gradients(step, ("math", "code", "chat"), measured(seed=step))

        measure(whole := started(tmp_path / "whole"), 2, 4, 6)
        measure(broken := started(tmp_path / "broken"), 2, 4)
        broken.flush()
        measure(resumed := started(tmp_path / "broken", resume_step=3), 4, 6)
        assert (
            resumed.gradients()
            .astype({"gram": str, "gram_error": str})
            .equals(whole.gradients().astype({"gram": str, "gram_error": str}))
        )
        assert resumed.cosines().equals(whole.cosines())

    def test_only_the_writer_writes_them(self, tmp_path: Path) -> None:
        Ledger(tmp_path / "ledger").record_gradients(1, NAMES, measured(2))
        assert not (tmp_path / "ledger").exists()


class TestProcesses:
    def test_another_process_reads_while_the_run_goes_on(self, tmp_path: Path) -> None:
        ledger, reader = started(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
        record(ledger, 1)
        ledger.flush()
        assert steps_of(reader) == [1]
        record(ledger, 2)
        ledger.finish()
        assert steps_of(reader) == [1, 2]

    def test_only_the_writer_writes(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "ledger")
        ledger.begin(None, {})
        record(ledger, 1)
        ledger.record_evaluation(1, {"math": 1.0})
        ledger.flush()
        ledger.finish()
        assert not (tmp_path / "ledger").exists()

    def test_another_rank_leaves_the_ledger_where_it_is(self, tmp_path: Path) -> None:
        record(writer := started(tmp_path / "ledger"), 1)
        Ledger(tmp_path / "ledger").begin(None, {})
        assert steps_of(writer) == [1]


class TestBegin:
    def test_what_the_run_is_stands_beside_the_tables(self, tmp_path: Path) -> None:
        started(tmp_path / "ledger")
        description = json.loads((tmp_path / "ledger" / "ledger.json").read_text())
        assert description == {"format": FORMAT_VERSION, "streams": ["math", "code"]}

    def test_a_new_run_keeps_the_old_ledgers_beside_its_own(self, tmp_path: Path) -> None:
        for last in (1, 2, 3):
            ledger = started(tmp_path / "ledger")
            record(ledger, *range(1, last + 1))
            ledger.finish()
        assert steps_of(Ledger(tmp_path / "ledger")) == [1, 2, 3]
        assert steps_of(Ledger(tmp_path / "ledger-1")) == [1]
        assert steps_of(Ledger(tmp_path / "ledger-2")) == [1, 2]

    def test_a_second_run_of_the_same_process_begins_anew(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger")
        record(ledger, 1, 2)
        ledger.begin(None, {})
        record(ledger, 1)
        assert steps_of(ledger) == [1]
        assert steps_of(Ledger(tmp_path / "ledger-1")) == [1, 2]

    @pytest.mark.parametrize("ending", ["finish", "flush"])
    def test_a_resumed_run_goes_on_after_its_checkpoint(self, tmp_path: Path, ending: str) -> None:
        crashed = started(tmp_path / "ledger")
        record(crashed, *range(1, 9))
        for step in (3, 6):
            crashed.record_evaluation(step, {"math": 1.0})
        getattr(crashed, ending)()
        resumed = started(tmp_path / "ledger", resume_step=5)
        record(resumed, 6, 7)
        assert steps_of(resumed) == [1, 2, 3, 4, 5, 6, 7]
        assert resumed.timings()["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert resumed.evaluations()["step"].tolist() == [3]
        assert not (tmp_path / "ledger-1").exists()

    def test_resuming_without_a_ledger_begins_one(self, tmp_path: Path) -> None:
        ledger = started(tmp_path / "ledger", resume_step=5)
        record(ledger, 6)
        assert steps_of(ledger) == [6]

    def test_a_resumed_run_writes_what_an_unbroken_one_writes(self, tmp_path: Path) -> None:
        whole = started(tmp_path / "whole")
        record(whole, *range(1, 9))
        broken = started(tmp_path / "broken")
        record(broken, *range(1, 7))
        broken.flush()
        resumed = started(tmp_path / "broken", resume_step=4)
        record(resumed, *range(5, 9))
        assert resumed.to_pandas().equals(whole.to_pandas())
