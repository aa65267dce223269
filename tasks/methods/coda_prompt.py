"""CODA-Prompt: a prompt is a sum of components, weighed by how their attended keys are like a row."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mixer.run.hooks import ForwardResult
from mixer.utils.ranges import check_range
from tasks.methods.prompts import PromptMethod, Prompts


class CODAPrompt(PromptMethod):
    """Trains components of prompts, some new ones with each task; a row gets a sum of all, weighed by it.

    Smith et al. 2023, "CODA-Prompt: COntinual Decomposed Attention-based Prompting for Rehearsal-Free Continual
    Learning", arXiv:2211.13218: in each layer the prompt of a row x is `Σ_m α_m P_m` with
    `α_m = cos(q(x) ⊙ A_m, K_m)`, where q(x) is the frozen encoder's first token. Components of earlier tasks are frozen
    and go on to take part. The loss gets `λ` times the mean square of the entries of `B Bᵀ - I`, added up over the
    layers and over B = P, K and A, so that components differ; new ones begin orthonormal to the last earlier ones, as
    many as there is room for. The paper's length of 8 counts keys and values, 4 each.

    For what is trained, the head and the model see `L2P`.

    Args:
        components: New components a task; the paper has 100 for 10 tasks.
        length: Keys and values of a component in a layer.
        layers: The layers, from 0.
        weight: `λ`.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if the model has no such encoder, or
            tokens of fewer values than `components`.

    Example:
        >>> run = ContinualRun(model, sequence, args, methods=[CODAPrompt()], head="masked")  # doctest: +SKIP
    """

    def __init__(
        self, components: int = 10, length: int = 4, layers: Sequence[int] = (0, 1, 2, 3, 4), weight: float = 0.1
    ):
        super().__init__(layers, weight, components=components, length=length)
        self.components, self.length = components, length

    def new_prompts(self, width: int) -> Prompts:
        """Returns no components yet; see `PromptMethod`."""
        check_range("components", self.components, 1, width, "new ones are orthonormal, in the width of a token")
        return _Components(self.layers, width, self.components, self.length)

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns this micro-batch's share of the term; see `Method.term`."""
        return self.run.mean_over_step(self.weight * self._prompts.overlap(), trained)


class _Components(Prompts):
    """See `CODAPrompt`; `[num_layers, components, size]` a task, where prompts are flat."""

    def __init__(self, layers: Sequence[int], width: int, components: int, length: int):
        super().__init__(layers, width)
        self._count, self._length = components, length
        self.prompts, self.attentions = nn.ParameterList(), nn.ParameterList()

    def grow(self, number: int) -> None:
        if len(self.keys) <= number:
            sizes = (2 * self._length * self.width, self.width, self.width)
            for part, size in zip((self.prompts, self.keys, self.attentions), sizes, strict=True):
                earlier = torch.cat([torch.empty(len(self.layers), 0, size), *part], dim=1).detach()
                self.add(part, orthonormal(earlier, self._count))

    def weights(self, query: Tensor) -> Tensor:
        """Returns α, `[num_rows, num_layers, num_components]`."""
        attended = query[:, None, None] * torch.cat([*self.attentions], dim=1)
        return nn.functional.cosine_similarity(attended, torch.cat([*self.keys], dim=1)[None], dim=-1)

    def chosen(self, query: Tensor) -> Mapping[int, Tensor]:
        flat = torch.einsum("rlm,lms->lrs", self.weights(query), torch.cat([*self.prompts], dim=1))
        shape = (len(query), 2, self._length, self.width)
        return {layer: own.view(shape) for layer, own in zip(self.layers, flat, strict=True)}

    def overlap(self) -> Tensor:
        """Returns what the components of all kinds and layers have in common; 0 if they are orthonormal."""
        kinds = [torch.cat([*part], dim=1) for part in (self.prompts, self.keys, self.attentions)]
        apart = [kind @ kind.transpose(1, 2) - torch.eye(kind.shape[1], device=kind.device) for kind in kinds]
        return torch.stack([distance.square().mean(dim=(1, 2)).sum() for distance in apart]).sum()


def orthonormal(earlier: Tensor, count: int) -> Tensor:
    """Draws vectors of norm 1 that are orthogonal to each other and to the last earlier ones there is room for.

    Args:
        earlier: `[num_layers, num_earlier, size]`.
        count: How many.

    Returns:
        `[num_layers, count, size]`.
    """
    num_layers, num_earlier, size = earlier.shape
    kept = earlier[:, max(num_earlier + count - size, 0) :]
    drawn = torch.randn(num_layers, count, size)
    columns = torch.cat([kept, drawn], dim=1).transpose(1, 2)
    basis: Tensor = torch.linalg.qr(columns)[0]
    return basis.transpose(1, 2)[:, -count:].contiguous()
