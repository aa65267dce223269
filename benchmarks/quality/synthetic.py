"""A mixture whose best weights are known: four linear regressions by one vector, trained by SGD on Gaussian inputs.

Stream k draws `x ~ N(0, diag(h_k))` and `y = <θ_k, x> + σ_k ε`; its loss is the squared error. As long as no sample
comes twice, the mean and the mean square of each coordinate of θ follow a recursion that is exact: `E[xx'Axx'] = 2HAH +
H tr(HA)` for Gaussian x and symmetric A. With `δ = θ − θ_k` the gradient of a sample has mean `2 H_k δ` and variance

    Var_i = 4 (h_ki² δ_i² + h_ki (Σ_j h_kj δ_j² + σ_k²)),

that of a batch of `b` samples, `p_k b` of stream k, has mean `Σ p_k mean_k` and variance `Σ p_k Var_k / b`. So the
expected loss at the end of a run is a function of its weights that is computed, not sampled, and so is that of weights
that change.

The streams, each with 12 coordinates of its own and 12 that all have: `plain`; `slow`, whose own inputs are small, so
that it is learned slowly and needs most; `noisy`, whose loss is high and stays so, whatever is done; `contrary`, which
wants smaller values of the common coordinates than the others, so that its loss and theirs cannot both be least.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from benchmarks.quality.data import Splits
from mixer.utils.arrays import FloatArray, Int64Array

STREAMS = ("plain", "slow", "noisy", "contrary")
_WIDTH = 12  # coordinates of a group
_SEED = 20_240  # of the problem and its samples, whatever the seed of a run
_INPUTS = {"plain": 0.5, "slow": 0.12, "noisy": 0.5, "contrary": 0.5}  # variance of a stream's own coordinates
_COMMON = {"plain": 0.5, "slow": 0.5, "noisy": 0.5, "contrary": 0.5}  # and of the common ones
_NOISE = {"plain": 0.3, "slow": 0.3, "noisy": 4.0, "contrary": 0.3}  # variance of the target's noise
_CONTRARY = 0.25  # what the contrary stream multiplies the common coordinates by


@dataclass(frozen=True)
class Problem:
    """Linear regressions.

    Args:
        inputs: float64 `[num_streams, num_features]`: h, variances of the inputs.
        targets: float64 `[num_streams, num_features]`: θ of each stream.
        noise: float64 `[num_streams]`: σ².
    """

    inputs: Tensor
    targets: Tensor
    noise: Tensor

    def expected_losses(self, shares: Tensor, num_steps: int, batch: int, learning_rate: float) -> Tensor:
        """Computes what the streams' losses are expected to be at the end of a run that begins at θ = 0.

        Args:
            shares: float64 `[..., num_steps, num_streams]`, or `[..., 1, num_streams]` for weights that do not change.
            num_steps: Steps.
            batch: Samples of a step.
            learning_rate: The learning rate, constant.

        Returns:
            float64 `[..., num_streams]`.
        """
        shares = shares.expand(*shares.shape[:-2], num_steps, -1)
        mean = torch.zeros(*shares.shape[:-2], self.inputs.shape[1], dtype=torch.float64)
        square = torch.zeros_like(mean)
        slope = 2.0 * self.inputs
        for now in shares.unbind(dim=-2):
            pull, push = learning_rate * (now @ slope), learning_rate * (now @ (slope * self.targets))
            distance = self._distances(mean, square)
            losses = (self.inputs * distance).sum(dim=-1) + self.noise
            single = slope**2 * distance + 4.0 * self.inputs * losses.unsqueeze(-1)
            variance = (now.unsqueeze(-1) * single).sum(dim=-2) / batch
            keep = 1.0 - pull
            square = keep**2 * square + 2.0 * keep * push * mean + push**2 + learning_rate**2 * variance
            mean = keep * mean + push
        return (self.inputs * self._distances(mean, square)).sum(dim=-1) + self.noise

    def _distances(self, mean: Tensor, square: Tensor) -> Tensor:
        """`E (θ − θ_k)²`: `[..., num_streams, num_features]`."""
        return square.unsqueeze(-2) - 2.0 * mean.unsqueeze(-2) * self.targets + self.targets**2


def new_problem() -> Problem:
    """Makes the problem, always the same.

    Returns:
        The problem, of `(K + 1) · 12` features: the common ones, then each stream's own.
    """
    generator = np.random.default_rng(_SEED)
    num_streams = len(STREAMS)
    inputs, targets = np.zeros((2, num_streams, (num_streams + 1) * _WIDTH))
    common = generator.choice([-1.0, 1.0], _WIDTH)
    for k, name in enumerate(STREAMS):
        own = slice((k + 1) * _WIDTH, (k + 2) * _WIDTH)
        inputs[k, :_WIDTH], inputs[k, own] = _COMMON[name], _INPUTS[name]
        targets[k, :_WIDTH] = common * (_CONTRARY if name == "contrary" else 1.0)
        targets[k, own] = generator.choice([-1.0, 1.0], _WIDTH) * (0.5 / _INPUTS[name]) ** 0.5
    noise = np.array([_NOISE[name] for name in STREAMS])
    return Problem(*(torch.from_numpy(values) for values in (inputs, targets, noise)))


class Regression(Dataset[dict[str, Tensor]]):
    """Samples of a regression: `features` and `labels`, float32.

    Args:
        features: `[num_samples, num_features]`.
        labels: `[num_samples]`.
    """

    def __init__(self, features: FloatArray, labels: FloatArray):
        self.features, self.labels = torch.from_numpy(features).float(), torch.from_numpy(labels).float()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"features": self.features[index], "labels": self.labels[index]}

    def read_columns(self, indices: Int64Array) -> dict[str, Tensor]:
        """Reads several samples at once; see `mixer.loading.reader.ColumnReader`."""
        picked = torch.from_numpy(indices)
        return {"features": self.features.index_select(0, picked), "labels": self.labels.index_select(0, picked)}


def draw(name: str, num_samples: int, num_validation: int, num_test: int) -> Splits:
    """Draws a stream's samples, always the same.

    The moments of a test part are exactly those of its distribution, so that the loss on it is the expected one.

    Args:
        name: The stream.
        num_samples: Samples to train on.
        num_validation: Samples for validation.
        num_test: Samples to test on, more than features.

    Returns:
        The parts.
    """
    problem, k = new_problem(), STREAMS.index(name)
    generator = np.random.default_rng([_SEED, k])
    sizes = {"train": num_samples, "validation": num_validation}
    white = {part: generator.standard_normal((size, len(problem.inputs[k]) + 1)) for part, size in sizes.items()}
    white["test"] = _whitened(generator.standard_normal((num_test, len(problem.inputs[k]) + 1)))
    return {part: _regression(problem, k, values) for part, values in white.items()}


def _whitened(values: FloatArray) -> FloatArray:
    """Makes the second moments of columns the identity."""
    orthogonal: FloatArray = np.linalg.qr(values)[0] * len(values) ** 0.5
    return orthogonal


def _regression(problem: Problem, k: int, white: FloatArray) -> Regression:
    features = white[:, :-1] * problem.inputs[k].numpy() ** 0.5
    return Regression(features, features @ problem.targets[k].numpy() + white[:, -1] * float(problem.noise[k]) ** 0.5)


class LinearRegression(nn.Module):
    """One vector that begins at 0, and the mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear((len(STREAMS) + 1) * _WIDTH, 1, bias=False)
        nn.init.zeros_(self.line.weight)

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Any]:
        """Predicts `[num_rows, 1]` as `logits`, and gives the mean loss."""
        predicted = self.line(features)
        return {"loss": nn.functional.mse_loss(predicted.squeeze(-1), labels), "logits": predicted}
