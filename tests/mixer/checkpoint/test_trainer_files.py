"""Which file it was that the Trainer could not read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mixer.checkpoint.trainer_files import check_trainer_state, find_unreadable
from tests.refusals import refused


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.save({"state": torch.zeros(3)}, tmp_path / "optimizer.pt")
    torch.save({"last": 3}, tmp_path / "scheduler.pt")
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    (tmp_path / "training_args.bin").write_bytes(b"is never read")
    return tmp_path


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "model.safetensors", "trainer_state.json"])
@pytest.mark.parametrize("num_bytes", [0, 10])
def test_a_torn_file_is_named(name: str, num_bytes: int, checkpoint: Path) -> None:
    (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:num_bytes])
    assert str(find_unreadable(checkpoint)).startswith(f"Cannot resume: {checkpoint / name} cannot be read (")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("global_step", -4), ("global_step", 3.5), ("global_step", True), ("epoch", -1), ("epoch", float("inf"))],
        *[("best_global_step", -1), ("max_steps", "12"), ("total_flos", float("nan")), ("save_steps", None)],
        *[("num_input_tokens_seen", -1), ("train_batch_size", 0.5), ("best_metric", "good"), ("log_history", [3])],
    ],
)
def test_numbers_that_no_run_counts_are_refused(name: str, value: object, checkpoint: Path) -> None:
    path = checkpoint / "trainer_state.json"
    path.write_text(json.dumps({"global_step": 3, name: value}))
    with refused("trainer_state.json"):
        check_trainer_state(checkpoint)
    for content in ("", "[]", '{"made up": 1}', "[" * 100_000):
        path.write_text(content)
        with refused("trainer_state.json"):
            check_trainer_state(checkpoint)


def test_a_step_that_is_not_that_of_the_mixture_is_refused(checkpoint: Path) -> None:
    (checkpoint / "mixing.json").write_text(json.dumps({"clock": {"step": 3}}))
    check_trainer_state(checkpoint)
    (checkpoint / "mixing.json").write_text(json.dumps({"clock": {"step": 5}}))
    with refused("trainer_state.json"):
        check_trainer_state(checkpoint)
