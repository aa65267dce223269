"""The work of the Gramian contest: a step that gives the gradient of the mean loss and the Gramian of the streams' own.

*mlp*: a perceptron 784-400-400-10, 256 rows of 8 streams. *llama*: a byte-level Llama of two layers of width 128, 24
rows of 64 tokens of 3 streams, random. *llama, tied*: the same, whose head is its embedding. Rows come by stream, as
many of each; a stream's loss is the mean over its rows. Each contestant's step is timed in turns with a plain one
(forward and backward) of an equal model, so that the machine's drift cancels; no optimizer is in either.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.peak import Peak
from benchmarks.peers.clock import Clock
from tasks.mlp import mlp

MLP, LLAMA, TIED = "mlp", "llama", "llama, tied"
CASES = (MLP, LLAMA, TIED)

_WARM_UP_STEPS = 2

Step = Callable[[], Any]


@dataclass(frozen=True)
class Subject:
    """A model and its batch.

    Args:
        model: The model.
        num_streams: Number of streams.
        stream_ids: int64 `[num_rows]`.
        losses: Gives the loss of each row, `[num_rows]`.
    """

    model: nn.Module
    num_streams: int
    stream_ids: Tensor
    losses: Callable[[], Tensor]

    @property
    def shares(self) -> Tensor:
        """`[num_streams, num_rows]`: what makes stream losses of row losses."""
        members = nn.functional.one_hot(self.stream_ids, self.num_streams).T.float()
        return members / members.sum(dim=1, keepdim=True)

    def plain(self) -> None:
        """Does a step that measures nothing."""
        self.model.zero_grad()
        self.losses().mean().backward()


def new_subject(options: dict[str, Any]) -> Subject:
    """Makes the model and the batch.

    Args:
        options: Of the contest: `case` and `seed`.

    Returns:
        Them.
    """
    generator = torch.Generator().manual_seed(options["seed"])
    torch.manual_seed(options["seed"])
    if options["case"] == MLP:
        model: nn.Module = mlp(hidden_sizes=(400, 400))
        inputs = torch.rand(256, 784, generator=generator)
        labels = torch.randint(10, (256,), generator=generator)

        def losses() -> Tensor:
            logits = model(pixel_values=inputs).logits
            return nn.functional.cross_entropy(logits, labels, reduction="none")

        return Subject(model, 8, torch.arange(256) // 32, losses)
    model = _llama(is_tied=options["case"] == TIED)
    ids = torch.randint(256, (24, 64), generator=generator)

    def token_losses() -> Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(dim=1)

    return Subject(model, 3, torch.arange(24) // 8, token_losses)


def _llama(is_tied: bool) -> nn.Module:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=is_tied,
    )
    return LlamaForCausalLM(config)


def measure(subject: Subject, step: Callable[[], Tensor], options: dict[str, Any], peak: Peak) -> dict[str, Any]:
    """Times a step in turns with the plain one, and compares its Gramian with torch's own.

    Args:
        subject: The model and the batch.
        step: Does a step and gives the Gramian `[num_streams, num_streams]`.
        options: Of the contest: `steps`, the number of turns, and what `new_subject` takes.
        peak: What has watched the memory since before the models were made.

    Returns:
        `seconds` and `processor_seconds` of the median step, both of the plain one too (`plain_seconds`), the peak of
        memory before the comparison, which takes a gradient a stream for all alike, and `difference`: the largest one
        from torch's own Gramian over that one's largest entry.
    """
    steps: dict[str, Step] = {"": step, "plain_": subject.plain}
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(_WARM_UP_STEPS + options["steps"]):
        for prefix, action in steps.items():
            clock = Clock()
            action()
            if number >= _WARM_UP_STEPS:
                for name, seconds in clock.stop().items():
                    times[prefix + name].append(seconds)
    memory, reference = peak.figures(), autograd_gramian(new_subject(options))
    difference = np.abs(np.asarray(step().detach().double()) - reference).max() / np.abs(reference).max()
    medians = {name: float(np.median(own)) for name, own in times.items()}
    return {**medians, **memory, "difference": float(difference)}


def autograd_gramian(subject: Subject) -> np.ndarray:
    """Gives the Gramian as torch itself does, by one backward a stream: what the contestants' are compared with.

    Args:
        subject: The model and the batch.

    Returns:
        `[num_streams, num_streams]`.
    """
    parameters = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
    stream_losses = subject.shares @ subject.losses()
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in stream_losses]
    flat = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]).double()
    return np.asarray(flat @ flat.T)
