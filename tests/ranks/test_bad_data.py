"""Broken samples, nonsense decisions and errors of one rank, on two ranks: the same on both, and no hang."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer import Ledger
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer.test_skipping import Broken, train
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm, run_warm

SCENARIOS = ("skipped", "too_many", "nonsense", "collator")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("bad-data")
    launch_warm("bad_data_worker.py", path, *SCENARIOS)
    return results_of(path, "results")


def test_two_ranks_leave_out_what_one_does(results: list[dict[str, Any]], tmp_path: Path) -> None:
    single = train(tmp_path, {"a": Tokens(20, 1), "b": Broken(12, 2)})
    own = weights_of(single.model).numpy()
    for result in results:
        for name, found in result["skipped"].items():
            assert found["skipped"][1] > 0
            if name != "by_stream":  # of another policy
                assert found["skipped"] == single.mixing.skipped.tolist()
                np.testing.assert_allclose(found["weights"], own, rtol=0, atol=1e-5)
    assert results[0]["skipped"] == results[1]["skipped"]


def test_too_many_end_the_run_on_both(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["too_many"].startswith("TooManyBrokenError: Too many samples could not be loaded: 10 of")
        assert "of stream 'b'" in result["too_many"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", ["mixing function at step 2", "None"]),
        ("raises", ["no idea", "Raised by the policy Function at step 2"]),
        ("size none", ["batch-size function at step 2", "got None"]),
        ("size raises", ["no idea", "The batch-size function raised this at step 2"]),
        ("size huge", ["batch_size: Function at step 2 asks for 1e+12 samples"]),
    ],
)
def test_nonsense_on_one_rank_is_told_on_both(results: list[dict[str, Any]], name: str, told: list[str]) -> None:
    own, other = (result["nonsense"][name] for result in reversed(results))
    assert other.startswith("RemoteError: rank 1 failed: ")
    assert all(part in other for part in told)
    assert not own.startswith("RemoteError")


def test_a_collator_that_fails_on_one_rank_is_told_on_both_with_its_samples(results: list[dict[str, Any]]) -> None:
    assert results[0]["collator"].startswith("RemoteError: rank 1 failed: ValueError: cannot pad.")
    assert "micro-batch 0 of step 1" in results[0]["collator"]
    assert "Its samples: stream 'a': samples" in results[0]["collator"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("callback", ["ValueError: callback broke"]),
        (
            "long",
            [
                "In a micro-batch",
                "Longer than the model's 32 positions: stream 'b': samples 7",
            ],
        ),
    ],
)
def test_an_error_in_the_midst_of_a_step_is_told_on_both(name: str, told: list[str], tmp_path: Path) -> None:
    run_warm("bad_data_worker.py", tmp_path, "alone", name)
    messages = sorted((tmp_path / f"{name}-{rank}.txt").read_text() for rank in range(2))
    assert [message.startswith("RemoteError: rank") for message in messages].count(True) == 1
    assert Ledger(tmp_path / "ledger").to_pandas()["step"].max() >= 2  # what was trained until then is kept
    remote = next(message for message in messages if message.startswith("RemoteError"))
    assert all(part in remote for part in told)
