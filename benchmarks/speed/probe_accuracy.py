"""How far a sketch's cosines are from the exact ones, on a model that was trained on real text."""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.probe_steps import Subject
from mixer.gradients.probe import GradientProbe
from mixer.measurements.gradients import GradientStatistics
from mixer.utils.arrays import FloatArray
from tasks.text_domains import cpp_headers, english_docstrings, python_source

SIZES = (16, 32, 64, 128)
_SHIFT = 64  # bytes by which the streams after the third are another language of the same text
_NUM_SEEDS, _NUM_BATCHES = 3, 2


class Texts:
    """Batches of the demo's three domains: stream k reads domain k mod 3, its bytes shifted by 64 · (k // 3).

    A shifted domain has the letters of others for its own, so that what streams have in common differs from pair to
    pair.

    Args:
        num_streams: Number of streams.
        num_rows: Rows of a batch; row i is of stream i mod `num_streams`.
        length: Bytes of a row.
    """

    def __init__(self, num_streams: int, num_rows: int, length: int):
        sizes = (1_000, 1, length)
        sources = (python_source(*sizes), cpp_headers(*sizes), english_docstrings(*sizes))
        self._blocks = [source["train"].blocks.long() for source in sources]
        self.stream_ids = np.arange(num_rows) % num_streams

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            rows = []
            for stream in self.stream_ids.tolist():
                blocks = self._blocks[stream % 3]
                block = blocks[int(torch.randint(len(blocks), (1,), generator=generator))]
                rows.append((block + _SHIFT * (stream // 3)) % 256)
            yield torch.stack(rows)


def accuracy(args: argparse.Namespace, num_streams: int) -> dict[str, Any]:
    """Compares sketches of several sizes with exact products, on the same batches of a model after some steps.

    Args:
        args: The command line.
        num_streams: Number of streams.

    Returns:
        Least, mean and largest of the exact cosines, and by sketch size the largest and the root mean square error of
        a cosine and the mean error that the sketch itself says it may have.
    """
    subject = Subject(args, num_streams)
    texts = Texts(num_streams, args.batch, args.length)
    batches = iter(texts)
    subject.stream_ids = texts.stream_ids
    for _ in range(args.trained_steps):
        subject.ids = next(batches).to(subject.device)
        subject.plain()
    measured = [next(batches).to(subject.device) for _ in range(_NUM_BATCHES)]
    probe = GradientProbe(subject.model, num_streams, "exact", variance=False)
    exact = [_read(subject, probe, ids) for ids in measured]
    cosines = np.concatenate([_pairs(one.cosines) for one in exact])
    sketches = {str(size): _errors(subject, measured, exact, size) for size in SIZES}
    least, most = float(cosines.min()), float(cosines.max())
    return {"cosines": {"least": least, "mean": float(cosines.mean()), "most": most}, "sketch_size": sketches}


def _errors(subject: Subject, measured: list[Tensor], exact: list[GradientStatistics], size: int) -> dict[str, float]:
    errors, bars = [], []
    for seed in range(_NUM_SEEDS):
        probe = GradientProbe(subject.model, subject.num_streams, "sketch", variance=False, sketch_size=size, seed=seed)
        for ids, true in zip(measured, exact, strict=True):
            sketch = _read(subject, probe, ids)
            norms = np.sqrt(np.diagonal(true.gram))
            errors.append(_pairs(sketch.cosines - true.cosines))
            bars.append(_pairs(sketch.gram_error / np.outer(norms, norms)))
    values = np.concatenate(errors)
    return {
        "largest": float(np.abs(values).max()),
        "root_mean_square": float(np.sqrt(np.square(values).mean())),
        "mean_bar": float(np.concatenate(bars).mean()),
    }


def _read(subject: Subject, probe: GradientProbe, ids: Tensor) -> GradientStatistics:
    probe.start(subject.stream_ids)
    subject.loss(ids).backward()  # type: ignore[no-untyped-call]
    statistics = probe.finish()
    subject.optimizer.zero_grad()
    return statistics


def _pairs(matrix: FloatArray) -> FloatArray:
    return matrix[np.triu_indices(len(matrix), 1)]
