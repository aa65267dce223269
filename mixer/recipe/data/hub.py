"""Data sets of the Hugging Face hub, with errors that say what to do."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]  # of its HTTP client

from mixer.recipe.data.splits import check_slices

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(path: str) -> bool:
    """Says whether a text has the form of a name on the hub.

    Args:
        path: The text.

    Returns:
        Whether it is `org/name`.
    """
    return _NAME.fullmatch(path) is not None


def load_hub(
    path: str,
    splits: Sequence[str],
    called: str,
    name: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> list[Any]:
    """Loads splits of a data set by its name on the hub, or from a folder that is laid out like one.

    Args:
        path: The name, `org/name`; or the folder.
        splits: Names of splits; slices too, where not streaming.
        called: What asks for them, for errors.
        name: Which of its configurations.
        revision: Branch, tag or commit.
        streaming: Whether rows are read as they are asked for.

    Returns:
        A data set each.

    Raises:
        ConnectionError: If the hub cannot be reached.
        FileNotFoundError: If there is no such data set or revision.
        ValueError: If there is no such configuration or split, or it cannot be read.
    """
    for split in splits:
        check_slices(split, called, streaming)
    try:
        return [
            datasets.load_dataset(path, name, split=split, revision=revision, streaming=streaming) for split in splits
        ]
    except DatasetNotFoundError as error:
        raise FileNotFoundError(
            f"{called}: {error} Nor is there a file or folder {str(Path(path).absolute())!r}. Look the name up "
            "(org/name), and log in (hf auth login) if it is private."
        ) from error
    except (OfflineModeIsEnabled, ConnectionError, HTTPError) as error:
        raise ConnectionError(_unreachable(path, called, error)) from error
    except (DatasetsError, ValueError, OSError, KeyError, RuntimeError, NotImplementedError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{called}: {path!r} (name={name}, split={', '.join(splits)}, revision={revision}) cannot be loaded: {told}"
        ) from error


def _unreachable(path: str, called: str, error: Exception) -> str:
    offline = huggingface_hub.constants.is_offline_mode() or datasets.config.HF_HUB_OFFLINE
    why = (
        "the hub is not asked, since HF_HUB_OFFLINE is set"
        if offline
        else f"the hub cannot be reached ({type(error).__name__})"
    )
    return (
        f"{called}: there is no file or folder {str(Path(path).absolute())!r}, and {why}; nor was {path!r} loaded here "
        "before. Give the path of a file or folder, or fetch it where there is a network: hf download --repo-type "
        f"dataset {path} --local-dir FOLDER."
    )
