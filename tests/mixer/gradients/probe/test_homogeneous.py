"""Whole gradients of micro-batches of one stream each."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.gradients.probe import GradientProbe
from mixer.measurements.gradients import signal_and_noise
from tests.mixer.gradients.probe.cases import vector_case
from tests.mixer.gradients.probe.reference import (
    Batch,
    Case,
    assert_same_gradients,
    expected_of,
    gradient,
    gradients_of,
    parameters_of,
)
from tests.refusals import refused

IDS = [0, 0, 0, 2, 2, 2, 2, 0, 1]
PARTS = [[0, 1], [3, 4, 5], [2], [6], [7], [8]]  # two of stream 2 and three of stream 0, of different size, one of 1
exact = partial(GradientProbe, homogeneous=True, exact_accumulate=True)


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, 4, 3, padding=1)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.last = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Any:
        hidden = torch.tanh(self.filters(inputs[:, None])).mT
        return self.scale * self.last(hidden + self.attention(hidden, hidden, hidden)[0]).mean(1)


def _odd(without: tuple[int, ...] = ()) -> Case:
    torch.manual_seed(0)
    case = vector_case(_Odd(), IDS, 5, 4)
    case.items[:] = 1
    case.items[list(without)] = 0
    case.batch["items"] = case.items.float()
    return case


def test_layers_of_any_kind_are_read() -> None:
    case = _odd()
    case.loss().backward()
    plain, probe = gradients_of(case.model), exact(case.model, 3)
    found = case.probed(probe, PARTS)
    assert probe.coverage == 1.0
    np.testing.assert_allclose(found.gram, expected_of(case).gram, rtol=1e-5)
    assert_same_gradients(gradients_of(case.model), plain)
    assert found.counts.tolist() == [4, 1, 4]
    found, expected = case.probed(probe, [[row] for row in range(9)]), expected_of(case)  # as samples give it
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-4)
    np.testing.assert_allclose(found.squared_norm, expected.squared_norm, rtol=1e-4, atol=1e-6)


def test_the_variance_is_of_the_differences_between_micro_batches_and_of_a_single_one_there_is_none() -> None:
    case = _odd()
    found, parameters = case.probed(exact(case.model, 3), PARTS), parameters_of(case.model)
    for stream in (0, 2):
        own = [part for part in PARTS if case.stream_ids[part[0]] == stream]
        sums = torch.stack([gradient(case, part, parameters) for part in own])
        sizes = np.array([len(part) for part in own])
        whole, parts = float(sums.sum(0).square().sum()), float(sums.square().sum())
        signal, noise = signal_and_noise(whole, parts, sizes.sum(), (sizes**2).sum())
        np.testing.assert_allclose([found.squared_norm[stream], found.variance[stream]], [signal, noise], rtol=1e-4)
    assert np.isnan(found.variance).tolist() == np.isnan(found.squared_norm).tolist() == [False, True, False]
    assert np.isfinite(found.gram).all()
    case = _odd(without=(6, 7))  # micro-batches without samples do not count
    assert np.isnan(case.probed(exact(case.model, 3), PARTS).variance).tolist() == [False, True, True]


def test_what_is_refused() -> None:
    with refused("homogeneous"):
        exact(_Odd(), 3).start([0, 2, 0])
    with refused("mode"):
        GradientProbe(_Odd(), 3, homogeneous=True)


def test_a_model_used_in_parts_of_a_backward_has_no_variance_but_a_right_product() -> None:
    case = _odd()
    losses, handle = case.losses, torch.ones((), requires_grad=True)

    def twice(model: nn.Module, batch: Batch) -> Tensor:
        again = torch.utils.checkpoint.checkpoint(lambda one: one * losses(model, batch), handle, use_reentrant=True)
        return losses(model, batch) + again

    expected = expected_of(case).gram * 4
    case.losses = twice
    found = case.probed(exact(case.model, 3), PARTS)
    np.testing.assert_allclose(found.gram, expected, rtol=1e-5)
    assert np.isnan(found.variance).all()
