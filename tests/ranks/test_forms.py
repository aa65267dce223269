"""Streams with heads of their own on two ranks: as on one, and all ranks end together."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mixer.forms import NAMES
from tests.ranks.warm import launch_warm
from tests.ranks.workers.forms_worker import TIMINGS, evaluated, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms")
    launch_warm("forms_worker.py", path)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"results-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(
    ("name", "batch_size", "micro", "options"),
    [
        ("unequal", 14, 64, {}),
        ("parts", 14, 2, {}),
        ("lonely", 3, 64, {}),  # fewer samples than tasks: some ranks have none of a task
        ("conflict", 14, 64, {"conflict": "pcgrad"}),
    ],
)
def test_the_gradient_is_that_of_one_process(
    folder: Path, tmp_path: Path, name: str, batch_size: int, micro: int, options: dict[str, Any]
) -> None:
    single, expected = train(tmp_path, batch_size, micro, **options)
    assert expected.abs().amax(dim=1).min() > 1e-3
    assert len(expected) == TIMINGS
    logs = [entry for entry in single.state.log_history if "loss" in entry]
    for rank in range(2):
        found = torch.load(folder / f"{name}-{rank}.pt")
        torch.testing.assert_close(found["gradients"], expected, rtol=0, atol=1e-10)
        for mine, theirs in zip([entry for entry in found["log"] if "loss" in entry], logs, strict=True):
            keys = {key for key in theirs if key.startswith(("loss", "count"))}
            assert keys == {key for key in mine if key.startswith(("loss", "count"))}
            assert {key: mine[key] for key in keys} == pytest.approx({key: theirs[key] for key in keys}, rel=1e-5)


def test_each_set_is_evaluated_by_its_head(results: list[dict[str, Any]], tmp_path: Path) -> None:
    expected = evaluated(tmp_path)
    keys = [f"eval_{name}_loss" for name in NAMES] + ["eval_loss", "eval_worst_loss"]
    for result in results:
        found = [result["evaluated"]["sets"][key] for key in keys]
        assert found == pytest.approx([expected["sets"][key] for key in keys], rel=1e-5)
        # Of rows without a length the Trainer scores those of the first rank alone.
        own = [result["evaluated"]["iterable"][key] for key in keys]
        assert own == [results[0]["evaluated"]["iterable"][key] for key in keys]
        assert min(own) > 0.1
        shape, loss = result["evaluated"]["predictions"]
        assert shape == [8, 1]
        assert loss == pytest.approx(expected["predictions"][1], rel=1e-5)


def test_labels_that_are_wrong_on_one_rank_end_both(results: list[dict[str, Any]]) -> None:
    message = "Stream 'topic': it has the label"
    assert results[1]["labels"].startswith(f"ValueError: {message}")
    assert results[0]["labels"].startswith(f"RemoteError: rank 1 failed: ValueError: {message}")


def test_ranks_that_would_wait_for_unused_heads_are_refused(results: list[dict[str, Any]]) -> None:
    for result in results:
        told, by_arguments, by_model, found = result["unused"]
        assert (
            "ddp_find_unused_parameters=False: the heads of streams that a step does not draw have no gradients" in told
        )
        for message in (by_arguments, by_model):
            assert "ddp_find_unused_parameters=None, which gradient checkpointing makes False" in message
        assert found == "no error"


def test_no_thread_of_the_group_is_left(results: list[dict[str, Any]]) -> None:
    for result in results:
        if not result["before"]:
            pytest.skip("The names of gloo's threads are not told here.")
        assert result["after"] == []
