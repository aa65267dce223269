"""Token ids that a model does not have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from mixer.models.token_ids import check_token_column, check_tokens, num_tokens_of
from mixer.utils.errors import InvalidValueError
from tests.helpers import build_model
from tests.mixer.trainer.runs import make, train


def _rows(token: int) -> Dataset:
    return Dataset.from_dict({"input_ids": [[1, 2, 3]] * 5 + [[1, token, 3]], "labels": [[1, 2, 3]] * 6})


def _collated(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels")}


@pytest.mark.parametrize("wrong", [0, -1])
def test_ids_outside_of_the_embedding_are_refused_before_a_forward(wrong: int, tmp_path: Path) -> None:
    known = num_tokens_of(build_model("llama"))
    assert known is not None
    wrong = wrong or known
    for call in (
        lambda: check_tokens("s", torch.tensor([[0, wrong]]), known),
        lambda: check_token_column("s", _rows(wrong), known),
        lambda: make(tmp_path, train_dataset={"a": _rows(wrong)}),
        lambda: make(tmp_path, train_dataset={"a": _rows(1)}, eval_dataset=_rows(wrong), eval_strategy="epoch"),
        lambda: train(tmp_path, train_dataset={"a": _rows(wrong)}, data_collator=_collated, max_steps=3),
    ):
        with pytest.raises(InvalidValueError) as refused:
            call()
        assert (refused.value.option, refused.value.found) == ("input_ids", wrong)
    check_tokens("s", torch.tensor([[0, known - 1]]), known)
    check_token_column("s", _rows(known - 1), known)
    check_token_column("s", _rows(known).with_transform(lambda rows: rows), known)


def test_models_that_read_ids_in_their_own_way_are_left_alone() -> None:
    model: Any = build_model("llama")
    known = num_tokens_of(model)
    model.config.image_token_id = known
    assert num_tokens_of(model) is None

    class Mine(torch.nn.Embedding):
        pass

    assert num_tokens_of(Mine(3, 2)) is None


def test_a_checkpoint_of_another_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    model: Any = build_model("llama")
    model.resize_token_embeddings(model.config.vocab_size + 8)
    with pytest.raises(InvalidValueError) as refused:
        train(tmp_path, model, tmp_path / "checkpoint-1", max_steps=2)
    assert refused.value.option == "resume_from_checkpoint"
    assert "embed_tokens" in str(refused.value)
