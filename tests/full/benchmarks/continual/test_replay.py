import numpy as np
import pytest

from benchmarks.continual.replay.kept import evenness, kept_by_biased, kept_by_buffer
from benchmarks.continual.replay.rates import SELECTIONS, insert_turn
from benchmarks.continual.replay.subjects import BLOCK, OFFERED, STEP_SIZE, WARM, Setting, Subject
from benchmarks.continual.replay.turns import compared


class TestSubjects:
    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_blocks_do_the_same_work_again_and_again(self, selection: str) -> None:
        kept = {}
        for setting in (Setting(1_000, 1), Setting(1_000, 10), Setting(4_000, 1)):
            subject = Subject(selection, setting)
            subject.settle()
            before = subject.buffer.num_kept
            for number in range(20):
                assert insert_turn(subject, number) > 0.0
            assert len(subject.buffer) == setting.capacity
            kept[setting] = (subject.buffer.num_kept - before) / (20 * (WARM + BLOCK) * STEP_SIZE)
        assert max(kept.values()) - min(kept.values()) < 0.04, kept
        if selection in ("Reservoir", "KeyedReservoir", "ClassBalanced", "Surprise", "LossAware"):
            assert kept[Setting(1_000, 10)] == pytest.approx(1 / OFFERED, abs=0.04)

    def test_tasks_come_one_after_the_other_in_equal_parts(self) -> None:
        subject = Subject("Reservoir", Setting(1_000, 10))
        subject.fill(1_000)
        tasks = subject.buffer.entries["task"]
        assert np.bincount(tasks).tolist() == [100] * 10
        assert (np.diff(tasks) >= 0).all()
        sample = subject.buffer[999]
        assert sample["input_ids"].nbytes == 1_024


def test_ratios_are_over_one_task_and_the_smallest_capacity() -> None:
    times = {
        Setting(10, 1): [1.0, 2.0],
        Setting(10, 10): [2.0, 4.0],
        Setting(20, 1): [3.0, 6.0],
        Setting(20, 10): [6.0, 12.0],
        Setting(10, 1, copy=1): [1.0, 2.0],
    }
    medians = {name: ratio["median"] for name, ratio in compared(times).items()}
    assert medians == {"10 tasks / 1, 10 slots": 2, "10 tasks / 1, 20 slots": 2, "20 slots / 10": 3, "again": 1}


class TestKept:
    def test_the_test_finds_the_biased_reservoir_and_nothing_in_ours(self) -> None:
        ours = evenness(lambda seed: kept_by_buffer("Reservoir", 5, 20, seed), 5, 20, 2_000)
        biased = evenness(lambda seed: kept_by_biased(5, 20, seed), 5, 20, 2_000)
        assert ours["p_value"] > 1e-3
        assert biased["p_value"] < 1e-6
        assert biased["first"] < 0.95
