"""Pseudo-sample replay: a language model writes the samples of earlier tasks itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from mixer.models.labels import IGNORED
from mixer.trainer.method import RunContext
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count
from replay.generation.sampling import Sampling, check_generates, padding_of, sample
from replay.methods.memories import find_memory
from tasks.methods.shared import TaskContext, TaskMethod

_ROWS = 32  # sampled at once


class PseudoSamples(TaskMethod):
    """Fills the memory, before each task but the first, with samples that the model writes, instead of real ones.

    Sun et al. 2019, "LAMOL: LAnguage MOdeling for Lifelong Language Learning", arXiv:1909.03329, section 3.2: the model
    as it was before the task continues a start token by top-k sampling, and the new task is trained together with
    these pseudo-samples of earlier tasks, in full. In the paper they are 5 to 20 % of the task's samples: that is the
    capacity of the memory here. No sample of an earlier task is kept.

    The model must learn to write whole samples: each begins with the start token, and all further tokens are labels.

    Args:
        memory: Name of the buffer's stream; the buffer is a `ReplayBuffer(capacity, is_online=False)`.
        start: The token that samples begin with; `None` for the model's `bos_token_id`.
        top_k: Number of the likeliest tokens from which each token is drawn; 20 in the paper.
        max_length: Largest number of tokens of a sample; `None` for that of the task's first sample.

    Raises:
        ValueError: If a value is too small; when the trainer is made, if there is no such buffer, it takes in real
            samples, or the model does not write text; when a task begins, if its samples do not begin with the start
            token or have other labels than their tokens.

    Example:
        >>> run = ContinualRun(  # doctest: +SKIP
        ...     model, sequence, args, memory=ReplayBuffer(400, is_online=False), methods=[PseudoSamples()]
        ... )
    """

    needs = frozenset({"whole weights"})

    def __init__(
        self, memory: str = "memory", start: int | None = None, top_k: int = 20, max_length: int | None = None
    ):
        check_count("top_k", top_k, 1, "the paper uses 20")
        if max_length is not None:
            check_count("max_length", max_length, 2, "the start token and one more are the least")
        self.memory, self.start, self.top_k, self.max_length = memory, start, top_k, max_length

    def attach(self, run: RunContext) -> None:
        """Finds the memory; see `Method.attach`."""
        super().attach(run)
        _, self._buffer, _ = find_memory(run, self.memory, self.name)
        check_generates(run.passes.model)
        if self._buffer.is_online:
            raise InvalidValueError.about(
                "memory", f"must be ReplayBuffer({self._buffer.capacity}, is_online=False), to keep real samples out."
            )

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Fills the memory with what the model writes; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        start, first = self._start_of(model), task.dataset[0]
        _check_sample(first, start, task.name)
        if task.number:
            self._buffer.clear()
            length = self.max_length or len(first["input_ids"])
            rows = self._written(start, length, (self.run.seed, task.number))
            samples = PseudoRows(rows, padding_of(model), first)
            self._buffer.remember(f"written before {task.name}", samples)

    def _start_of(self, model: Any) -> int:
        start = model.config.bos_token_id if self.start is None else self.start
        if start is None:
            raise ValueError("PseudoSamples: the model has no bos_token_id: name the first token of samples, start=.")
        return int(start)

    def _written(self, start: int, length: int, key: tuple[int, ...]) -> NDArray[np.int64]:
        """Samples rows `[capacity, length]`, -1 after their end, each rank a part of them; the same on all ranks."""
        run, capacity = self.run, self._buffer.capacity
        sampling = Sampling(length - 1, top_k=self.top_k)

        def part() -> NDArray[np.int64]:
            rows = np.full((capacity, length), -1, dtype=np.int64)
            for number in range(run.rank, -(-capacity // _ROWS), run.world_size):
                own = rows[number * _ROWS : (number + 1) * _ROWS]
                prompts = torch.full((len(own), 1), start, device=run.device)
                mask = torch.ones_like(prompts)
                with run.passes.without_gradients(training=False):  # which restores the random state
                    written = sample(run.passes.model, prompts, mask, sampling, (*key, number))
                own[:, 0] = start
                own[:, 1 : 1 + written.shape[1]] = written.cpu().numpy()
            return rows

        own = run.rank_sync.run_on_all(part)
        parts = [np.frombuffer(content, dtype=np.int64) for content in run.rank_sync.gather_bytes(own.tobytes())]
        by_rank = np.stack(parts).reshape(run.world_size, capacity, length)
        return by_rank[np.arange(capacity) // _ROWS % run.world_size, np.arange(capacity)]


class PseudoRows(Dataset[dict[str, Any]]):
    """Rows of tokens as samples, padded at the end.

    Args:
        rows: int64 `[num_samples, length]`; -1 after the end of a row.
        padding: The token of padding.
        like: A sample of the task, whose columns and kind of lists the rows have, so that both fit one batch.
    """

    def __init__(self, rows: NDArray[np.int64], padding: int, like: Mapping[str, Any]):
        self.rows, self._padding = torch.from_numpy(rows), padding
        self._has_mask, self._are_lists = "attention_mask" in like, isinstance(like["input_ids"], list)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        counts = row >= 0
        mask = {"attention_mask": counts.long()} if self._has_mask else {}
        sample = {
            "input_ids": row.masked_fill(~counts, self._padding),
            **mask,
            "labels": row.masked_fill(~counts, IGNORED),
        }
        return {name: column.tolist() for name, column in sample.items()} if self._are_lists else sample


def _check_sample(sample: Any, start: int, task: str) -> None:
    """Raises a `ValueError` if a model that learns such samples cannot write them."""
    ids, labels = (torch.as_tensor(sample[name]) for name in ("input_ids", "labels"))
    mask = torch.as_tensor(sample.get("attention_mask", torch.ones_like(ids))).bool()
    if int(ids[0]) != start:
        raise InvalidValueError.about(
            "start", f"must begin each sample, but one of task {task!r} begins with {int(ids[0])}, not {start}."
        )
    if labels.shape != ids.shape or (labels != ids)[1:][mask[1:]].any():
        raise InvalidValueError.about(
            "labels", f"must be input_ids, for the model to write whole samples, but are not in task {task!r}."
        )
