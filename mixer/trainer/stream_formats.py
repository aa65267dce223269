"""What the data sets of several streams must have in common where a trainer prepares them, and what each needs."""

from collections.abc import Sequence
from typing import Any

import datasets

from mixer.mixture.stream import Stream

_IMAGES = {"image", "images"}
# SFTTrainer reads a stream that has all of one of these; a column of its own for plain text can be named beside.
_SFT_FORMATS = ({"messages"}, {"conversations"}, {"prompt", "completion"}, {"input_ids"})


def check_kinds(streams: Sequence[Stream], trainer: str) -> None:
    """Refuses streams of other kinds than a trainer that prepares data sets takes, or of kinds that do not go together.

    Args:
        streams: The streams that are no memories.
        trainer: Name of the trainer's class.

    Raises:
        TypeError: If one is no data set of the package datasets.
        ValueError: If only some have images.
    """
    for stream in streams:
        if not isinstance(stream.dataset, (datasets.Dataset, datasets.IterableDataset)):
            raise TypeError(
                f"Stream {stream.name!r}: {trainer} prepares its data sets, and takes datasets.Dataset or "
                f"datasets.IterableDataset, got {type(stream.dataset).__name__}. Dataset.from_list or "
                "Dataset.from_generator make one."
            )
    with_images = [stream.name for stream in streams if _IMAGES & first_sample(stream).keys()]
    if 0 < len(with_images) < len(streams):
        without = [stream.name for stream in streams if stream.name not in with_images]
        raise ValueError(
            f"Streams {with_images} have images and {without} have none: {trainer} collates either with a processor or "
            "without, for all streams alike. Train them in two runs, or leave the images out."
        )


def check_sft(stream: Stream, args: Any, formats: bool) -> None:
    """Refuses a stream that SFTTrainer would fail on, or train in a way that was not asked for.

    Args:
        stream: The stream.
        args: The trainer's `SFTConfig`.
        formats: Whether a formatting function makes text of its samples.

    Raises:
        ValueError: With the stream, its columns and what it needs.
    """
    sample = first_sample(stream)
    columns, text = set(sample), args.dataset_text_field
    if not formats and not any(needed <= columns for needed in (*_SFT_FORMATS, {text})):
        raise ValueError(
            f"Stream {stream.name!r} has the columns {sorted(columns)}, and SFTTrainer needs 'messages', 'prompt' and "
            f"'completion', {text!r} (dataset_text_field) or 'input_ids'. Rename its columns, or give a "
            "formatting_func."
        )
    if args.assistant_only_loss and not _is_conversational(sample):
        raise ValueError(
            f"assistant_only_loss=True: stream {stream.name!r} is no conversation, with the columns {sorted(columns)}, "
            "and would be trained on as a whole. Bring it into 'messages', or leave assistant_only_loss at False."
        )


def learns_completions(stream: Stream) -> bool:
    """Says whether SFTTrainer learns a stream's completions alone, where the user has not said so.

    Args:
        stream: The stream.

    Returns:
        Whether its samples are prompts and completions.
    """
    return {"prompt", "completion"} <= first_sample(stream).keys()


def first_sample(stream: Stream) -> dict[str, Any]:
    """Reads the first sample of a stream, by which TRL tells formats apart.

    Args:
        stream: The stream.

    Returns:
        The sample.

    Raises:
        ValueError: If there is none.
    """
    sample: dict[str, Any] | None = next(iter(stream.dataset), None)
    if sample is None:
        raise ValueError(f"Stream {stream.name!r}: the data set is empty.")
    return sample


def _is_conversational(sample: dict[str, Any]) -> bool:
    from trl.data_utils import is_conversational, is_conversational_from_value

    return bool(is_conversational(sample) or is_conversational_from_value(sample))
