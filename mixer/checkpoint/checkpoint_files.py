"""Checkpoints on disk: written whole or not at all, what is wrong with one, and rotation."""

import json
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import safe_globals

from mixer.utils.files import at_once, digests_of, find_damaged, other_version, read_json, sync_to_disk, write_json
from mixer.utils.text import printable, shortened
from mixer.utils.validation import (
    DAMAGE,
    MOST_JSON_BYTES,
    check_plain,
    finite_number,
    load_json,
    whole_number,
    with_unique_keys,
)

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDICES = tuple(f"{name}.index.json" for name in _WHOLE)
# The files that `save_pretrained` writes for a model.
_OF_MODEL = re.compile(r"(generation_)?config\.json|(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
STATE_FILE = "mixing.json"
MARKER_FILE = "complete.json"
CAP_ENTRY = "micro_batch_cap"
LOSSES_ENTRY = "losses"
METHODS_ENTRY = "methods"
FORMAT_VERSION = 1
_NAME = re.compile(r"checkpoint-(\d+)")
_ASIDE = "previous-"
_SENTINEL = "checkpoint-is-incomplete.txt"


def is_of_model(name: str) -> bool:
    """Says whether a file, by its path in the checkpoint, is one that `save_pretrained` writes."""
    return _OF_MODEL.fullmatch(name) is not None


def find_saved_again(checkpoint: Path, written: Iterable[str]) -> str | None:
    """Finds complete weights that replace those of the run, as another number of files.

    Args:
        checkpoint: The checkpoint's folder.
        written: Paths of the files that the run wrote.

    Returns:
        The name of the file, or of the index of its parts; `None` if the run's own weights exist, or no complete ones.
    """
    heads = [name for name in written if name in (*_WHOLE, *_INDICES)]
    if not heads or any((checkpoint / name).is_file() for name in heads):
        return None
    there = [name for name in (*_WHOLE, *_INDICES) if (checkpoint / name).is_file()]
    return next((name for name in there if name in _WHOLE or _has_parts(checkpoint / name)), None)


def _has_parts(index: Path) -> bool:
    try:
        parts = set(load_json(index)["weight_map"].values())
    except (OSError, ValueError, *DAMAGE):
        return False
    return bool(parts) and all(is_of_model(str(part)) and (index.parent / str(part)).is_file() for part in parts)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Reads the controller's state from a checkpoint.

    Raises:
        FileNotFoundError: If the checkpoint has none.
        ValueError: If the file is damaged.
    """
    path = checkpoint / STATE_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{checkpoint} has no {STATE_FILE}: it was saved with save_only_model=True or by another trainer. Start "
            f"from its weights instead (load them into the model and call train() without resume_from_checkpoint)."
        )
    return read_json(path)


def begin_writing(checkpoint: Path) -> None:
    """Prepares a folder for writing a checkpoint: old content must not be taken for the new checkpoint.

    A complete checkpoint of the same step is set aside until the new one is complete. The folder exists afterwards: the
    Trainer's ranks look for that of the best checkpoint, each by itself, before all of them have written.

    Args:
        checkpoint: The checkpoint's folder; it need not exist.
    """
    if (checkpoint / MARKER_FILE).is_file():
        aside = _aside(checkpoint)
        _remove(aside)
        checkpoint.rename(aside)
        sync_to_disk(checkpoint.parent)
    _remove(checkpoint)  # an incomplete one
    checkpoint.mkdir(parents=True)


def complete(checkpoint: Path) -> None:
    """Marks a checkpoint as complete and syncs it to disk, once all ranks have written their files."""
    files = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.suffix != ".tmp" and path.name not in (MARKER_FILE, _SENTINEL):
            files[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    paths = {checkpoint / name for name in files}
    at_once(sync_to_disk, paths | {path.parent for path in paths} | {checkpoint, checkpoint.parent})
    content = {"format": FORMAT_VERSION, "files": files, "digests": digests_of(checkpoint, files)}
    write_json(checkpoint / MARKER_FILE, content, sealed=True)
    _remove(_aside(checkpoint))


def abandon(checkpoint: Path) -> None:
    """Removes an incomplete checkpoint; a complete one of the same step that was set aside is restored."""
    _remove(checkpoint)
    if (_aside(checkpoint) / MARKER_FILE).is_file():
        _aside(checkpoint).rename(checkpoint)


def annotate(checkpoint: Path, **notes: bool) -> None:
    """Adds notes to the marker of a checkpoint.

    Args:
        checkpoint: The checkpoint's folder; an incomplete one is left alone.
        **notes: `superseded`: whether a run has since begun at an earlier step. `ended`: whether the run that wrote it
            finished.
    """
    marker = read_marker(checkpoint)
    if marker is not None and {**marker, **notes} != marker:
        write_json(checkpoint / MARKER_FILE, {**marker, **notes}, sealed=True)


def read_marker(checkpoint: Path) -> dict[str, Any] | None:
    """Reads a checkpoint's marker.

    Returns:
        The marker with its `files` and their sizes, and `digests` of the smaller ones; `None` if it cannot be read.
    """
    try:
        marker = read_json(checkpoint / MARKER_FILE)
    except ValueError:
        return None
    are_mappings = isinstance(marker.get("files"), dict) and isinstance(marker.get("digests", {}), dict)
    return marker if are_mappings else None


def find_problem(checkpoint: Path, allow_inexact: bool = False) -> str | None:
    """Returns the reason why a run cannot resume from a checkpoint, with the name of the file; `None` if it can.

    Args:
        checkpoint: The checkpoint's folder.
        allow_inexact: Whether to accept weights that were saved again later, in other files.
    """
    if not checkpoint.is_dir():
        return "the folder does not exist"
    if (marker := read_marker(checkpoint)) is None:
        is_of_trainer = (checkpoint / TRAINER_STATE_NAME).is_file() and not (checkpoint / STATE_FILE).exists()
        if is_of_trainer and not (checkpoint / MARKER_FILE).exists():
            return f"it was written by another trainer, such as transformers' own: it has no {STATE_FILE}"
        state = "is torn" if (checkpoint / MARKER_FILE).is_file() else "is missing"
        return f"{MARKER_FILE} {state}, so it is incomplete or was written by another trainer"
    version = marker.get("format")
    if version != FORMAT_VERSION:
        return other_version(MARKER_FILE, version, FORMAT_VERSION)
    if (problem := _find_damage(checkpoint, marker, allow_inexact)) is not None:
        return problem
    if STATE_FILE not in marker["files"]:
        return f"it has no {STATE_FILE}, because it was saved with save_only_model=True"
    try:
        read_state(checkpoint)
    except ValueError:
        return f"{STATE_FILE} is torn"
    return None


def from_weights(checkpoint: Path) -> str:
    """Says how to begin a run with the weights of a checkpoint; empty if it has none."""
    names = (*_WHOLE, *_INDICES, "adapter_model.safetensors")
    if not any((checkpoint / name).is_file() for name in names):
        return ""
    return (
        f" To begin a new run with the weights in {checkpoint}, load them (from_pretrained, or model.name in a recipe) "
        f"and call train() without resume_from_checkpoint."
    )


def _find_damage(checkpoint: Path, marker: Mapping[str, Any], allow_inexact: bool) -> str | None:
    """Names the first of the marker's files that has changed."""
    files, digests = marker["files"], marker.get("digests", {})
    for name in (*files, *digests):
        if ".." in Path(name).parts or Path(name).is_absolute():
            return f"{MARKER_FILE} is damaged: it lists {name!r}, which is not in the checkpoint"
    if (again := find_saved_again(checkpoint, files)) is not None and not allow_inexact:
        return f"its weights were saved again, as {again}; allow_inexact=True uses those"
    if again is not None:
        files, digests = ({name: one for name, one in of.items() if not is_of_model(name)} for of in (files, digests))
    for name, size in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} is torn: it has {path.stat().st_size} bytes instead of {size}"
    if (damaged := find_damaged(checkpoint, digests)) is not None:
        return f"{damaged} is damaged: its content has changed"
    return None


