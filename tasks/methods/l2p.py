"""L2P: a pool of prompts, of which each row takes those whose keys are most like it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mixer.run.hooks import ForwardResult
from mixer.utils.ranges import check_range
from tasks.methods.prompts import PromptMethod, Prompts


class L2P(PromptMethod):
    """Trains a pool of prompts for all tasks, and a key for each: a row takes the `top` ones of the likest keys.

    Wang et al. 2022, "Learning to Prompt for Continual Learning", arXiv:2112.08654, equations 4 and 5: the loss gets
    `λ Σ_s (1 - cos(q(x), k_s))` over the keys that a row x took; q(x) is the frozen encoder's first token. Prompts are
    keys and values of the attention rather than tokens of the input, as L2P++ of arXiv:2211.13218; a prompt has its own
    in each layer, and one key for all. Each row selects for itself, in training too.

    Only prompts, keys and the head are trained; take `head="masked"`, where classes of the task alone compete in
    training, as in the papers. The model is any encoder of transformers with a head.

    Args:
        pool_size: Number of prompts.
        top: How many a row takes.
        length: Keys and values of a prompt in a layer.
        layers: The layers, from 0; the first alone as in L2P, or 0 to 4.
        weight: `λ`.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if the model has no such encoder.

    Example:
        >>> run = ContinualRun(model, sequence, args, methods=[L2P()], head="masked")  # doctest: +SKIP
    """

    adds_parameters = False  # after the first task

    def __init__(
        self, pool_size: int = 10, top: int = 5, length: int = 5, layers: Sequence[int] = (0,), weight: float = 0.5
    ):
        super().__init__(layers, weight, pool_size=pool_size, top=top, length=length)
        check_range("top", top, 1, pool_size, "a row takes that many of pool_size prompts")
        self.pool_size, self.top, self.length = pool_size, top, length

    def new_prompts(self, width: int) -> Prompts:
        """Returns an empty pool; see `PromptMethod`."""
        return _Pool(self.layers, width, self.pool_size, self.top, self.length)

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns this micro-batch's share of the term; see `Method.term`."""
        _, likeness = self._prompts.likest(self._prompts.query)
        return self.run.mean_over_step(self.weight * (1 - likeness).sum(dim=1), trained)


class _Pool(Prompts):
    """See `L2P`; `prompts[0]` is `[pool_size, num_layers, 2, length, width]`, `keys[0]` `[pool_size, width]`."""

    def __init__(self, layers: Sequence[int], width: int, pool_size: int, top: int, length: int):
        super().__init__(layers, width)
        self._top, self._shape = top, (pool_size, len(layers), 2, length, width)
        self.prompts = nn.ParameterList()

    def grow(self, number: int) -> None:
        if not len(self.keys):
            self.add(self.prompts, torch.empty(self._shape).uniform_(-1, 1))
            self.add(self.keys, torch.empty(self._shape[0], self.width).uniform_(-1, 1))

    def likest(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the prompts whose keys are likest, and their cosines, `[num_rows, top]` each."""
        likeness, numbers = cosines(query, self.keys[0]).topk(self._top, dim=1)
        return numbers, likeness

    def chosen(self, query: Tensor) -> Mapping[int, Tensor]:
        numbers, _ = self.likest(query)
        own = self.prompts[0][numbers]  # [num_rows, top, num_layers, 2, length, width]
        return {layer: own[:, :, place].transpose(1, 2).flatten(2, 3) for place, layer in enumerate(self.layers)}


def cosines(query: Tensor, keys: Tensor) -> Tensor:
    """Returns the cosines of queries `[num_rows, width]` and keys `[num_keys, width]`, `[num_rows, num_keys]`.

    Example:
        >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    return nn.functional.cosine_similarity(query[:, None], keys[None], dim=-1)
