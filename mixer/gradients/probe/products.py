"""Products of gradients, and of their factors."""

import torch
from torch import Tensor

from mixer.gradients.probe.rows import at_least_float32

_BLOCK = 8192  # longer float32 vectors are multiplied in blocks, or products lose digits


def products(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies all pairs of two sets of vectors.

    Args:
        left: `[num_left, size]`.
        right: `[num_right, size]`.

    Returns:
        float64 `[num_left, num_right]`.
    """
    size = left.shape[1]
    whole = size - size % _BLOCK
    result = left[:, whole:].double() @ right[:, whole:].double().T
    if whole:
        blocks = [part[:, :whole].reshape(len(part), -1, _BLOCK).transpose(0, 1) for part in (left, right)]
        result = result + torch.bmm(blocks[0], blocks[1].transpose(1, 2)).sum(0, dtype=torch.float64)
    return result


def product(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Computes the whole gradient of a matrix from its factors.

    Args:
        inputs: `[num_rows, length, width]`.
        gradients: `[num_rows, length, height]`.

    Returns:
        `[height, width]`, at least float32.
    """
    return (gradients.flatten(0, 1).T @ inputs.flatten(0, 1)).to(at_least_float32(inputs.dtype))


def multiply(gradients: Tensor, inputs: Tensor, target: Tensor) -> None:
    """Writes `gradientsᵀ inputs`; in half precision a product is rounded once, and sums are in float32."""
    if target.dtype == inputs.dtype:
        torch.mm(gradients.T, inputs, out=target)
    else:
        target.copy_(gradients.T @ inputs)


def squares_of_products(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Squared norms of the samples, `Σ_st <inputs_s, inputs_t> <gradients_s, gradients_t>`, float64 `[num_rows]`.

    In float16 the products of gradients with a loss scale would overflow.
    """
    wide = [one.to(at_least_float32(one.dtype)) for one in (inputs, gradients)]
    left, right = (torch.bmm(one, one.mT).double() for one in wide)
    return (left * right).sum((1, 2))


def is_short(inputs: Tensor, gradients: Tensor) -> bool:
    """Whether rows have so few tokens that the norm of a sample's gradient is cheaper from products of its tokens.

    Those take `2 length² (width + height)` operations. Building the gradient takes no more operations than the plain
    backward pass, but writes and reads each of its `width · height` numbers: about as long as 8 operations.
    """
    length, width, height = inputs.shape[1], inputs.shape[2], gradients.shape[2]
    return length * length * (width + height) < 4 * width * height
