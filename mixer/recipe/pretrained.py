"""Models and tokenizers by a folder or a name on the hub, with errors that say what was looked for."""

from pathlib import Path
from typing import Any

import huggingface_hub


def load_pretrained(kind: Any, name: str, **options: Any) -> Any:
    """Loads a model or a tokenizer.

    Args:
        kind: A class of transformers, such as `AutoTokenizer`.
        name: A folder, or a name on the hub.
        **options: Further arguments of its `from_pretrained`.

    Returns:
        What `from_pretrained` gives.

    Raises:
        FileNotFoundError: If there is no such folder, and the hub gives nothing of that name.
    """
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        if Path(name).exists():
            raise
        offline = huggingface_hub.constants.is_offline_mode()
        why = "it is not asked, since HF_HUB_OFFLINE is set" if offline else str(error).splitlines()[0]
        raise FileNotFoundError(
            f"there is no folder {str(Path(name).absolute())!r}, and {name!r} was not found on the hub, where names "
            f"have the form org/name ({why})."
        ) from error
