"""DualPrompt: a prompt for all tasks in early layers, and one of each task, chosen by its key, in later ones."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mixer.run.hooks import ForwardResult
from mixer.utils.errors import InvalidValueError
from tasks.methods.l2p import cosines
from tasks.methods.prompts import PromptMethod, Prompts


class DualPrompt(PromptMethod):
    """Trains a prompt that all tasks share, and one of each task with a key, by which it is chosen in evaluation.

    Wang et al. 2022, "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", arXiv:2204.04799: the
    prompts are keys and values of the attention, the shared one in early layers and that of a task in later ones. In
    training a row gets the prompt of the present task, and the loss gets `λ (1 - cos(q(x), k_t))`, with q(x) the frozen
    encoder's first token; in evaluation that of the task whose key is likest. The paper counts tokens, of which half
    become keys and half values: its lengths 5 and 20 are about 3 and 10 here.

    Prompts of earlier tasks are frozen. For what is trained, the head and the model see `L2P`.

    Args:
        shared_layers: The layers of the shared prompt, from 0; may be empty.
        layers: Those of a task's prompt.
        shared_length: Keys and values of the shared prompt in a layer.
        length: Those of a task's prompt.
        weight: `λ`.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if the model has no such encoder.

    Example:
        >>> run = ContinualRun(model, sequence, args, methods=[DualPrompt()], head="masked")  # doctest: +SKIP
    """

    def __init__(
        self,
        shared_layers: Sequence[int] = (0, 1),
        layers: Sequence[int] = (2, 3, 4),
        shared_length: int = 3,
        length: int = 10,
        weight: float = 1.0,
    ):
        super().__init__((*shared_layers, *layers), weight, shared_length=shared_length, length=length)
        if not layers:
            raise InvalidValueError.about("layers", "must be one or more numbers of layers.")
        self.shared_layers, self.layers = tuple(shared_layers), tuple(layers)
        self.shared_length, self.length = shared_length, length

    def new_prompts(self, width: int) -> Prompts:
        """Returns none yet; see `PromptMethod`."""
        return _SharedAndOwn(self.shared_layers, self.layers, width, self.shared_length, self.length)

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns this micro-batch's share of the term; see `Method.term`."""
        likeness = cosines(self._prompts.query, self._prompts.keys[-1][None])[:, 0]
        return self.run.mean_over_step(self.weight * (1 - likeness), trained)


class _SharedAndOwn(Prompts):
    """See `DualPrompt`; prompts are `[num_layers, 2, length, width]`, those of tasks and their keys one per task."""

    def __init__(
        self, shared_layers: Sequence[int], layers: Sequence[int], width: int, shared_length: int, length: int
    ):
        super().__init__((*shared_layers, *layers), width)
        self._num_shared, self._lengths = len(shared_layers), (shared_length, length)
        self.shared, self.prompts = nn.ParameterList(), nn.ParameterList()

    def grow(self, number: int) -> None:
        sizes = (self._num_shared, len(self.layers) - self._num_shared)
        shapes = [(size, 2, length, self.width) for size, length in zip(sizes, self._lengths, strict=True)]
        if self._num_shared and not len(self.shared):
            self.add(self.shared, torch.empty(shapes[0]).uniform_(-1, 1))
        if len(self.keys) <= number:
            self.add(self.prompts, torch.empty(shapes[1]).uniform_(-1, 1))
            self.add(self.keys, torch.empty(self.width).uniform_(-1, 1))

    def task_of(self, query: Tensor) -> Tensor:
        """Returns the task whose prompt each row gets, `[num_rows]`."""
        if self.training:
            return torch.full((len(query),), len(self.keys) - 1, device=query.device)
        return cosines(query, torch.stack([*self.keys])).argmax(dim=1)

    def chosen(self, query: Tensor) -> Mapping[int, Tensor]:
        own = torch.stack([*self.prompts])[self.task_of(query)].unbind(dim=1)
        shared = [prompt.expand(len(query), *prompt.shape) for part in self.shared for prompt in part]
        return dict(zip(self.layers, (*shared, *own), strict=True))
