import json
import math
from collections.abc import Callable
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from mixer import (
    AdaptiveBatchSampler,
    Decision,
    GradientProbe,
    MixingDataLoader,
    Mixture,
    Observation,
    PiKE,
    Policy,
    schedules,
)
from mixer.measurements import EvaluationLoss, GradientNorm, GradientStatistics, LearningRate, Rates
from mixer.utils.errors import InvalidTypeError
from tests.mixer.made_measurements import measured
from tests.refusals import refused


def lines(size: int, slope: float, noise: float) -> TensorDataset:
    """Points on a line, more or less near it."""
    generator = torch.Generator().manual_seed(size)
    inputs = torch.randn(size, 2, generator=generator)
    return TensorDataset(inputs, slope * inputs[:, :1] + noise * torch.randn(size, 1, generator=generator))


def loading(**options: Any) -> MixingDataLoader:
    streams = {"steep": lines(40, 5.0, 0.1), "flat": lines(30, 0.1, 0.1), "noisy": lines(20, 0.1, 5.0)}
    return MixingDataLoader(streams, **{"batch_size": 12, "mixing": PiKE(2), "seed": 1, **options})


def run(loader: Any, num_batches: int, before: Callable[[], object] = lambda: None) -> None:
    """Trains a line on what a loader gives, and reports the gradients of each step."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in islice(chain.from_iterable(repeat(loader)), num_batches):
        before()
        optimizer.zero_grad()
        found = probing(model, loader.stream_ids, *batch, num_streams=3)
        optimizer.step()
        loader.observe(gradients=found)


def probing(model: nn.Module, ids: Any, inputs: Tensor, targets: Tensor, num_streams: int) -> GradientStatistics:
    probe = GradientProbe(model, num_streams)
    probe.start(ids)
    (model(inputs) - targets).square().mean().backward()
    return probe.finish()


def test_a_loader_goes_by_what_is_reported_and_a_resumed_one_goes_on_with_it() -> None:
    loader, weights = loading(mixing=PiKE(2, decay=0.0)), []
    run(loader, 6, lambda: weights.append(list(loader.mixing.weights.values())))
    assert weights[0] == weights[1] != weights[2]
    assert np.argmax(weights[-1]) == 0  # steep: a large gradient and little noise
    again = loading(mixing=PiKE(2, decay=0.0))
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert again.mixing.weights == loader.mixing.weights
    for one in (loader, again):
        next(iter(one))
        one.observe(gradients=measured())
    assert again.mixing.weights == loader.mixing.weights


def test_a_sampler_grows_by_the_noise_that_is_reported() -> None:
    data = lines(400, 1.0, 3.0)
    sampler = AdaptiveBatchSampler(data, schedules.NormTest(eta=0.3, initial=10, maximum=100, max_growth=None), seed=1)
    batch = next(iter(sampler))
    torch.manual_seed(0)
    found = probing(nn.Linear(2, 1), [0] * len(batch), *data[batch], num_streams=1)
    signal, noise = found.noise
    sampler.observe(gradients=found)
    assert signal > 0
    assert sampler.mixing.batch_size == min(100, math.ceil(noise / signal / 0.09)) > 10


@pytest.mark.parametrize(
    "options", [{"mixing": PiKE(3)}, {"mixing": None, "batch_size": schedules.NoiseScale(interval_steps=3, initial=12)}]
)
def test_who_does_not_report_what_is_due_is_told_once(options: Any, caplog: pytest.LogCaptureFixture) -> None:
    batches = iter(loading(**{"seed": 0, **options}))
    for _ in range(3):  # the third is measured, and counted when the fourth is asked for
        next(batches)
    assert "The mixture depends on" not in caplog.text
    for _ in range(4):
        next(batches)
    assert caplog.text.count("depends on ['Gradients'], and batch 3 was counted without") == 1


def test_gradients_of_other_streams_and_something_else_are_refused() -> None:
    loader = loading()
    next(iter(loader))
    with refused("observe"):
        loader.observe(gradients=measured(2))
    with refused("observe", kind=InvalidTypeError):
        loader.observe(gradients=np.eye(3))
    with refused("observe", kind=InvalidTypeError):
        loader.observe(gradient_noms=1.0)


def test_any_measurement_is_reported_by_its_name_or_its_class() -> None:
    class Watching(Policy):
        def start(self, mixture: Mixture) -> Decision:
            return Decision(mixture.weights)

        def update(self, observation: Observation) -> Decision:
            seen.append(observation)
            return Decision(observation.weights)

    seen: list[Observation] = []
    loader = loading(mixing=Watching())
    for report in (
        {"gradient_norm": torch.tensor(1.5), "learning_rate": 0.5, "evaluation_loss": {"noisy": 2}},
        {"measured": {GradientNorm: 1.5, LearningRate: Rates(0.5, 0.5), EvaluationLoss: [math.nan, math.nan, 2.0]}},
        {"gradient_norm": None, "learning_rate": math.nan},
    ):
        next(iter(loader))
        loader.observe(**report)
    for observation in seen[:2]:
        assert (observation[GradientNorm], observation[LearningRate]) == (1.5, Rates(0.5, 0.5))
        np.testing.assert_array_equal(observation[EvaluationLoss], [math.nan, math.nan, 2.0])
    assert [seen[2][kind] for kind in (GradientNorm, LearningRate, EvaluationLoss)] == [None] * 3
