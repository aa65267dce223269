"""Streams with and without images, which SFTTrainer collates together: columns of images, and its collator."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets

from mixer.loading.preprocessing import Preprocess, preprocessed
from mixer.mixture.stream import Stream
from mixer.trainer.checks.trl_streams import IMAGES, check_sft, first_sample
from mixer.utils.errors import InvalidValueError


class ImageStreams:
    """Streams of which some have images.

    TRL leaves such data as they are, and its collator makes the inputs: it decides by the first sample of all.

    Args:
        streams: All streams of the mixture.
    """

    def __init__(self, streams: Sequence[Stream]):
        made = [_with_samples_made(stream) for stream in streams]
        self._made = {stream.name: stream for stream in made if not stream.is_memory}
        first = {name: first_sample(stream) for name, stream in self._made.items()}
        self.named = [name for name, sample in first.items() if IMAGES & sample.keys()]
        self.others = [name for name in self._made if name not in self.named]
        # Those that may train nothing of what sees.
        self.empty = [name for name, sample in first.items() if not any(map(sample.get, IMAGES))]

    def stand_in(self) -> Any:
        """Returns a data set with images, as the trainer's constructor takes one."""
        first = self._made[self.named[0]]
        is_own = isinstance(first.dataset, (datasets.Dataset, datasets.IterableDataset))
        return first.dataset if is_own else datasets.Dataset.from_list([first_sample(first)])

    def take_over(self, streams: Sequence[Stream], trainer: Any) -> list[Stream]:
        """Checks the streams, and has TRL's collator take all of them.

        Args:
            streams: All streams.
            trainer: The trainer, after the construction of its parent.

        Returns:
            The streams, with a column of images each.

        Raises:
            ValueError: If the trainer cannot read one of them.
        """
        if type(trainer.data_collator).__name__ == "DataCollatorForVisionLanguageModeling":  # not the user's own
            options = {"chat_template": trainer.chat_template, "tokenize": False}
            render = partial(trainer.processing_class.apply_chat_template, **options)
            formats = getattr(trainer, "_formatting_func", None) is not None
            for stream in self._made.values():
                check_sft(stream, trainer.args, formats, render, has_images=True)
            trainer.data_collator = ImageCollator(trainer.data_collator, trainer.args.completion_only_loss is None)
        return [
            replace(stream, preprocess=partial(_filled, stream.preprocess)) if stream.name in self.others else stream
            for stream in streams
        ]


class ImageCollator:
    """TRL's collator of images for all streams of a mixture: it takes rows without images, and decides for each batch.

    Args:
        collator: TRL's collator, `DataCollatorForVisionLanguageModeling`.
        decides: Whether completions alone are learned where there are some; else the collator's own setting holds.
    """

    def __init__(self, collator: Any, decides: bool):
        self._collator, self._decides = collator, decides

    def __call__(self, samples: Sequence[dict[str, Any]]) -> Any:
        """Collates samples.

        Raises:
            ValueError: If the first has neither a conversation nor a prompt and its completion.
        """
        rows = [_with_images(sample) for sample in samples]
        has_turns = "messages" in rows[0]
        if not has_turns and not {"prompt", "completion"} <= rows[0].keys():
            expected = "'messages', or 'prompt' and 'completion', beside images"
            raise InvalidValueError(option="columns", expected=expected, found=sorted(samples[0]))
        return (replace(self._collator, completion_only_loss=not has_turns) if self._decides else self._collator)(rows)


def _with_samples_made(stream: Stream) -> Stream:
    if stream.is_memory or stream.preprocess is None:
        return stream
    return replace(stream, dataset=preprocessed(stream.dataset, stream.preprocess), preprocess=None)


def _filled(preprocess: Preprocess | None, sample: dict[str, Any]) -> dict[str, Any]:
    """Returns a sample with a column of images, so that memories hold samples of equal columns."""
    return {"images": [], **(sample if preprocess is None else preprocess(sample))}


def _with_images(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns a sample with a list of images, which may be empty; TRL reads the columns of the first alone."""
    row = dict(sample)
    single, several = row.pop("image", None), row.get("images")
    return {**row, "images": [*(several or ()), *([] if single is None else [single])]}
