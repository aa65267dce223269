"""The controller's file in a checkpoint: small, plain JSON, written whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE_FILE = "mixing.json"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file so that it is there whole or not at all, even if the machine stops.

    Args:
        path: The file.
        content: Plain data; floats are kept to the bit.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Reads the controller's state from a checkpoint.

    Args:
        checkpoint: The checkpoint's folder.

    Returns:
        The state.

    Raises:
        FileNotFoundError: If the checkpoint has none.
        ValueError: If the file is torn.
    """
    path = checkpoint / STATE_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{checkpoint} has no {STATE_FILE}: it was saved with save_only_model=True or by another trainer. Start "
            "from its weights instead (load them into the model and call train() without resume_from_checkpoint)."
        )
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is torn ({error}). Resume from an earlier checkpoint.") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path} does not hold the state of a mixture. Resume from an earlier checkpoint.")
    return state
