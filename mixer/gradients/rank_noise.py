"""Gradient noise from the differences between ranks, without extra forward or backward passes."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from mixer.distributed.gradient_sync import averaged_parameters
from mixer.measurements.gradients import Noise, signal_and_noise

_BLOCK = 2**12  # values summed in float32; a float32 sum of many millions is off by 0.3 %


class RankNoise:
    """Measures the norms of this rank's gradient, before DDP averages it, and of the average.

    The ranks' parts of a batch are groups of items, and `signal_and_noise` only needs the norms of their sums: the role
    of small and large batches in McCandlish et al. (2018, arXiv:1812.06162, app. A.1). The cost is two reads of the
    gradients per step and a message of four numbers. Results stay on the device until they are read.

    The parts count as independent draws from one distribution. If ranks have different mixtures, differences between
    the streams' gradients count as noise too; a step deals every stream evenly, to within one sample per rank.

    Args:
        model: The model in training, wrapped in DDP.

    Raises:
        ValueError: If the model is not wrapped in DDP.

    Example:
        >>> noise = RankNoise(ddp_model)  # doctest: +SKIP
        >>> with noise.listening():  # doctest: +SKIP
        ...     loss.backward()
        >>> noise_of_ranks(agreement.add_up(noise.measure(num_own)).tolist(), world_size)  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module):
        self._parameters, self._finds_unused = averaged_parameters(model)
        self._norms: dict[int, Tensor] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Measures the local gradients in the backward pass that DDP synchronises, the last one of a step.

        Autograd calls these hooks before those of DDP, while `.grad` is still the sum of this rank's micro-batches.

        Yields:
            Nothing; run the forward and backward passes inside.
        """
        self._norms = {}
        if self._finds_unused:
            self.take_local()  # gradients of parameters that only earlier micro-batches use
        handles = [
            parameter.register_post_accumulate_grad_hook(partial(_take, self._norms, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def take_local(self) -> None:
        """Measures the present gradients, for engines that average them after the backward pass."""
        self._norms = {}
        for number, parameter in enumerate(self._parameters):
            _take(self._norms, number, parameter)

    def measure(self, num_items: int, scale: Tensor | float, device: torch.device) -> Tensor:
        """Returns the numbers to sum over ranks; call it after averaging, before the gradients change again.

        Args:
            num_items: Items of the step on this rank.
            scale: Loss scale of the gradient scaler.
            device: Device of the collective.

        Returns:
            float64 `[4]`: squared norms of this rank's gradient and of the average, items and their square.
        """
        averages: dict[int, Tensor] = {}
        for number, parameter in enumerate(self._parameters):
            _take(averages, number, parameter)
        squares = torch.stack([_sum_of_squares(list(norms.values()), device) for norms in (self._norms, averages)])
        self._norms = {}
        items = torch.tensor([num_items, num_items**2], dtype=torch.float64).to(device, non_blocking=True)
        return torch.cat([squares / (torch.as_tensor(scale, dtype=torch.float64, device=device) ** 2), items])


def noise_of_ranks(sums: Sequence[float], world_size: int, num_samples: int | None = None) -> Noise:
    """Separates signal and noise in the ranks' measurements.

    Losses are scaled so that the mean of the ranks' gradients `l_r` is that of the batch, `g`: of N items those of rank
    r have the gradient sum `z_r = N / W · l_r`, and `Σ_r z_r = N g`.

    Args:
        sums: Sums over the ranks of `RankNoise.measure`.
        world_size: Number of ranks, `W`.
        num_samples: Samples of the step, for the variance of a sample; `None` for that of an item.

    Returns:
        The estimates; NaN if one rank has all items.

    Example:
        >>> noise_of_ranks([10.0, 8.0, 2.0, 2.0], 2)  # l = (1, 0) and (3, 0) of an item each, whose mean is (2, 0)
        Noise(squared_norm=3.0, variance=2.0)
    """
    local_squares, averages, num_items, num_squared = sums
    # All ranks have the same average; the sum makes the estimate equal to the last bit.
    square_of_sum = num_items**2 * averages / world_size
    sum_of_squares = (num_items / world_size) ** 2 * local_squares
    signal, noise = signal_and_noise(square_of_sum, sum_of_squares, num_items, num_squared)
    return Noise(signal, noise if num_samples is None else noise * num_samples / num_items)


def _take(norms: dict[int, Tensor], number: int, parameter: Tensor) -> None:
    """Stores the norm of a gradient; a later call in the same backward pass knows more and replaces it."""
    gradient = parameter.grad
    if gradient is not None:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        norms[number] = _norm(values.detach().reshape(-1))


def _norm(values: Tensor) -> Tensor:
    whole = len(values) // _BLOCK
    blocks = values[: whole * _BLOCK].view(whole, _BLOCK)
    norms = [torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float32)]
    norms.append(torch.linalg.vector_norm(values[whole * _BLOCK :], dtype=torch.float32).view(1))
    norm: Tensor = torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64)
    return norm


def _sum_of_squares(norms: Sequence[Tensor], device: torch.device) -> Tensor:
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([norm.to(device) for norm in norms]).square().sum()