def check_trainer_state(checkpoint: Path) -> None:
    """Refuses a `trainer_state.json` that is unreadable, has impossible numbers, or is not of the mixture's step.

    Raises:
        ValueError: With the name of the file.
    """
    path = checkpoint / TRAINER_STATE_NAME
    try:
        check_plain(path, MOST_JSON_BYTES)
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=with_unique_keys)
        state = TrainerState(**content)  # as `load_from_json` does, which takes the last of equal keys
        _check_numbers(state)
        step = state.global_step
        clock = read_state(checkpoint)["clock"] if (checkpoint / STATE_FILE).is_file() else {"step": step}
        if clock["step"] != step:
            raise ValueError(f"global_step is {step}, but {STATE_FILE} is of step {clock['step']}")
    except (OSError, ValueError, *DAMAGE) as error:
        raise _unreadable(path, error) from error


def _check_numbers(state: TrainerState) -> None:
    for name in ("global_step", "max_steps", "num_train_epochs", "num_input_tokens_seen"):
        whole_number(getattr(state, name), name)
    for name in ("epoch", "logging_steps", "eval_steps", "save_steps", "total_flos"):
        finite_number(getattr(state, name), name, least=0)
    for name in ("train_batch_size", "best_global_step"):
        if getattr(state, name) is not None:
            whole_number(getattr(state, name), name)
    if state.best_metric is not None and not isinstance(state.best_metric, int | float):
        raise ValueError(f"best_metric must be a number, but {state.best_metric!r} was saved")
    if not all(isinstance(entry, dict) for entry in state.log_history):
        raise ValueError("log_history must be a list of entries")


