"""Checks of streams for TRL's trainers, and what SFTTrainer drops of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from mixer.mixture.stream import Stream
from mixer.utils.errors import InvalidTypeError, InvalidValueError, wrong_value
from mixer.utils.turns import Render, is_nothing, unread_columns, unread_keys

_IMAGES = ("images", "image")
# SFTTrainer reads a stream with all columns of one of these, or with the column dataset_text_field; beside images of
# the first two alone.
_SFT_FORMATS = ({"messages"}, {"prompt", "completion"}, {"conversations"}, {"input_ids"})
# Columns that SFTTrainer reads: of turns or texts, and others.
_SPOKEN = ("messages", "conversations", "prompt", "completion")
_READ = ("tools", "chat_template_kwargs", "labels", "completion_mask", "assistant_masks")

logger = logging.get_logger(__name__)


def check_kinds(streams: Sequence[Stream], trainer: str) -> None:
    """Refuses streams that a trainer which prepares data sets does not take.

    Args:
        streams: The streams without memories.
        trainer: Name of the trainer's class.

    Raises:
        TypeError: If one is no data set of the package datasets.
    """
    for stream in streams:
        if not isinstance(stream.dataset, (datasets.Dataset, datasets.IterableDataset)):
            text = f"Stream {stream.name!r}: {trainer} takes a datasets.Dataset or IterableDataset, got "
            text += f"{type(stream.dataset).__name__}. Convert it, with Dataset.from_list or from_generator."
            raise InvalidTypeError(text, option="dataset", stream=stream.name)


def has_images(stream: Stream) -> bool:
    """Whether a stream has a column of images."""
    return any(name in first_sample(stream) for name in _IMAGES)


def check_images(streams: Sequence[Stream], trainer: Any, args: Any, processor: Any) -> None:
    """Refuses settings under which streams with images, or beside such, are not trained, or not together.

    Args:
        streams: The streams without memories, of which some have images.
        trainer: The trainer, before its construction.
        args: Its training arguments; `None` for those of its class.
        processor: Its `processing_class`; `None` if it loads the model's.

    Raises:
        ValueError: With the streams and the way out.
    """
    name, without = type(trainer).__name__, [stream.name for stream in streams if not has_images(stream)]
    if without and not any(kind.__module__ == "trl.trainer.sft_trainer" for kind in type(trainer).__mro__):
        text = f"has streams with images and {without} without, which {name} does not train together: train them in "
        raise wrong_value("train_dataset", f"{text}two runs, or remove the images. SFTTrainer takes both.")
    if isinstance(processor, PreTrainedTokenizerBase):
        text = f"is a tokenizer, {type(processor).__name__}, which reads no images: give the model's processor, "
        raise wrong_value("processing_class", f"{text}AutoProcessor.from_pretrained(MODEL).")
    finds = getattr(args, "ddp_find_unused_parameters", None)
    reenters = (getattr(args, "gradient_checkpointing_kwargs", None) or {}).get("use_reentrant")
    blind = [stream.name for stream in streams if not any(map(first_sample(stream).get, _IMAGES))]
    if blind and args is not None and args.world_size > 1 and (finds is False or (finds is None and reenters)):
        text = f"={finds}{', with use_reentrant=True' if reenters else ''}: ranks would wait for gradients of the "
        text += f"vision tower, which {blind} do not use. Set it to True, and use_reentrant to False."
        raise wrong_value("ddp_find_unused_parameters", text)


def check_template(args: Any, tokenizer: Any) -> None:
    """Refuses `assistant_only_loss` with a chat template that does not mark the assistant's turns, nor TRL for it.

    Args:
        args: The trainer's arguments; others than `SFTConfig` have no such option.
        tokenizer: The tokenizer or processor; `None` if the trainer loads it.

    Raises:
        InvalidValueError: Names the ways out.
    """
    if not getattr(args, "assistant_only_loss", False) or not getattr(tokenizer, "chat_template", None):
        return
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    try:
        if not has_generation_markers(tokenizer.chat_template):
            get_training_chat_template(tokenizer)
    except ValueError as error:
        hint = "Give a template that marks them, or leave assistant_only_loss out"
        if isinstance(tokenizer, PreTrainedTokenizerBase):  # Chat reads no images
            hint += " and give the streams the format Chat, which finds the assistant's turns of other templates"
        hint += "."
        raise InvalidValueError(
            "assistant_only_loss=True: the chat template has no {% generation %} around the assistant's turns. " + hint,
            option="assistant_only_loss",
            expected="False for a chat template without {% generation %}",
            found=True,
            hint=hint,
        ) from error


def check_sft(stream: Stream, args: Any, formats: bool, render: Render, beside_images: bool = False) -> None:
    """Refuses a stream that SFTTrainer would fail on, or train in an unwanted way.

    Args:
        stream: The stream.
        args: The trainer's `SFTConfig`.
        formats: Whether there is a formatting function.
        render: Applies the chat template to turns.
        beside_images: Whether it, or a stream beside it, has images.

    Raises:
        ValueError: With the stream, its columns and the required ones.
    """
    from trl.data_utils import is_conversational, is_conversational_from_value

    sample = first_sample(stream)
    columns, text = set(sample), args.dataset_text_field
    if beside_images and formats:
        text = "is not called where streams have images: map the data sets to 'messages', and leave it out"
        raise wrong_value("formatting_func", text)
    known = _SFT_FORMATS[:2] if beside_images else (*_SFT_FORMATS, {text})
    if not formats and not any(needed <= columns for needed in known):
        others = " where streams have images" if beside_images else f", {text!r} (dataset_text_field) or 'input_ids'"
        way = "convert the rows" if beside_images else "pass a formatting_func"
        raise InvalidValueError(
            f"Stream {stream.name!r} has the columns {sorted(columns)}, but SFTTrainer needs 'messages', or 'prompt' "
            f"and 'completion'{others}. Rename some, or {way}.",
            option="columns",
            stream=stream.name,
        )
    has_turns = is_conversational(sample) or is_conversational_from_value(sample)
    if args.assistant_only_loss and not (has_turns and (not beside_images or "messages" in columns)):
        message = f"=True: stream {stream.name!r} is no conversation (its columns are {sorted(columns)}): all of it "
        message += "would count. Convert it to 'messages', or leave the option out."
        raise wrong_value("assistant_only_loss", message, stream=stream.name)
    if args.completion_only_loss and not columns & {"completion", "labels"}:
        message = f"=True: stream {stream.name!r} has no completions (its columns are {sorted(columns)}): all of it "
        message += "would count. Convert it to 'prompt' and 'completion', or leave it out: each stream then decides."
        raise wrong_value("completion_only_loss", message, stream=stream.name)
    if (
        not formats
        and "input_ids" not in columns
        and (dropped := _dropped(stream, sample, _IMAGES if beside_images else (*_READ, text), render))
    ):
        logger.warning(
            "Stream %r: SFTTrainer drops %s, so that it changes nothing. Put a system prompt into the messages, rename "
            "'functions' to 'tools', take out what is not to be learned; then remove the column.",
            *(stream.name, " and ".join(dropped)),
        )


def _dropped(stream: Stream, sample: dict[str, Any], read: Sequence[str], render: Render) -> list[str]:
    """Names the columns of a sample, and the keys of turns of all rows, that SFTTrainer and the template drop."""
    spoken = [name for name in _SPOKEN if isinstance(sample.get(name), list)]
    is_whole = isinstance(stream.dataset, datasets.Dataset) and stream.preprocess is None
    rows = stream.dataset.select_columns(spoken) if is_whole and spoken else [sample]
    seen, keys = {"role", "content", "from", "value"}, dict[str, None]()
    for row in rows if spoken else ():
        for name in spoken:
            new = {key for turn in row[name] or () for key, value in turn.items() if not is_nothing(value)} - seen
            if new:  # each key once: where it first says something
                seen |= new
                turns = [_turn(turn) for turn in row[name]]
                keys |= dict.fromkeys(key for _, key in unread_keys(render, turns) if key in new)
    columns = unread_columns(sample, (*_SPOKEN, *read))
    return [*(f"the column {name!r}" for name in columns), *(f"the key {name!r} of turns" for name in keys)]


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a turn with role and content, which TRL gives to those of ShareGPT, without keys of other rows."""
    own = {name: part for name, part in turn.items() if part is not None}
    return {"role": own.pop("from", ""), "content": own.pop("value", ""), **own}


def first_sample(stream: Stream) -> dict[str, Any]:
    """Reads the first sample of a stream, preprocessed, from which TRL detects the format.

    Raises:
        ValueError: If the stream is empty.
    """
    sample: dict[str, Any] | None = next(iter(stream.dataset), None)
    if sample is None:
        raise InvalidValueError(f"Stream {stream.name!r}: the data set is empty.", option="dataset", stream=stream.name)
    return sample if stream.preprocess is None else stream.preprocess(sample)
