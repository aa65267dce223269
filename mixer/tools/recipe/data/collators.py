"""Collators of formatted or tokenized rows, by the model's task; those of transformers pad labels by -100."""

from typing import Any

from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from transformers.utils import logging

from mixer.utils.errors import InvalidValueError

logger = logging.get_logger(__name__)


class _CausalCollator(DataCollatorForSeq2Seq):
    """Pads tokens and labels; without labels all tokens are learned."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        return super().__call__([{"labels": row["input_ids"], **row} for row in features], return_tensors)  # type: ignore[no-untyped-call]


class _MaskingCollator(DataCollatorForLanguageModeling):
    """Masks rows of tokens; rows with labels are masked already and only padded."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        if "labels" not in features[0]:
            return super().__call__(features, return_tensors)
        return DataCollatorForTokenClassification(self.tokenizer)(features, return_tensors)


def collator_for(task: str, tokenizer: Any) -> Any:
    """Creates the collator of a task, which pads labels by -100, masks for masked language models, and keeps classes.

    Args:
        task: The model's task.
        tokenizer: A tokenizer with a pad token.
    """
    collators: dict[str, Any] = {
        "causal-lm": _CausalCollator,
        "seq2seq-lm": DataCollatorForSeq2Seq,
        "token-classification": DataCollatorForTokenClassification,
        "masked-lm": _MaskingCollator,
    }
    return collators.get(task, DataCollatorWithPadding)(tokenizer)


def ensure_pad_token(tokenizer: Any, task: str) -> None:
    """Pads with the end-of-text token if a tokenizer has no pad token: attention and labels ignore padding.

    Args:
        tokenizer: The tokenizer.
        task: The model's task.

    Raises:
        ValueError: If the task needs a pad token of its own.
    """
    if tokenizer.pad_token is not None:
        return
    if task == "causal-lm" and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        logger.warning("tokenizer: it has no pad token; batches are padded with its eos_token %r.", tokenizer.eos_token)
        return
    raise InvalidValueError(
        f"{type(tokenizer).__name__} has no pad token to pad batches with: give it one, as in tokenizer: "
        "{factory: transformers.AutoTokenizer.from_pretrained, arguments: {pretrained_model_name_or_path: NAME, "
        "pad_token: '<pad>'}}, which the model must know.",
        option="pad_token",
    )
