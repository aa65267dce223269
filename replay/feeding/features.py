"""Features of a model just before its head, for feature-based selection."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer, default_data_collator

from mixer.distributed.gradient_sync import shards_of
from mixer.models.side_state import evaluating
from mixer.run.hf_compat import collator_removing_columns
from mixer.utils.arrays import Float32Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError

Collator = Callable[[list[Any]], Any]


def extract_features(
    trainer_or_model: Trainer | nn.Module,
    dataset: DataSet,
    collator: Collator | None = None,
    batch_size: int = 64,
    layer: str | None = None,
) -> Float32Array:
    """Computes a feature vector per sample, for `buffer.remember(..., features=...)`.

    By default the features are the input of the model's head, as in iCaRL (Rebuffi et al. 2017, arXiv:1611.07725);
    `layer` selects the output of another module. Features per token are averaged over the attention mask. The model
    runs in evaluation mode. All ranks must make the same call; each computes a part of the samples, and all receive the
    result.

    Args:
        trainer_or_model: A trainer or a model.
        dataset: A map-style data set.
        collator: Collates a list of samples; `None` uses the trainer's collator, or stacks tensors.
        batch_size: Number of samples in a forward pass.
        layer: Name of a module in `model.named_modules()`; `None` uses the input of the last linear layer.

    Returns:
        float32 `[num_samples, num_features]`.

    Raises:
        ValueError: If there is no such module, no linear layer or no sample, if the module does not return one vector
            per sample, or if the weights are sharded.

    Example:
        >>> class Classifier(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        ...     def forward(self, x):
        ...         return {"logits": self.head(self.body(x).relu())}
        >>> extract_features(Classifier(), [{"x": torch.randn(4)} for _ in range(5)]).shape
        (5, 3)
    """
    if not len(dataset):
        raise InvalidValueError.about("dataset", "The data set has no samples.")
    model = trainer_or_model
    if isinstance(model, Trainer):
        trainer = model
        model = trainer.accelerator.unwrap_model(trainer.model)
        collator = collator or collator_removing_columns(trainer, trainer.data_collator, "features")
    collator = collator or default_data_collator
    sharded = shards_of(model)
    if sharded is not None:
        text = f"{sharded} has its weights in shards. Take the features before training begins, or train with DDP."
        raise InvalidValueError.about("trainer_or_model", text)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    own = range(min(rank, len(dataset) - 1), len(dataset), world_size)  # a rank without a part computes one for nothing
    parts_of_own = (own[first : first + batch_size] for first in range(0, len(own), batch_size))
    features = _features(model, (collator([dataset[index] for index in part]) for part in parts_of_own), layer)
    if world_size == 1:
        return features
    parts: list[Any] = [None] * world_size
    dist.all_gather_object(parts, features)
    whole = np.empty((len(dataset), features.shape[1]), dtype=np.float32)
    for other, part in enumerate(parts[: len(dataset)]):
        whole[other::world_size] = part
    return whole


def _features(model: nn.Module, batches: Iterator[Any], layer: str | None) -> Float32Array:
    device, known = next(model.parameters()).device, inspect.signature(model.forward).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    found: list[Tensor] = []
    with evaluating(model), _captured(model, layer) as captured:
        for batch in batches:
            inputs = {name: value for name, value in batch.items() if takes_all or name in known}
            inputs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
            captured.clear()
            model(**inputs)
            found.append(_of_samples(captured, batch, layer))
    return np.asarray(torch.cat(found))


@contextmanager
def _captured(model: nn.Module, layer: str | None) -> Iterator[list[Any]]:
    captured: list[Any] = []
    modules = dict(model.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    if layer is None and not linear:
        raise InvalidValueError.about("layer", "must be the name of a module; this model has no linear layer.")
    if layer is not None and layer not in modules:
        raise InvalidValueError(option="layer", expected=f"a module, such as {list(modules)[-8:]}", found=layer)
    module = modules[linear[-1] if layer is None else layer]
    handle = module.register_forward_hook(
        lambda _module, args, output: captured.append(args[0] if layer is None else output)
    )
    try:
        yield captured
    finally:
        handle.remove()


def _of_samples(captured: list[Any], batch: Any, layer: str | None) -> Tensor:
    values = captured[-1] if captured else None
    if values is not None and not isinstance(values, Tensor):
        values = values[0]  # transformers' outputs begin with the hidden state
    num_samples = next(len(value) for value in batch.values() if isinstance(value, Tensor))
    if not isinstance(values, Tensor) or values.dim() < 2 or len(values) != num_samples:
        what = "nothing" if not isinstance(values, Tensor) else f"a tensor of shape {list(values.shape)}"
        text = f"must give a vector for each of {num_samples} samples, and gave {what}. Name another module."
        raise InvalidValueError.about("layer", text, found=layer)
    values, mask = values.float(), batch.get("attention_mask")
    if values.dim() != 3:
        return values.flatten(1).cpu()
    if not isinstance(mask, Tensor) or mask.shape != values.shape[:2]:
        return values.mean(dim=1).cpu()
    weights = mask.to(values).unsqueeze(-1)
    return ((values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)).cpu()
