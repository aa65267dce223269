"""What a probe has to find, from one backward for each row and for each stream."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.gradients.probe import GradientProbe
from mixer.measurements.gradients import GradientStatistics

Batch = dict[str, Tensor]


@dataclass
class Case:
    """A model with a batch, and the loss of each of its rows."""

    model: nn.Module
    batch: Batch
    losses: Callable[[nn.Module, Batch], Tensor]  # `[num_rows]`: sums over the items
    items: Tensor  # int64 `[num_rows]`
    stream_ids: list[int]
    num_streams: int = 3

    @property
    def num_rows(self) -> int:
        return len(self.stream_ids)

    def rows(self, indices: Sequence[int]) -> Batch:
        return {name: value[list(indices)] for name, value in self.batch.items()}

    def loss(self, indices: Sequence[int] | None = None, model: nn.Module | None = None) -> Tensor:
        chosen = range(self.num_rows) if indices is None else indices
        sums = self.losses(self.model if model is None else model, self.rows(list(chosen)))
        return sums.sum() / max(int(self.items.sum()), 1)

    def ids(self, indices: Sequence[int]) -> list[int]:
        return [self.stream_ids[index] for index in indices]

    def probed(self, probe: GradientProbe, parts: Sequence[Sequence[int]] | None = None, **options: Any) -> Any:
        self.model.zero_grad()
        for part in [range(self.num_rows)] if parts is None else parts:
            probe.start(self.ids(part), self.items[list(part)])
            (self.loss(part) * options.get("loss_scale", 1.0)).backward()
        return probe.finish(**options)


def parameters_of(model: nn.Module, names: Callable[[str], bool] = lambda name: True) -> list[nn.Parameter]:
    return [one for name, one in model.named_parameters() if one.requires_grad and names(name)]


def gradient(case: Case, indices: Sequence[int], parameters: Sequence[nn.Parameter]) -> Tensor:
    """float64 `[size]`: the gradient of the sum of the losses of some rows, from a forward of their own."""
    loss = case.losses(case.model, case.rows(indices)).sum()
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in pairs]).double()


def expected_of(case: Case, parameters: Sequence[nn.Parameter] | None = None) -> GradientStatistics:
    """The statistics by their definitions."""
    parameters = parameters_of(case.model) if parameters is None else parameters
    ids, items, num_streams = np.array(case.stream_ids), case.items.numpy(), case.num_streams
    gram = np.full((num_streams, num_streams), np.nan)
    variance, squared_norm = np.full((2, num_streams), np.nan)
    totals = np.bincount(ids, items, num_streams)
    counts = np.bincount(ids[items > 0], minlength=num_streams)
    means = {}
    for stream in np.flatnonzero(totals):
        own = np.flatnonzero((ids == stream) & (items > 0))
        means[stream] = gradient(case, own.tolist(), parameters) / totals[stream]
        samples = [gradient(case, [row], parameters) for row in own.tolist()]
        if len(own) > 1:
            pairs = [(i, j) for i in range(len(own)) for j in range(len(own)) if i != j]
            products = sum((samples[i] @ samples[j]).item() for i, j in pairs)
            squared_norm[stream] = products / sum(items[own[i]] * items[own[j]] for i, j in pairs)
            variance[stream] = len(own) * ((means[stream] @ means[stream]).item() - squared_norm[stream])
    for first, one in means.items():
        for second, other in means.items():
            gram[first, second] = (one @ other).item()
    shares = totals / max(totals.sum(), 1)
    return GradientStatistics(gram, variance, squared_norm, counts, shares, np.zeros_like(gram))


def assert_equal(found: GradientStatistics, expected: GradientStatistics, tolerance: float = 1e-5) -> None:
    """Relative to the norms, as far as a number is small because others cancel."""
    norms = np.sqrt(np.diagonal(expected.gram))
    sizes = np.outer(norms, norms)
    assert_near(found.gram, expected.gram, tolerance * sizes)
    own = np.maximum(np.diagonal(expected.gram), np.nan_to_num(expected.variance))
    assert_near(found.variance, expected.variance, 3 * tolerance * own)
    assert_near(found.squared_norm, expected.squared_norm, 3 * tolerance * own)
    assert found.counts.tolist() == expected.counts.tolist()
    np.testing.assert_allclose(found.shares, expected.shares, rtol=1e-12)


def assert_near(found: np.ndarray, expected: np.ndarray, limits: np.ndarray) -> None:
    assert np.isnan(found).tolist() == np.isnan(expected).tolist(), (found, expected)
    there = ~np.isnan(expected)
    assert (np.abs(found - expected)[there] <= limits[there] + 1e-300).all(), (found, expected)


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def assert_same_gradients(found: list[Tensor | None], expected: list[Tensor | None], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == other.dtype
            limit = tolerance * other.double().norm() + 1e-12
            assert (one.double() - other.double()).norm() <= limit


def splits(num_rows: int, *sizes: int) -> Iterator[list[int]]:
    """Cuts rows into micro-batches of these sizes."""
    assert sum(sizes) == num_rows
    start = 0
    for size in sizes:
        yield list(range(start, start + size))
        start += size
