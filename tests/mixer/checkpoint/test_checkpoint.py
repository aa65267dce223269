"""Files of a checkpoint: written whole or not at all, known by their content, and named if they cannot be read."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file

from mixer import Ledger, MixingTrainer
from mixer.checkpoint import checkpoint_files
from mixer.checkpoint.checkpoint_files import MARKER_FILE, STATE_FILE, complete, find_problem, read_state
from mixer.checkpoint.trainer_files import check_trainer_state, find_unreadable
from mixer.trainer.save import Progress
from mixer.utils.files import read_json, synced_later, write_json
from tests.helpers import Tokens
from tests.mixer.trainer.runs import make
from tests.refusals import refused


class TestWrite:
    def test_what_cannot_be_written_leaves_the_old_file_whole(self, tmp_path, monkeypatch) -> None:
        def crash(descriptor: int) -> None:
            raise OSError("no space left on device")

        write_json(tmp_path / STATE_FILE, {"step": 1})
        (tmp_path / f"{STATE_FILE}.tmp").write_text("torn and much longer than what comes then")
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", crash)
            with pytest.raises(OSError, match="no space left"):
                write_json(tmp_path / STATE_FILE, {"step": 2})
        for bad in (float("nan"), float("inf"), object()):
            with pytest.raises((ValueError, TypeError)):
                write_json(tmp_path / STATE_FILE, {"step": 2, "bad": bad})
        assert read_state(tmp_path) == {"step": 1}
        write_json(tmp_path / STATE_FILE, {"step": 2})
        assert read_state(tmp_path) == {"step": 2}


def test_what_was_not_synced_is_synced_before_the_checkpoint_counts(tmp_path, monkeypatch) -> None:
    synced: list[str] = []

    def note(path: Path) -> None:
        is_complete = (tmp_path / "end" / MARKER_FILE).exists()
        name = re.sub(r"\.[0-9a-f]{16}\.tmp$", ".tmp", str(path.relative_to(tmp_path)))
        synced.append(f"{name}{' after' if is_complete else ''}")

    monkeypatch.setattr("mixer.utils.files.sync_to_disk", note)
    monkeypatch.setattr("mixer.checkpoint.checkpoint_files.sync_to_disk", note)
    with synced_later():
        write_json(tmp_path / "end" / STATE_FILE, {"step": 2})
        write_json(tmp_path / "end" / "deep" / "more.json", {})
    assert not synced
    complete(tmp_path / "end")
    files = [f"end/{MARKER_FILE}.tmp", f"end/{STATE_FILE}", "end/deep/more.json"]
    assert sorted(synced) == sorted([".", "end", "end/deep", "end after", *files])


class TestRead:
    def test_a_file_that_is_missing_or_torn_at_any_length_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_state(tmp_path)
        whole = json.dumps({"format": 1, "clock": {"step": 12, "batch_size": 8}}).encode()
        for content in [*(whole[:length] for length in range(len(whole))), b"\xff\xfe\x00"]:
            (tmp_path / STATE_FILE).write_bytes(content)
            with refused("mixing.json"):
                read_state(tmp_path)
        for other in ("[]", "3", "null", '"text"'):
            (tmp_path / STATE_FILE).write_text(other)
            with refused("mixing.json"):
                read_state(tmp_path)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_told_or_changes_nothing(tmp_path_factory, place, bit) -> None:
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    content = {"step": 12, "weights": [0.25, 1e-17], "é": "a b", "done": True}
    write_json(path, content, sealed=True)
    assert read_json(path) == content
    text = bytearray(path.read_bytes())
    text[place % len(text)] ^= 1 << bit
    path.write_bytes(text)
    found, told = content, f"{path} Resume from an earlier checkpoint"
    try:
        found = read_json(path)
    except ValueError as error:
        told = str(error)
    assert re.search(rf"{path}.*Resume from an earlier checkpoint", told)
    assert {name: found[name] for name in content} == content  # what changed is a name that is none of ours, or white


class TestDigests:
    def _checkpoint(self, folder: Path) -> Path:
        checkpoint = folder / "checkpoint-4"
        checkpoint_files.begin_writing(checkpoint)
        write_json(checkpoint / STATE_FILE, {"clock": {"step": 4}})
        (checkpoint / "methods" / "memory").mkdir(parents=True)
        (checkpoint / "methods" / "memory" / "buffer.npz").write_bytes(bytes(range(256)))
        checkpoint_files.complete(checkpoint)
        return checkpoint

    @pytest.mark.parametrize("name", [STATE_FILE, "methods/memory/buffer.npz"])
    def test_every_flipped_byte_of_the_same_size_is_found_and_named(self, tmp_path: Path, name: str) -> None:
        checkpoint = self._checkpoint(tmp_path)
        whole = (checkpoint / name).read_bytes()
        assert find_problem(checkpoint) is None
        for place in range(len(whole)):
            changed = bytearray(whole)
            changed[place] ^= 1
            (checkpoint / name).write_bytes(changed)
            assert find_problem(checkpoint) == f"{name} is damaged: its content has changed"


def test_a_checkpoint_that_is_a_link_is_abandoned_without_what_it_points_to(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / MARKER_FILE).write_text("kept")
    checkpoint = tmp_path / "checkpoint-4"
    checkpoint.symlink_to(target)
    checkpoint_files.abandon(checkpoint)
    assert not checkpoint.is_symlink()
    assert (target / MARKER_FILE).read_text() == "kept"


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


def _progress(**changes: object) -> Progress:
    stops = {"epoch_end_is_left": True, "epoch_stops": False, "training_stops": False}
    rates = {"gradient_norm": 0.1, "learning_rate": None, "learning_rate_factor": 2**0.5}
    logged = {"running_losses": [0.1, 0.25], "logged_loss": 3.0, "last_logged_step": 4, "seconds": 12.5}
    counts = {"num_evaluations": 3, "recorder": {"counts": [1, 2]}, "methods": {}, "num_metrics": 0}
    return Progress(**{**stops, **rates, **logged, **counts, **changes})  # type: ignore[arg-type]


def test_what_is_saved_is_read_to_the_bit_and_losses_that_are_not_finite_too() -> None:
    progress = _progress(running_losses=[1 / 3, 1e-300, -0.0])
    assert Progress.from_state(json.loads(json.dumps(progress.state_dict(), allow_nan=False))) == progress
    progress = _progress(running_losses=[math.nan, math.inf, -math.inf], logged_loss=math.nan, gradient_norm=math.inf)
    again = Progress.from_state(json.loads(json.dumps(progress.state_dict(), allow_nan=False)))
    assert [str(loss) for loss in again.running_losses] == ["nan", "inf", "-inf"]
    assert math.isnan(again.logged_loss)
    assert again.gradient_norm == math.inf


def test_each_rank_has_its_own_loss_back_and_other_numbers_of_ranks_the_mean() -> None:
    assert [_progress().running_loss(rank, 2) for rank in range(2)] == [0.1, 0.25]
    assert [_progress(running_losses=[1.0, 2.0]).running_loss(0, world_size) for world_size in (1, 3)] == [1.5, 1.5]


STREAMS = {"a": Tokens(20, 1), "b": Tokens(14, 2)}


def _trainer(folder: Path, max_steps: int, **options: Any) -> MixingTrainer:
    own = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 2, "mixing": "Uniform", "batch_size": 4}
    return make(folder, max_steps=max_steps, train_dataset=STREAMS, **own, **options)


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    trainer = _trainer(tmp_path, 4)
    trainer.ledger.finish = trainer.ledger.sync  # type: ignore[method-assign]
    trainer.train()
    return tmp_path


@pytest.mark.parametrize("table", ["clock", "streams"])
def test_a_run_that_goes_on_is_refused(broken_off: Path, table: str) -> None:
    tail = broken_off / "ledger" / table / "tail-000000.arrow"
    tail.write_bytes(tail.read_bytes()[:-300])
    whole = {"clock": 4, "streams": 8}[table]
    left = len(Ledger(broken_off / "ledger").read(table))
    assert left < whole
    with refused("allow_inexact") as caught:
        _trainer(broken_off, 6).train(resume_from_checkpoint=True)
    assert f"ledger/{table} lacks {whole - left} rows" in str(caught.value)


def test_it_goes_on_without_them_on_purpose(broken_off: Path) -> None:
    (broken_off / "ledger" / "clock" / "tail-000000.arrow").unlink()
    trainer = _trainer(broken_off, 6, allow_inexact=True)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.ledger.clock()["step"].tolist() == [5, 6]
    assert trainer.ledger.to_pandas()["step"].tolist() == [step for step in range(1, 7) for _ in range(2)]
    _trainer(broken_off, 8).train(resume_from_checkpoint=True)  # a later checkpoint counts on what there was then
