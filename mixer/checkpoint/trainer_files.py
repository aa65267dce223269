"""What the Trainer itself writes into a checkpoint: its state, and files that cannot be read."""

import json
import zipfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import safe_globals

from mixer.checkpoint.checkpoint_files import STATE_FILE, has_weights, read_state
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import printable, shortened
from mixer.utils.validation import DAMAGE, MOST_JSON_BYTES, check_plain, finite_number, whole_number, with_unique_keys


def find_lacking(checkpoint: Path) -> str | None:
    """Says what a checkpoint of the plain Trainer lacks for a run to go on from it; `None` if nothing."""
    missing = [name for name in (OPTIMIZER_NAME, SCHEDULER_NAME) if not (checkpoint / name).is_file()]
    if missing:
        return f"it has no {missing[0]}: it was saved with save_only_model=True, or by an engine"
    return None if has_weights(checkpoint) else "it has no weights"


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


def _unreadable(path: Path, error: Exception) -> InvalidValueError:
    # Only the first sentence: torch's message goes on with advice to load the file anyway.
    reason = shortened(printable(f"{type(error).__name__}: {str(error).partition('. ')[0]}"))
    text = f"Cannot resume: {path} cannot be read ({reason}). Use an earlier checkpoint."
    return InvalidValueError(text, option=path.name)
