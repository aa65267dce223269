"""A byte-level language model that learns evenly: a perceptron over a window of the last bytes (Bengio et al. 2003).

A small Llama begins to use its context at a time that hangs on little, and where a run ends soon after, nearly
equal mixtures differ more than unlike ones. This model has no such time.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

_NUM_BYTES = 256


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
