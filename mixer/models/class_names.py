"""Names of classes: in data sets, and whether those that share a head number them alike."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
from torch import nn
from torch.utils.data import Subset
from transformers.utils import logging

from mixer.models.inputs import inner_model
from mixer.utils.errors import InvalidValueError

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class NamedClasses:
    """The names of the classes of a data set.

    Args:
        called: Name of the data set, as the beginning of a sentence.
        name: Its name inside a sentence.
        names: The names, in the order of their numbers; empty for numbers that nothing names.
        column: The column of the labels; `None` if the names come from elsewhere.
        head: The head that is trained on them; empty for the only one of a model.
        is_streamed: Whether rows are read on demand.
    """

    called: str
    name: str
    names: Sequence[str]
    column: str | None = None
    head: str = ""
    is_streamed: bool = False


def find_class_names(dataset: Any, columns: Iterable[str]) -> tuple[str, list[str]] | None:
    """Finds the names of the classes of a data set, of labels or of lists of labels.

    Args:
        dataset: The data set, or a subset of it.
        columns: Names that the column of the labels may have, the first that exists first.

    Returns:
        The column and the names; `None` if its labels have no names.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    features: Any = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return None
    for column in columns:
        feature = features.get(column)
        while isinstance(feature, (list, datasets.List, datasets.LargeList)):
            feature = feature[0] if isinstance(feature, list) else feature.feature
        if isinstance(feature, datasets.ClassLabel) and feature.names:
            return column, list(feature.names)
    return None


def check_same_classes(found: Iterable[NamedClasses]) -> dict[str, NamedClasses]:
    """Refuses data sets that share a head and number their classes differently.

    One may have more classes than another, if both number alike those that both have.

    Args:
        found: The names of each data set with names.

    Returns:
        The names by head, of the data set with most of them; none of a head whose classes have no names.

    Raises:
        InvalidValueError: Names both data sets, their classes, and the way to number them alike.
    """
    by_head: dict[str, NamedClasses] = {}
    for own in found:
        first = by_head.setdefault(own.head, own)
        if list(map(str.casefold, own.names)) == list(map(str.casefold, first.names)):
            continue
        is_known = own.names and first.names
        if not is_known or any(
            name.casefold() != other.casefold() for name, other in zip(own.names, first.names, strict=False)
        ):
            whose = f"the head {own.head!r}" if own.head else "its head"
            hint = _hint(own, first)
            raise InvalidValueError(
                f"{own.called}: its labels are {_in_words(own)}, and those of {first.name}, which shares {whose}, "
                f"{_in_words(first)}: the same number {'would' if is_known else 'may'} mean two things. {hint}",
                stream=own.name.removeprefix("stream ").strip("'"),
                expected=_in_words(first),
                found=list(own.names),
                hint=hint,
            )
        by_head[own.head] = max(first, own, key=lambda classes: len(classes.names))
    return {head: own for head, own in by_head.items() if own.names}


def _in_words(own: NamedClasses) -> str:
    return str(list(own.names)) if own.names else "numbers"


def _hint(own: NamedClasses, first: NamedClasses) -> str:
    if not (own.names and first.names):
        named, unnamed = (own, first) if own.names else (first, own)
        return (
            f"Say what the numbers of {unnamed.name} mean: Labelled(labels=[...]) with the names of the numbers 0, 1, "
            f"... in this order, such as {list(named.names)}; or with numbers in quotes, which name themselves."
        )
    if own.column is None:
        return "Give both the same Labelled(labels=[...])."
    known = {name.casefold() for name in first.names}
    union = [*first.names, *(name for name in own.names if name.casefold() not in known)]
    mapping = {name: number for number, name in enumerate(union)}
    which = "it" if len(union) == len(first.names) else f"both, for a head of {len(union)} classes,"
    call = f"dataset.align_labels_with_mapping({mapping}, {own.column!r})"
    if own.is_streamed:  # it has no such method
        numbers = {name.casefold(): number for name, number in mapping.items()}
        new = [numbers[name.casefold()] for name in own.names]
        call = f"dataset.map: its labels 0 to {len(new) - 1} become {new}"
    text = f"Renumber {which} with {call}, or give it a head of its own"
    if not known & {name.casefold() for name in own.names} and len(own.names) == len(first.names):
        names = f"dataset.cast_column({own.column!r}, ClassLabel(names={list(first.names)}))"
        text = f"If they mean the same, rename them: {names}. Else {text[0].lower()}{text[1:]}"
    return f"{text}. If your code renumbers them, take the names away: cast the column to Value('int64')."


def warn_of_config(model: nn.Module, named: NamedClasses) -> None:
    """Warns of a model whose configuration numbers the same names differently: it would be saved with wrong names.

    Args:
        model: The model.
        named: The names of the classes that its only head is trained on.
    """
    config: Any = getattr(inner_model(model), "config", None)
    label2id: Any = getattr(config, "label2id", None) or {}
    by_name = {str(name).casefold(): number for name, number in label2id.items()}
    if any(by_name.get(name.casefold(), number) != number for number, name in enumerate(named.names)):
        logger.warning(
            "The model's config has label2id=%s, but %s is labelled by %s: wrong names would be saved. Renumber by "
            "dataset.align_labels_with_mapping(model.config.label2id, %r), or set model.config.label2id and id2label.",
            *(label2id, named.name, dict(zip(named.names, range(len(named.names)), strict=True)), named.column),
        )
