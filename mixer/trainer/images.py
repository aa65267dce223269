"""Streams with and without images, which SFTTrainer collates together by TRL's collator of images."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets

from mixer.loading.preprocessing import Preprocess
from mixer.mixture.stream import Stream
from mixer.trainer.checks.engines import engine_of
from mixer.trainer.checks.trl_streams import check_sft, first_sample, has_images
from mixer.utils.errors import wrong_value


def stand_in_of(stream: Stream) -> Any:
    """Returns a data set with images, by whose first sample TRL decides how to treat all of them."""
    return stream.dataset if stream.preprocess is None else datasets.Dataset.from_list([first_sample(stream)])


def collated_together(streams: Sequence[Stream], trainer: Any) -> list[Stream]:
    """Has TRL's collator take the samples of all streams, which are made by it, and not before.

    Args:
        streams: The streams.
        trainer: The trainer, after the construction of its parent, which got one with images.

    Returns:
        The streams, with a column of images each, so that memories hold samples of equal columns.

    Raises:
        ValueError: If the trainer cannot read one of them, or the engine is not DDP.
    """
    lasting = [stream for stream in streams if not stream.is_memory]
    if type(trainer.data_collator).__name__ == "DataCollatorForVisionLanguageModeling":  # not the user's own
        if (engine := engine_of(trainer).name) != "DDP":
            text = f": with images {engine} was not seen to give the gradient of one process: train them by DDP."
            raise wrong_value("fsdp" if engine == "FSDP2" else "deepspeed", text)
        options = {"chat_template": trainer.chat_template, "tokenize": False}
        render = partial(trainer.processing_class.apply_chat_template, **options)
        formats = getattr(trainer, "_formatting_func", None) is not None
        for stream in lasting:
            check_sft(stream, trainer.args, formats, render, beside_images=True)
        trainer.data_collator = ImageCollator(trainer.data_collator, trainer.args.completion_only_loss is None)
    lacking = {stream.name for stream in lasting if not has_images(stream)}
    return [
        replace(stream, preprocess=partial(_filled, stream.preprocess)) if stream.name in lacking else stream
        for stream in streams
    ]


class ImageCollator:
    """TRL's collator of images, for samples of any stream: it reads the columns of the first, and decides for all.

    Args:
        collator: TRL's `DataCollatorForVisionLanguageModeling`.
        decides: Whether completions alone are learned where there are some; else the collator's own setting holds.
    """

    def __init__(self, collator: Any, decides: bool):
        self._collator, self._decides = collator, decides

    def __call__(self, samples: Sequence[dict[str, Any]]) -> Any:
        """Collates samples, each with the images that it has: a list, one or none."""
        rows = [dict(sample) for sample in samples]
        for row in rows:
            image, images = row.pop("image", None), row.get("images") or []
            row["images"] = [*images, *([] if image is None else [image])]
        collator = self._collator
        if self._decides:
            collator = replace(collator, completion_only_loss="completion" in rows[0])
        return collator(rows)


def _filled(preprocess: Preprocess | None, sample: dict[str, Any]) -> dict[str, Any]:
    return {"images": [], **(sample if preprocess is None else preprocess(sample))}
