import pytest
import torch

from mixer.recipe.data.collators import collator_for, ensure_pad_token
from tests.mixer.recipe.small_tokenizers import byte_level, of_words

SAMPLES = [{"input_ids": [68, 69, 0], "labels": [-100, 69, 0]}, {"input_ids": [70], "labels": [70]}]
WORDS = of_words("good bad film")


@pytest.mark.parametrize("task", ["causal-lm", "seq2seq-lm"])
def test_labels_of_language_models_are_padded_to_be_left_out(task: str) -> None:
    batch = collator_for(task, byte_level())(SAMPLES)
    assert batch["labels"].tolist() == [[-100, 69, 0], [70, -100, -100]]
    assert batch["input_ids"].tolist() == [[68, 69, 0], [70, 3, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_end_that_also_pads_is_learned_where_it_is_the_end() -> None:
    tokenizer = byte_level(pad_token=None)
    ensure_pad_token(tokenizer, "causal-lm")
    batch = collator_for("causal-lm", tokenizer)(SAMPLES)
    assert batch["input_ids"].tolist() == [[68, 69, 0], [70, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 69, 0], [70, -100, -100]]


def test_tokens_are_masked_and_classes_are_left_alone() -> None:
    torch.manual_seed(0)
    masked = collator_for("masked-lm", WORDS)([{"input_ids": [1, 5, 6, 7, 5, 6, 7, 2]}] * 8)
    is_learned = masked["labels"] != -100
    assert 0 < int(is_learned.sum()) < is_learned.numel() / 2
    classes = collator_for("sequence-classification", WORDS)(
        [{"input_ids": [1, 5, 2], "labels": 1}, {"input_ids": [1, 2], "labels": 0}]
    )
    assert classes["labels"].tolist() == [1, 0]
    assert classes["input_ids"].tolist() == [[1, 5, 2], [1, 2, 0]]


@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm", "seq2seq-lm"])
def test_a_tokenizer_without_a_pad_token_is_refused_where_it_needs_one(task: str) -> None:
    with pytest.raises(ValueError, match="has no pad token to pad batches with: give it one, as in tokenizer"):
        ensure_pad_token(byte_level(pad_token=None), task)
    with pytest.raises(ValueError, match="has no pad token"):
        ensure_pad_token(byte_level(pad_token=None, eos_token=None), "causal-lm")


def test_rows_that_were_masked_before_keep_their_labels() -> None:
    rows = [{"input_ids": [1, 3, 6, 2], "labels": [-100, 5, -100, -100]}, {"input_ids": [1, 2], "labels": [-100, 7]}]
    batch = collator_for("masked-lm", WORDS)(rows)
    assert batch["input_ids"][0].tolist() == [1, 3, 6, 2]
    assert batch["labels"].tolist() == [[-100, 5, -100, -100], [-100, 7, -100, -100]]
