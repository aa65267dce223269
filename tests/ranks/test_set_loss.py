"""The loss of an evaluation set is the mean over its rows or tokens, on one rank and two."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import MODEL_DATA, Tokens, build_model
from tests.losses import DECLARED, LOSSES, padded, ragged, small_model
from tests.mixer.trainer.runs import make
from tests.ranks.warm import on_ranks

SIZES = (7, 1)  # of sets: batches of 2 divide neither
HEADS = ("llama", "gpt2", "bert-classifier", "bert-tokens", "bert-regression")
KINDS = ("mean over tokens", "sum over tokens / num_items_in_batch", "0.01 x sum over tokens", "mean of rows' means",
         "mean of rows' sums", "focal, mean over tokens")  # fmt: skip


def _sets(rows: Any) -> dict[str, Any]:
    return {str(size): [rows[index] for index in range(size)] for size in SIZES}


def evaluations(folder: Path) -> dict[str, list[float]]:
    """Losses of both sets, before a run and in it."""
    found = {}
    for name in (*HEADS, *KINDS):
        head = name in HEADS
        data = Tokens(12, 1, MODEL_DATA[name]) if head else ragged(12, 1)
        options = {} if head else {"data_collator": padded, "compute_loss_func": LOSSES[name][0]}
        if name in DECLARED:
            options["loss_reduction"] = DECLARED[name]
        options |= {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "learning_rate": 0.0}
        options |= {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "eval_dataset": _sets(data)}
        trainer = make(folder / "run", name if head else small_model(), train_dataset=data, **options)
        before = trainer.evaluate()
        trainer.train()
        within = {key: value for entry in trainer.state.log_history[-4:] for key, value in entry.items()}
        found[name] = [metrics[f"eval_{size}_loss"] for metrics in (before, within) for size in SIZES]
    return found


def _by_hand(name: str, size: int) -> float:
    """The mean over rows or tokens, of one row at a time."""
    is_head, total, count = name in HEADS, 0.0, 0
    model = (build_model(name) if is_head else small_model()).eval()
    data = Tokens(12, 1, MODEL_DATA[name]) if is_head else ragged(12, 1)
    for index in range(size):
        row = {key: value[None] for key, value in data[index].items()} if is_head else padded([data[index]])
        with torch.no_grad():
            output = model(**row)
        loss = float(output.loss if is_head else LOSSES[name][0](output, row["labels"]))  # type: ignore[misc]
        labels = row["labels"] if name.startswith("bert") else row["labels"][:, 1:]
        terms = 1 if name.startswith("mean of rows'") else int(labels.ne(-100).sum())
        total += loss if name == "0.01 x sum over tokens" else loss * terms
        count += terms
    return total / count


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_loss_of_a_set_is_its_mean_on_one_rank_and_two(world_size: int, tmp_path: Path) -> None:
    results = (
        [evaluations(tmp_path)]
        if world_size == 1
        else [result["evaluations"] for result in on_ranks(tmp_path, evaluations, world_size=world_size)]
    )
    for found in results:
        for name in (*HEADS, *KINDS):
            expected = [_by_hand(name, size) for size in SIZES]
            assert found[name] == pytest.approx(expected * 2, rel=1e-5), name
