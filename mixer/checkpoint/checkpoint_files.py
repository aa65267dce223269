"""Checkpoints on disk: written whole or not at all, what is wrong with one, and rotation."""

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from mixer.utils.files import at_once, digests_of, find_damaged, other_version, read_json, sync_to_disk, write_json
from mixer.utils.text import printable, shortened
from mixer.utils.validation import DAMAGE, load_json

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
_ASIDE = "previous-"
_NAME = re.compile(rf"({_ASIDE})?checkpoint-(\d+)")
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
    weights = [name for name in (*_WHOLE, *_INDICES) if (checkpoint / name).is_file()]
    return next((name for name in weights if name in _WHOLE or _has_parts(checkpoint / name)), None)


def _has_parts(index: Path) -> bool:
    try:
        parts = _parts_of(index)
    except (OSError, ValueError, *DAMAGE):
        return False
    return bool(parts) and all(is_of_model(part) and (index.parent / part).is_file() for part in parts)


def _parts_of(index: Path) -> set[str]:
    return {str(part) for part in load_json(index)["weight_map"].values()}


def _lists_outside(names: Iterable[str]) -> str | None:
    """Returns the first of some paths in a checkpoint that leads out of it."""
    return next((name for name in names if ".." in Path(name).parts or Path(name).is_absolute()), None)


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
            f"from its weights instead (load them into the model and call train() without resume_from_checkpoint, with "
            f"another output_dir)."
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


def is_of_trainer(checkpoint: Path) -> bool:
    """Whether a checkpoint was written by another trainer, such as transformers' own, which writes its state last."""
    has_own = any((checkpoint / name).exists() for name in (STATE_FILE, MARKER_FILE))
    return (checkpoint / TRAINER_STATE_NAME).is_file() and not has_own


def find_problem(checkpoint: Path, allow_inexact: bool = False) -> str | None:
    """Returns the reason why a run cannot resume from a checkpoint, with the name of the file; `None` if it can.

    Args:
        checkpoint: The checkpoint's folder.
        allow_inexact: Whether to accept weights that were saved again later, in other files.
    """
    if not checkpoint.is_dir():
        return "the folder does not exist"
    if (marker := read_marker(checkpoint)) is None:
        if is_of_trainer(checkpoint):
            return f"it was written by another trainer, such as transformers' own: it has no {STATE_FILE}"
        state = "is torn" if (checkpoint / MARKER_FILE).is_file() else "is missing"
        return f"{MARKER_FILE} {state}, so it is incomplete or was written by another trainer"
    version = marker.get("format")
    if version != FORMAT_VERSION:
        return other_version(MARKER_FILE, version, FORMAT_VERSION)
    if (problem := _find_damage(checkpoint, marker, allow_inexact)) is not None:
        return printable(problem)  # it may have names of files that somebody else wrote
    if STATE_FILE not in marker["files"]:
        return f"it has no {STATE_FILE}, because it was saved with save_only_model=True"
    try:
        read_state(checkpoint)
    except ValueError:
        return f"{STATE_FILE} is torn"
    return None


def has_weights(checkpoint: Path) -> bool:
    """Whether a checkpoint has weights, those of a model or of an adapter."""
    names = (*_WHOLE, *_INDICES, "adapter_model.safetensors", "adapter_model.bin")
    return any((checkpoint / name).is_file() for name in names)


def from_weights(checkpoint: Path) -> str:
    """Says how to begin a run with the weights of a checkpoint; empty if it has none."""
    if not has_weights(checkpoint):
        return ""
    return (
        f" To begin a new run with the weights in {checkpoint}, load them (from_pretrained, or model.name in a recipe) "
        f"and call train() without resume_from_checkpoint, with another output_dir."
    )


def _find_damage(checkpoint: Path, marker: Mapping[str, Any], allow_inexact: bool) -> str | None:
    """Names the first of the marker's files that has changed."""
    files, digests = marker["files"], marker.get("digests", {})
    if (outside := _lists_outside((*files, *digests))) is not None:
        return f"{MARKER_FILE} is damaged: it lists {outside!r}, which is not in the checkpoint"
    for index in filter(Path.is_file, map(checkpoint.joinpath, _INDICES)):
        try:
            outside = _lists_outside(_parts_of(index))
        except (OSError, ValueError, *DAMAGE) as error:
            return f"{index.name} cannot be read ({shortened(str(error))})"
        if outside is not None:
            return f"{index.name} is damaged: it lists {outside!r}, which is not in the checkpoint"
    if (again := find_saved_again(checkpoint, files)) is not None and not allow_inexact:
        return f"its weights were saved again, as {again}; allow_inexact=True uses those"
    if again is not None:
        files, digests = (
            {name: value for name, value in of.items() if not is_of_model(name)} for of in (files, digests)
        )
    for name, size in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} is torn: it has {path.stat().st_size} bytes instead of {size}"
    if (damaged := find_damaged(checkpoint, digests)) is not None:
        return f"{damaged} is damaged: its content has changed"
    return None


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Lists the checkpoint folders of a run, the latest step first; after each the one that it is to replace."""
    folders = output_dir.iterdir() if output_dir.is_dir() else ()
    checkpoints = [path for path in folders if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(checkpoints, key=lambda path: (step_of(path), path == lasting(path)), reverse=True)


def step_of(checkpoint: Path) -> int:
    """Returns the step in a checkpoint's name; -1 if the name has another form."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[2]) if match else -1


def lasting(checkpoint: Path) -> Path:
    """Returns the folder that a checkpoint has, or will have if it was set aside and is put back."""
    return checkpoint.with_name(checkpoint.name.removeprefix(_ASIDE))


def whole(checkpoint: Path) -> Path:
    """Returns where a checkpoint is complete: aside, as long as it is being written again."""
    aside = _aside(checkpoint)
    is_aside = (aside / MARKER_FILE).is_file() and not (checkpoint / MARKER_FILE).is_file()
    return aside if is_aside else checkpoint


def put_back(output_dir: Path) -> None:
    """Restores checkpoints that were set aside for ones that were never completed; for the holder of the lock alone."""
    for aside in output_dir.glob(f"{_ASIDE}checkpoint-*"):
        checkpoint = lasting(aside)
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
    last_step = step_of(begins_from) if begins_from is not None and is_inside(begins_from, output_dir) else -1
    for checkpoint in reversed(list_checkpoints(output_dir)):
        if step_of(checkpoint) > last_step:
            annotate(checkpoint, superseded=True)
        elif step_of(checkpoint) == last_step:
            annotate(checkpoint, superseded=False)


def is_inside(checkpoint: Path, output_dir: Path) -> bool:
    """Whether a checkpoint is one of a run's own, which may write to it."""
    return checkpoint.resolve().parent == output_dir.resolve()


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
