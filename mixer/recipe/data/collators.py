"""Collators of streams in a format, by the model's task."""

from typing import Any

from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from transformers.utils import logging

from mixer.recipe.data.formats.tokens import IGNORED

logger = logging.get_logger(__name__)


class _CausalCollator(DataCollatorForSeq2Seq):
    """Pads tokens and labels; rows of tokens without labels are learned whole."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        return super().__call__([{"labels": row["input_ids"], **row} for row in features], return_tensors)  # type: ignore[no-untyped-call]


class _MaskingCollator(DataCollatorForLanguageModeling):
    """Masks rows of tokens; rows with labels were masked before, and only padded."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        if "labels" not in features[0]:
            return super().__call__(features, return_tensors)
        padding = DataCollatorForTokenClassification(self.tokenizer, label_pad_token_id=IGNORED)
        return padding(features, return_tensors)


def collator_for(task: str, tokenizer: Any) -> Any:
    """Gives what makes micro-batches of samples that a format made, or of rows of tokens.

    Args:
        task: The model's task.
        tokenizer: The tokenizer, which has a pad token.

    Returns:
        A collator of transformers: it pads labels by -100 for language models, masks for masked ones, and leaves
        classes alone.
    """
    if task == "causal-lm":
        return _CausalCollator(tokenizer, label_pad_token_id=IGNORED)
    if task == "seq2seq-lm":
        return DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED)
    if task == "masked-lm":
        return _MaskingCollator(tokenizer)
    if task == "token-classification":
        return DataCollatorForTokenClassification(tokenizer, label_pad_token_id=IGNORED)
    return DataCollatorWithPadding(tokenizer)


def ensure_pad_token(tokenizer: Any, task: str) -> None:
    """Gives a tokenizer that has no pad token one, where any will do: attention and labels leave it out.

    Args:
        tokenizer: The tokenizer.
        task: The model's task.

    Raises:
        ValueError: If the task needs one of its own.
    """
    if tokenizer.pad_token is not None:
        return
    if task == "causal-lm" and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        logger.warning("tokenizer: it has no pad token; batches are padded with its eos_token %r.", tokenizer.eos_token)
        return
    raise ValueError(
        f"{type(tokenizer).__name__} has no pad token to fill batches up with: give it one, as in tokenizer: "
        "{factory: transformers.AutoTokenizer.from_pretrained, arguments: {pretrained_model_name_or_path: NAME, "
        "pad_token: '<pad>'}}, which the model must know."
    )
