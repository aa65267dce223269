"""Which data sets and collators are known to draw no random numbers, so that they need not be seeded."""

from typing import Any

import datasets
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DefaultDataCollator,
    default_data_collator,
)
from transformers.trainer_utils import RemoveColumnsCollator

_FUNCTIONS = (default_data_collator, default_collate)
_COLLATORS = (
    DataCollatorWithPadding,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DefaultDataCollator,
)


def reads_without_randomness(dataset: Any) -> bool:
    """Says whether a data set is of a kind that draws nothing when a sample is read.

    Args:
        dataset: A map-style data set.

    Returns:
        `False` where it is not known.
    """
    if isinstance(dataset, datasets.Dataset):
        return bool(dataset.format["type"] != "custom")  # a transform set by `set_transform`
    if type(dataset) is ConcatDataset:
        return all(reads_without_randomness(part) for part in dataset.datasets)
    if type(dataset) is Subset:
        return reads_without_randomness(dataset.dataset)
    return type(dataset) in (TensorDataset, list, tuple, range) or bool(getattr(dataset, "draws_nothing", False))


def collates_without_randomness(collator: Any) -> bool:
    """Says whether a collator is of a kind that draws nothing.

    Args:
        collator: A collator.

    Returns:
        `False` where it is not known.
    """
    if type(collator) is RemoveColumnsCollator:
        collator = collator.data_collator
    if type(collator) is DataCollatorForLanguageModeling:
        return not collator.mlm
    return collator in _FUNCTIONS or type(collator) in _COLLATORS
