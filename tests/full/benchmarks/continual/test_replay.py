import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.continual.replay import memory
from benchmarks.continual.replay.command import main
from benchmarks.continual.replay.kept import BIASED, evenness, kept_by_biased, kept_by_buffer
from benchmarks.continual.replay.rates import SELECTIONS, fill_turn, insert_turn
from benchmarks.continual.replay.steps import AGAIN, NAMES, PLAIN
from benchmarks.continual.replay.storages import RETRIEVALS, STORAGES
from benchmarks.continual.replay.subjects import BLOCK, OFFERED, STEP_SIZE, WARM, Setting, Subject
from benchmarks.continual.replay.tasks import POLICIES
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

    def test_a_full_buffer_is_begun_anew(self) -> None:
        setting = Setting(100, 1)
        subject = Subject("Ring", setting)
        assert fill_turn(subject, setting, 320) > 0.0
        assert len(subject.buffer) < 100


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

    def test_p_values_of_an_even_sample_are_even(self) -> None:
        def even(seed: int) -> np.ndarray:
            return np.random.default_rng(seed).permutation(20)[:5]

        values = [evenness(lambda seed, k=k: even(1_000 * k + seed), 5, 20, 200)["p_value"] for k in range(40)]
        assert 0.3 < np.mean(values) < 0.7
        assert min(values) < 0.3 < 0.7 < max(values)


def test_memory_is_measured_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    memory.main([json.dumps(["Reservoir", "LeastRecent", 5_000, None])])
    assert set(json.loads(capsys.readouterr().out)) == {"filled", "read"}


def test_a_quick_run_measures_all_parts(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    main(["--quick", "--threads", "1", "--folder", str(tmp_path), "--json", str(file)])
    figures = json.loads(file.read_text())
    for own in figures["rates"].values():
        assert set(own) == {"hot", "cold", "filling", "accepted"}
        assert {"again", "10 tasks / 1, 300 slots", "1000 slots / 300"} <= set(own["hot"]["ratio"])
    assert set(figures["storages"]["inserting"]) == set(figures["storages"]["reading"]) == set(STORAGES)
    assert set(figures["storages"]["drawing"]) == set(RETRIEVALS)
    assert set(figures["exemplars"]) == {"Herding", "KCenter"}
    assert len(figures["memory"]["references"]) == 3
    assert [own["entries"] for own in figures["memory"]["disk"].values()] == [2_000, 6_000]
    assert set(figures["kept"]["forms"]) == {"Reservoir", "KeyedReservoir", BIASED}
    replayed = figures["steps"]["replayed"]
    assert replayed[PLAIN] == replayed[AGAIN] == 0.0
    assert list(replayed) == list(NAMES)
    for name in NAMES[2:]:
        assert 0.15 < replayed[name] < 0.27, name  # one begins with an empty buffer
    assert set(figures["steps"]["ratio"]) == set(NAMES) - {PLAIN}
    assert set(figures["tasks"]) == set(POLICIES)
    for name, runs in figures["tasks"].items():
        assert runs[0]["rise"] == pytest.approx(runs[0]["old"] - runs[0]["old_before"]), name
        assert np.isfinite(list(runs[0].values())).all(), name