def find_unreadable(checkpoint: Path) -> ValueError | None:
    """Returns the error for the smallest file that cannot be read, or `None`; called after a failure."""
    paths = [path for path in checkpoint.iterdir() if path.is_file() and path.name != TRAINING_ARGS_NAME]
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path.name)):
        try:
            _read(path)
        except Exception as error:  # libraries raise any kind of error
            return _unreadable(path, error)
    return None


def _read(path: Path) -> None:
    """Reads a file as the Trainer does, without loading the tensors."""
    if path.suffix in (".pt", ".pth", ".bin"):
        with safe_globals():  # type: ignore[no-untyped-call]  # the types in random states
            torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    elif path.suffix == ".safetensors":
        with safe_open(path, "pt"):
            pass
    elif path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))


def _unreadable(path: Path, error: Exception) -> ValueError:
    # Only the first sentence: torch's message goes on with advice to load the file anyway.
    reason = shortened(printable(f"{type(error).__name__}: {str(error).partition('. ')[0]}"))
    return ValueError(f"Cannot resume: {path} cannot be read ({reason}). Use an earlier checkpoint.")


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Lists the checkpoint folders of a run, the latest step first."""
    folders = output_dir.iterdir() if output_dir.is_dir() else ()
    checkpoints = [path for path in folders if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(checkpoints, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """Returns the step in a checkpoint's name; -1 if the name has another form."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def put_back(output_dir: Path) -> None:
    """Restores checkpoints that were set aside for ones that were never completed."""
    for aside in output_dir.glob(f"{_ASIDE}checkpoint-*"):
        checkpoint = aside.with_name(aside.name.removeprefix(_ASIDE))
        if (checkpoint / MARKER_FILE).is_file():
            _remove(aside)
        else:
            _remove(checkpoint)
            aside.rename(checkpoint)


def supersede(output_dir: Path, begins_from: Path | None) -> None:
    """Marks later checkpoints in a folder as those of an earlier run, which must not be resumed from.

    If it is interrupted, the latest of them stay unmarked, so that the earlier run can still be resumed.

    Args:
        output_dir: The run's output folder.
        begins_from: The checkpoint that the run resumes from, or `None` for a new run.
    """
    put_back(output_dir)
    is_inside = begins_from is not None and begins_from.resolve().parent == output_dir.resolve()
    last_step = step_of(begins_from) if begins_from is not None and is_inside else -1
    for checkpoint in reversed(list_checkpoints(output_dir)):
        if step_of(checkpoint) > last_step:
            annotate(checkpoint, superseded=True)
        elif step_of(checkpoint) == last_step:
            annotate(checkpoint, superseded=False)


def rotate(newest: Path, limit: int | None, best: str | None) -> None:
    """Removes checkpoints above a limit: first those that are incomplete or of an earlier run, then the oldest.

    Args:
        newest: The checkpoint that was just completed; it stays, and so does the best one.
        limit: Number of checkpoints to keep; `None` or 0 for all.
        best: The checkpoint with the best metric, or `None`.
    """
    if limit is None or limit <= 0:
        return
    protected = {newest.resolve()} | ({Path(best).resolve()} if best is not None else set())
    checkpoints = list_checkpoints(newest.parent)

    def worth(checkpoint: Path) -> tuple[bool, int]:
        marker = read_marker(checkpoint)
        return marker is not None and not marker.get("superseded", False), step_of(checkpoint)

    excess = len(checkpoints) - max(limit, len(protected))
    removable = [path for path in sorted(checkpoints, key=worth) if path.resolve() not in protected]
    for path in removable[: max(excess, 0)]:
        _remove(path)


def remove_checkpoints(folder: Path) -> None:
    """Removes all checkpoints in a folder."""
    for checkpoint in list_checkpoints(folder):
        _remove(checkpoint)


def _aside(checkpoint: Path) -> Path:
    return checkpoint.with_name(_ASIDE + checkpoint.name)


def _remove(checkpoint: Path) -> None:
    """Removes a checkpoint, its marker first: if interrupted, the rest is not taken for complete."""
    if checkpoint.is_symlink():  # the target may be anything
        checkpoint.unlink()
        return
    (checkpoint / MARKER_FILE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
