"""The comparison with peers: how samples are counted, judged and shown, and small runs of what is always installed."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import contests
from benchmarks.peers.contestants import GRAMIAN, MIXING
from benchmarks.peers.counted import Counter, largest_deviation, realised_shares, repeated_and_lost
from benchmarks.peers.verdicts import judge

RUN = {"seconds": 2.0, "processor_seconds": 1.0, "growth_bytes": 100.0, "loss": 3.0, "deviation": 0.5}


def samples(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


class TestCounted:
    def test_shares_and_the_largest_deviation(self) -> None:
        batches = [samples((0, 0), (0, 1)), samples((1, 0), (1, 1))]
        assert realised_shares(np.concatenate(batches), 3) == [0.5, 0.5, 0.0]
        assert largest_deviation(batches, [0.5, 0.5, 0.0]) == 1.0
        assert largest_deviation(batches, [0.25, 0.5, 0.25]) == 1.5

    def test_only_training_is_counted_and_the_columns_are_taken_out(self) -> None:
        class Inputs(torch.nn.Module):
            def forward(self, **inputs: Any) -> list[str]:
                return sorted(inputs)

        model, counter = Inputs(), Counter()
        counter.attach(model)
        batch = {"input_ids": torch.ones(2), "source": torch.tensor([1, 0]), "row": torch.tensor([5, 6])}
        assert model(**batch) == ["input_ids"]
        with torch.no_grad():
            model(**batch)
        model.eval()
        assert model(**batch) == ["input_ids"]
        assert counter.samples().tolist() == [[1, 5], [0, 6]]
        assert counter.samples(1).shape == (0, 2)

    @given(st.integers(1, 30), st.integers(1, 30), st.data())
    def test_what_came_again_and_what_never_came(self, before: int, after: int, data: st.DataObject) -> None:
        order = samples(*((0, row) for row in range(100)))
        start = data.draw(st.integers(0, 60))
        seen = np.concatenate([order[:before], order[start : start + after]])
        repeated, lost = repeated_and_lost(seen, order)
        both = set(range(before)) & set(range(start, start + after))
        assert repeated == len(both)
        assert lost == len(set(range(before + after)) - set(range(before)) - set(range(start, start + after)))
        assert (repeated == lost == 0) == (start == before)


class TestVerdicts:
    @pytest.mark.parametrize(
        ("trial", "figures", "can", "text"),
        [
            ("weights", {"asked": 0.8, "got": 0.8, "late_steps": 0, "repeated": 0}, True, "at once"),
            ("weights", {"asked": 0.8, "got": 0.2, "late_steps": None, "repeated": 0}, False, "never"),
            ("weights", {"asked": 0.8, "got": 0.62, "late_steps": 13, "repeated": 0}, False, "13 steps late"),
            ("weights", {"asked": 0.8, "got": 0.8, "late_steps": 0, "repeated": 9}, False, "9 samples repeated"),
            ("batch_size", {"asked": 32, "got": 16.0}, False, "16 of 32"),
            ("zero", {"drawn": 0}, True, "0 drawn"),
            ("zero", {"error": "ValueError: no zero weights"}, False, "refused: ValueError"),
            ("resume", {"samples": 1_600, "repeated": 0, "lost": 1}, False, "1 lost of 1,600"),
            ("coverage", {"covered": [1.0, 0.81, 1.0]}, False, "100% / 81% / 100%"),
            ("losses", {"found": ["loss/a"]}, True, "1 in the log"),
        ],
    )
    def test_figures_decide(self, trial: str, figures: dict[str, Any], can: bool, text: str) -> None:
        found = judge(trial, figures)
        assert found[0] is can
        assert text in found[1]


class TestTables:
    def test_who_is_missing_or_failed_is_told(self) -> None:
        missing = {own.name: [RUN] if own.name == "mixer" else None for own in MIXING}
        rows = contests.mixing_rows({"runs": missing, "trials": dict.fromkeys(missing)})
        assert [row[2] for row in rows] == ["not installed"] * 4
        failed = {**missing, "Grain": [{"error": "Bad | worse"}]}
        assert contests.mixing_rows({"runs": failed, "trials": {}})[-1][2] == "failed: Bad / worse"
        assert "needs --data-dir" in contests.continual_rows({"missing": "not run: it needs --data-dir"})[0][2]
        runs = {
            own.name: None if own.package else [{**RUN, "plain_processor_seconds": 0.5, "difference": 1e-7}]
            for own in GRAMIAN
        }
        rows = contests.gramian_rows({"runs": {"mlp": runs}})
        assert [row[2] for row in rows] == ["not installed"] * 2
        assert rows[0][6] == "2.00 of a plain step; error 1e-07"
