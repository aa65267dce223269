"""The loader that a Trainer class makes itself: read once for each stream, then carried over or refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from transformers import Trainer

from mixer.mixture.stream import Stream
from mixer.run.hf_compat import train_batch_size
from mixer.run.replaced_methods import replaced
from mixer.run.samples import LoadingRules
from mixer.utils.attributes import attributes_held
from mixer.utils.errors import wrong_type
from mixer.utils.random_state import seeded

_MAKERS = ("get_train_dataloader", "_get_dataloader", "_get_train_sampler")


def read_own_loader(trainer: Any, mixin: type, streams: Sequence[Stream], rules: LoadingRules) -> list[Stream]:
    """Carries over what the trainer's own loader does, if its class makes one.

    Args:
        trainer: The trainer, after the construction of its parent class.
        mixin: The mixin in its method resolution order.
        streams: The streams.
        rules: How the trainer loads; they get the loader's collator, columns and options of workers.

    Returns:
        The streams, in the loader's order.

    Raises:
        TypeError: If the loader makes other batches than mixing; with what was found, and what to do.
    """
    maker, in_order = _maker(type(trainer), mixin), False
    for stream in streams:
        if maker is None or stream.is_memory:
            continue
        loader, rules.keeps_columns = _loader_of(trainer, mixin, stream.dataset)
        if found := _difference(trainer, loader, stream):
            owner, name = maker
            text = f"of {owner.__name__}, for the stream {stream.name!r}, {found} To load as the Trainer does, mix "
            text += f"`class Plain({owner.__name__}): {name} = Trainer.{name}`."
            raise wrong_type(name, text, stream=stream.name, found=found)
        rules.own_loader, in_order = loader, in_order or type(loader.sampler) is SequentialSampler
    return [replace(stream, shuffle=False) if in_order and not stream.is_memory else stream for stream in streams]


def _maker(trainer_class: Any, mixin: type) -> tuple[type, str] | None:
    """Returns the class and the method that make the loader of training in place of the Trainer's, or `None`."""
    order = trainer_class.__mro__
    for name in _MAKERS:
        classes = order[order.index(mixin) + 1 :] if name in vars(mixin) else order
        owner = next(owner for owner in classes if name in vars(owner))
        if vars(owner)[name] is not vars(Trainer)[name] and (owner, name) not in trainer_class.carried_overrides:
            return owner, name
    return None


def _loader_of(trainer: Any, mixin: Any, dataset: Any) -> tuple[Any, bool]:
    """Returns the trainer's loader of a data set, and whether it keeps columns that the model does not take."""
    removed: list[Any] = []

    def note(unchanged: Any, *_args: Any, **_kwargs: Any) -> Any:
        removed.append(unchanged)
        return unchanged

    with (
        seeded(0),
        replaced(trainer.accelerator, prepare=lambda loader, *_, **__: loader),
        replaced(trainer, _remove_unused_columns=note, _get_collator_with_removed_columns=note),
        attributes_held(trainer, train_dataset=dataset),
        attributes_held(trainer.args, train_sampling_strategy="random"),  # by length, all rows would be read
    ):
        return super(mixin, trainer).get_train_dataloader(), not removed


def _difference(trainer: Trainer, loader: Any, stream: Stream) -> str | None:
    """Says what a loader does that mixing would not, and how the same is had; `None` if there is nothing."""
    if type(loader) is not DataLoader:
        return f"returns a {type(loader).__name__}, which is not torch's DataLoader."
    batches, size = loader.batch_sampler, train_batch_size(trainer)
    sampler: Any = loader.sampler
    if batches is None:
        text = "has batch_size=None: each row is a batch. Rows are samples with per_device_train_batch_size=1 and "
        return f"{text}data_collator=lambda rows: rows[0]."
    if type(batches) is not BatchSampler:
        return f"makes batches by a {type(batches).__name__}. A stream has its own with Stream(batches=...)."
    if loader.dataset is not stream.dataset:
        return f"reads another data set, a {type(loader.dataset).__name__}. Pass that of each stream."
    if loader.batch_size != size:
        return f"has batch_size={loader.batch_size}, not {size}. Set per_device_train_batch_size."
    if stream.is_iterable:
        return None
    is_plain = type(sampler) in (RandomSampler, SequentialSampler) and not getattr(sampler, "replacement", False)
    if not is_plain or len(sampler) != stream.num_samples:
        return f"draws rows by a {type(sampler).__name__}, not each once. Weights here are those of streams."
    if loader.drop_last != trainer.args.dataloader_drop_last:
        return f"has drop_last={loader.drop_last}. Set dataloader_drop_last."
    return None
