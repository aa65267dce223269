"""Iterable streams that are shorter than a few steps, on three ranks: each row comes equally often."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import IterableDataset

from mixer import MixingTrainer, Stream
from tests.helpers import arguments, build_model
from tests.ranks.warm import on_ranks

NUM_STEPS = 4


def _rows(numbers: list[int]) -> Iterator[dict[str, list[int]]]:
    for number in numbers:
        row = [number, *range(2, 8)]
        yield {"input_ids": row, "labels": row, "attention_mask": [1] * len(row)}


class _Rows(IterableDataset[Any]):
    def __init__(self, length: int):
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        yield from _rows(list(range(self.length)))


def _in_shards(length: int, num_shards: int) -> datasets.IterableDataset:
    numbers = [list(range(length))[shard::num_shards] for shard in range(num_shards)]
    return datasets.IterableDataset.from_generator(_shard_rows, gen_kwargs={"shards": numbers})


def _shard_rows(shards: list[list[int]]) -> Iterator[Any]:
    for numbers in shards:
        yield from _rows(numbers)


DATA = {
    "torch, 7 rows": lambda: _Rows(7),
    "one shard, 7 rows": lambda: _in_shards(7, 1),
    "three shards, 7 rows": lambda: _in_shards(7, 3),
    "torch, 1 row": lambda: _Rows(1),
    "one shard, 2 rows": lambda: _in_shards(2, 1),
}


class _Recording(MixingTrainer):
    """Notes the rows of each step: one micro-batch, which is padding where this rank has no row left."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        is_padding = not any(self._parts.run.step.micro_items)
        self.__dict__.setdefault("rows", []).append([] if is_padding else inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *args, **kwargs)


def _trained(folder: Path, data: Any, checkpoint: int | None = None, **changes: Any) -> list[list[int]]:
    """Rows that this rank trained on, two in each step."""
    options = {"max_steps": NUM_STEPS, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 2}
    args = arguments(folder, **options, **changes)
    trainer = _Recording(build_model("llama"), args, None, [Stream("rows", data)])
    trainer.train(resume_from_checkpoint=checkpoint and str(folder / f"checkpoint-{checkpoint}"))
    rows: list[list[int]] = trainer.rows
    return rows


def trained(folder: Path) -> dict[str, list[list[int]]]:
    return {name: _trained(folder / name, data()) for name, data in DATA.items()}


def resumed(folder: Path) -> list[list[list[int]]]:
    """Whole runs with and without a worker, and what they go on with."""
    runs = []
    for num_workers in (0, 1):
        place, data = folder / f"resumed-{num_workers}", _in_shards(7, 3)
        runs += [_trained(place, data, checkpoint, dataloader_num_workers=num_workers) for checkpoint in (None, 1, 3)]
    return runs


def test_each_row_comes_equally_often_and_runs_go_on_to_the_bit(tmp_path: Path) -> None:
    results = on_ranks(tmp_path, trained, resumed, world_size=3)
    for name in DATA:
        length = int(name.split()[-2])
        given = Counter(row for result in results for step in result["trained"][name] for row in step)
        whole, rest = divmod(given.total(), length)  # a pass ends in its last step, which may be smaller
        assert sorted(given.values()) == [whole] * (length - rest) + [whole + 1] * rest, name
    for result in results:
        for first in (0, 3):
            whole_run, after_one, after_three = result["resumed"][first : first + 3]
            assert len(whole_run) == NUM_STEPS
            assert after_one == whole_run[1:]
            assert after_three == whole_run[3:]
