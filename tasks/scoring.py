"""How well a model does on a task: accuracy over the task's own samples, shared out over ranks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer import MixingTrainer
from mixer.agreement import RemoteError
from mixer.reader import ColumnReader

Collator = Callable[[list[Any]], Mapping[str, Any]]


def accuracy(
    trainer: MixingTrainer, dataset: Any, classes: Sequence[int] | None = None, batch_size: int = 1_024
) -> float:
    """Computes the share of samples that a classifier gets right; all ranks have to call it.

    Args:
        trainer: Whose model and collator are taken; nothing of its state changes.
        dataset: Samples with `labels`, map-style.
        classes: The classes among which the model has to choose; `None` for all.
        batch_size: Samples of a forward.

    Returns:
        The accuracy, the same on every rank.

    Raises:
        ValueError: If the samples have no labels, or the model gives no logits of classes.
        RemoteError: If another rank could not do its part.
    """
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model_wrapped)
    own = np.arange(args.process_index, len(dataset), args.world_size)
    was_training = model.training
    model.eval()
    num_right = torch.zeros((), dtype=torch.float64)
    error: Exception | None = None
    try:
        with torch.no_grad():
            for start in range(0, len(own), batch_size):
                batch = _read(dataset, own[start : start + batch_size], trainer.data_collator)
                num_right += _num_right(model, trainer._prepare_inputs(dict(batch)), classes)
    except Exception as caught:  # the other ranks wait for this one's part
        num_right, error = torch.full_like(num_right, float("nan")), caught
    finally:
        model.train(was_training)
    total = float(trainer.accelerator.reduce(num_right.to(args.device), "sum"))
    if error is not None:
        raise error
    if total != total:
        raise RemoteError("another rank could not score its part of the samples")
    return total / len(dataset)


def _read(dataset: Any, indices: Any, collator: Collator) -> Mapping[str, Any]:
    if isinstance(dataset, ColumnReader):
        return dataset.read_columns(indices)
    read_several = getattr(dataset, "__getitems__", None)
    samples = read_several(indices.tolist()) if read_several else [dataset[int(index)] for index in indices]
    return collator(list(samples))


def _num_right(model: nn.Module, inputs: dict[str, Any], classes: Sequence[int] | None) -> int:
    labels = inputs.pop("labels", None)
    if not isinstance(labels, Tensor):
        raise ValueError("accuracy: the samples have no labels; give a score function of your own.")
    logits = model(**inputs).logits
    if logits.dim() != 2:
        raise ValueError(
            f"accuracy: the model gives logits of shape {list(logits.shape)}, not [num_rows, num_classes]; give a "
            "score function of your own."
        )
    if classes is not None:
        allowed = torch.full_like(logits, float("-inf"))
        allowed[:, list(classes)] = 0.0
        logits = logits + allowed
    return int((logits.argmax(dim=-1) == labels).sum())
