"""A small multi-layer perceptron for images or features, as the published protocols of continual learning train it."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from mixer.utils.errors import InvalidValueError


class MLPConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a perceptron.

    Args:
        num_features: Size of an input; images are flattened row by row.
        hidden_sizes: Width of each hidden layer.
        num_labels: Number of classes; `None` uses that of `id2label`, as a saved configuration has it, else 10.
        initial_deviation: Standard deviation of the truncated normal initialisation of weights; `None` uses torch's
            default initialisation.
        initial_bias: Initial bias, if `initial_deviation` is set.
        **kwargs: As for any configuration.
    """

    model_type = "tasks-mlp"

    def __init__(
        self,
        num_features: int = 784,
        hidden_sizes: list[int] | tuple[int, ...] = (256, 256),
        num_labels: int | None = None,
        initial_deviation: float | None = None,
        initial_bias: float = 0.0,
        **kwargs: Any,
    ):
        self.num_features, self.hidden_sizes = num_features, list(hidden_sizes)
        self.initial_deviation, self.initial_bias = initial_deviation, initial_bias
        if num_labels is not None or kwargs.get("id2label") is None:
            kwargs["num_labels"] = 10 if num_labels is None else num_labels
        super().__init__(**kwargs)


class MLPForImageClassification(PreTrainedModel):
    """Linear layers with ReLU between them, and a mean cross entropy.

    Args:
        config: What it is like.
    """

    config_class = MLPConfig
    base_model_prefix = "layers"
    main_input_name = "pixel_values"

    def __init__(self, config: MLPConfig):
        super().__init__(config)
        sizes = [config.num_features, *config.hidden_sizes]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.head = nn.Linear(sizes[-1], int(config.num_labels or 0))
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> None:  # type: ignore[override]
        """Says that there are none, which FSDP asks; see `PreTrainedModel.get_input_embeddings`."""

    def _init_weights(self, module: nn.Module) -> None:
        deviation = self.config.initial_deviation
        if isinstance(module, nn.Linear) and deviation is None:
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            nn.init.constant_(module.bias, self.config.initial_bias)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Classifies.

        Args:
            pixel_values: `[num_rows, ...]`, float.
            labels: int64 `[num_rows]`, or `None`.

        Returns:
            The logits `[num_rows, num_labels]`, and the mean loss if there are labels.
        """
        hidden = pixel_values.flatten(start_dim=1)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        logits = self.head(hidden)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def mlp(**arguments: Any) -> MLPForImageClassification:
    """Creates a perceptron from the arguments of `MLPConfig`; recipes name this function."""
    known = ("num_features", "hidden_sizes", "num_labels", "initial_deviation", "initial_bias")
    if unknown := sorted(set(arguments) - set(known)):
        raise InvalidValueError.about("mlp", f"has no arguments {unknown}; there are {list(known)}.")
    return MLPForImageClassification(MLPConfig(**arguments))
