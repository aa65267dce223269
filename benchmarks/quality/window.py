"""A byte-level language model that learns evenly: a perceptron over a window of the last bytes (Bengio et al. 2003).

A small Llama begins to use its context at a time that hangs on little, and where a run ends soon after, nearly
equal mixtures differ more than unlike ones. This model has no such time.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from benchmarks.quality.data import blocks
from tasks.text_domains import ByteBlocks

_NUM_BYTES = 256
_BATCH, _RATE = 32, 3e-3  # of the training of a base


class WindowConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """What a model of a window of bytes is like.

    Args:
        window: Bytes from which the next one is predicted.
        embedding: Width of a byte.
        hidden: Width of the layer above the window.
        **kwargs: As for any configuration.
    """

    model_type = "mixing-window"

    def __init__(self, window: int = 8, embedding: int = 24, hidden: int = 256, **kwargs: Any):
        self.window, self.embedding, self.hidden = window, embedding, hidden
        self.vocab_size = _NUM_BYTES
        super().__init__(**kwargs)


class WindowForCausalLM(PreTrainedModel):
    """Bytes of a window side by side, a hidden layer, and the next byte; before the text there are zeros.

    Args:
        config: What it is like.
    """

    config_class = WindowConfig
    base_model_prefix = "bytes"

    def __init__(self, config: WindowConfig):
        super().__init__(config)
        self.bytes = nn.Embedding(_NUM_BYTES, config.embedding)
        self.window = nn.Linear(config.window * config.embedding, config.hidden)
        self.output = nn.Linear(config.hidden, _NUM_BYTES)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding | nn.Linear):
            module.reset_parameters()

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> CausalLMOutput:
        """Predicts the byte after each.

        Args:
            input_ids: int64 `[num_rows, length]`.
            labels: The same, or `None`; they are shifted here.
            **kwargs: For the loss.

        Returns:
            The logits `[num_rows, length, 256]`, and the loss if there are labels.
        """
        before = self.config.window - 1
        embedded = nn.functional.pad(self.bytes(input_ids), (0, 0, before, 0))
        windows = embedded.unfold(1, self.config.window, 1).flatten(start_dim=2)
        logits = self.output(torch.relu(self.window(windows)))
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=_NUM_BYTES, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)


def new_window_model(window: int, hidden: int) -> WindowForCausalLM:
    """Builds a model.

    Args:
        window: Bytes from which the next one is predicted.
        hidden: Width of the layer above the window.

    Returns:
        The model.
    """
    return WindowForCausalLM(WindowConfig(window=window, hidden=hidden))


def new_base_model(
    window: int, hidden: int, source: Mapping[str, Any], num_steps: int, seed: int = 0
) -> WindowForCausalLM:
    """Builds a model that was trained on a text, which takes some seconds the first time in a process.

    Args:
        window: Bytes from which the next one is predicted.
        hidden: Width of the layer above the window.
        source: Arguments of `benchmarks.quality.data.blocks`: the text.
        num_steps: Steps of the training.
        seed: Seed of the weights and of the order.

    Returns:
        The model.
    """
    model = new_window_model(window, hidden)
    if not model.output.weight.is_meta:  # as in `mixer train --dry_run`
        model.load_state_dict(_trained(window, hidden, json.dumps(source), num_steps, seed))
    return model


@cache
def _trained(window: int, hidden: int, source: str, num_steps: int, seed: int) -> Mapping[str, Tensor]:
    text = blocks(**json.loads(source))["train"]
    assert isinstance(text, ByteBlocks)
    generator = np.random.default_rng(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = new_window_model(window, hidden)
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        loss = model(**text.read_columns(generator.integers(0, len(text), _BATCH))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.state_dict()
