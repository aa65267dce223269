"""Losses above those of a reference model, and after the step, on two ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mixer.comparing import Watching, build
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("comparing")
    launch_warm("comparing_worker.py", folder)
    return results_of(folder, "comparing")


def _values(numbers: list[Any]) -> Any:
    return np.array([[[float.fromhex(text) for text in values] for values in both] for both in numbers])


@pytest.mark.parametrize("name", ["mixed", "by tokens"])
def test_both_see_what_one_process_sees(results: list[dict[str, Any]], name: str, tmp_path: Path) -> None:
    first, second = (result["observed"][name] for result in results)
    assert first["numbers"] == second["numbers"]
    trainer = build(
        tmp_path, Watching("excess_loss", "loss_after"), args={"max_steps": 6, "per_device_train_batch_size": 64}
    )
    trainer.train()
    alone = np.array([[seen.excess_losses, seen.losses_after] for seen in trainer.mixing.policy.seen])
    np.testing.assert_allclose(_values(first["numbers"]), alone, rtol=0, atol=1e-12)
    assert np.nanmax(alone[:, 0]) > 0.1


@pytest.mark.parametrize("name", ["mixed", "by tokens"])
def test_the_ledger_has_what_both_saw_and_their_logs_are_the_same(results: list[dict[str, Any]], name: str) -> None:
    first, second = (result["observed"][name] for result in results)
    entries, rows = first["compared"]
    assert rows == second["numbers"]
    assert second["compared"] == [entries, None]
    assert len(entries) == 6
    assert all(entry.keys() >= {"excess_loss/a", "loss_after/a"} for entry in entries[:4])


def test_a_rank_without_samples_takes_part(results: list[dict[str, Any]]) -> None:
    assert sum(result["observed"]["mixed"]["paddings"] for result in results) > 0


def test_training_is_the_same_to_the_bit(results: list[dict[str, Any]]) -> None:
    assert [result["same_training"] for result in results] == [True, True]


def test_a_step_that_is_repeated_counts_once(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["repeated"]["cap"] == 2
        whole, halved = (_values(result["repeated"][name]) for name in ("whole", "halved"))
        np.testing.assert_allclose(halved, whole, rtol=0, atol=2e-6)


def test_runs_go_on_from_a_checkpoint_as_if_they_had_never_stopped(results: list[dict[str, Any]]) -> None:
    assert [result["resumed"] for result in results] == [[], []]


def test_what_cannot_be_compared_ends_all_ranks_alike(results: list[dict[str, Any]]) -> None:
    assert results[0]["refused"] == results[1]["refused"]
    own, reference, ranks = results[0]["refused"]
    assert own.startswith("ValueError: The policy needs the loss of each item")
    assert reference.startswith("ValueError: reference_model has no loss on the same items")
    assert ranks.startswith("ValueError: reference_model: its weights are not the same on all ranks")
