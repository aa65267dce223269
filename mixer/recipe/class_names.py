"""What the classes of a recipe's streams are called: the same for all of a head, and kept with the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mixer.models.inputs import heads_of, inner_model, takes_task


def note_class_names(model: nn.Module, heads: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> None:
    """Writes the names of classes into a model's configuration, which is saved with it.

    A model of one head gets `id2label` and `label2id`, one of several the entry `class_names`, names by head.

    Args:
        model: The model.
        heads: The head of each stream, by the stream's name; of no meaning for a model of one head.
        names: The names of the classes of streams that know them, by the stream's name, in the order of their numbers.

    Raises:
        ValueError: If streams of one head number their classes differently.
    """
    by_head: dict[str, str] = {}
    has_several = takes_task(model)
    for stream in names:
        first = by_head.setdefault(heads[stream] if has_several else "", stream)
        if list(names[first]) != list(names[stream]):
            raise ValueError(
                f"streams.{stream}.format: its labels are {list(names[stream])}, and those of {first!r}, which goes by "
                f"the same head, {list(names[first])}: the same number would mean two things. Give both the same "
                "Labelled(labels=[...])."
            )
    config: Any = getattr(inner_model(model), "config", None)
    if config is None or not by_head:
        return
    if heads_of(model) is not None:
        config.class_names = {head: list(names[stream]) for head, stream in by_head.items()}
    elif not has_several and getattr(config, "num_labels", None) == len(names[by_head[""]]):
        config.id2label = dict(enumerate(names[by_head[""]]))
        config.label2id = {name: number for number, name in config.id2label.items()}
