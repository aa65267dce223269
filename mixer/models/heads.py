"""Task heads of a model, and the head of each stream."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer.mixture.stream import Stream
from mixer.models.inputs import heads_of, inner_model, takes_task
from mixer.models.labels import IGNORED
from mixer.utils.errors import InvalidValueError, require, wrong_value

HeadKind = Literal["classification", "multi_label", "regression", "token_classification"]
Pooling = Literal["mean", "first", "last"]
_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
    "token_classification": "single_label_classification",
}


@dataclass(frozen=True)
class Head:
    """A task head.

    Args:
        num_labels: Number of classes, of labels that can hold at once, or of values.
        kind: `"classification"` (one class per sample, cross entropy), `"multi_label"` (any labels, binary cross
            entropy), `"regression"` (values, squared error) or `"token_classification"` (one class per token). Labels
            of -100 are ignored by every kind.
        pooling: Summary of a sample's states: the mean over its tokens, the first token (models with a start token), or
            the last (causal models). Without effect on `"token_classification"`.
        dropout: Dropout rate of the states.

    Raises:
        ValueError: If a value is outside its range.
    """

    num_labels: int
    kind: HeadKind = "classification"
    pooling: Pooling = "mean"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        require(self.kind in _PROBLEM_TYPES, "kind", f"one of {list(_PROBLEM_TYPES)}", self.kind)
        require(self.pooling in get_args(Pooling), "pooling", f"one of {list(get_args(Pooling))}", self.pooling)
        is_whole = isinstance(self.num_labels, int) and not isinstance(self.num_labels, bool)
        least = 1 if self.kind in ("multi_label", "regression") else 2
        if not is_whole or self.num_labels < least:
            raise wrong_value(
                "num_labels", f"for {self.kind} must be a whole number of at least {least}, got {self.num_labels!r}."
            )
        require(0.0 <= self.dropout < 1.0, "dropout", "at least 0 and below 1", self.dropout)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return asdict(self)


class HeadModule(nn.Module):
    """The layers of a head.

    Args:
        head: The head.
        hidden_size: Size of the encoder's states.
    """

    def __init__(self, head: Head, hidden_size: int):
        super().__init__()
        self.head = head
        self.dropout = nn.Dropout(head.dropout)
        self.output = nn.Linear(hidden_size, head.num_labels)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; `None` if labels are no class numbers."""
        return self.head.num_labels if self.head.kind in ("classification", "token_classification") else None

    @property
    def problem_type(self) -> str:
        """The name of the loss in transformers."""
        return _PROBLEM_TYPES[self.head.kind]

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Computes the outputs from the states of an encoder.

        Args:
            states: `[num_rows, num_tokens, hidden_size]`.
            mask: `[num_rows, num_tokens]`: 1 for tokens, 0 for padding; `None` for no padding.

        Returns:
            `[num_rows, num_labels]`, or `[num_rows, num_tokens, num_labels]` for a head on tokens.
        """
        if self.head.kind != "token_classification":
            states = _pool(states, mask, self.head.pooling)
        logits: Tensor = self.output(self.dropout(states))
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes the mean loss per label.

        Args:
            logits: Outputs of `forward`.
            labels: `[num_rows]` or `[num_rows, num_tokens]` classes, or `[num_rows, num_labels]` values.

        Returns:
            A scalar; 0 if all labels are ignored.
        """
        self._check(logits, labels)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        counted = labels.ne(IGNORED)
        if self.num_classes is not None:
            total = F.cross_entropy(logits.flatten(0, -2), labels.reshape(-1), ignore_index=IGNORED, reduction="sum")
        else:
            loss = F.binary_cross_entropy_with_logits if self.head.kind == "multi_label" else F.mse_loss
            terms = loss(logits, labels.reshape(logits.shape).to(logits.dtype), reduction="none")
            total = torch.where(counted.reshape(logits.shape), terms, 0).sum()
        return total / counted.sum().clamp(min=1)

    def _check(self, logits: Tensor, labels: Tensor) -> None:
        """Refuses labels of another kind of head."""
        are_classes = self.num_classes is not None
        num_expected = logits[..., 0].numel() if are_classes else logits.numel()
        if labels.numel() == num_expected and not (are_classes and labels.is_floating_point()):
            return
        what, shape = ("whole numbers", logits.shape[:-1]) if are_classes else ("values", logits.shape)
        taken, given = f"{what} {list(shape)}", f"{labels.dtype} {list(labels.shape)}"
        raise wrong_value(
            "labels", f": a head for {self.head.kind!r} takes {taken}, got {given}. Name another head, or convert."
        )


def _pool(states: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    if mask is None:
        mask = torch.ones(states.shape[:2], dtype=torch.int64, device=states.device)
    if pooling == "mean":
        weights = mask.to(states.dtype).unsqueeze(-1)
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    places = torch.arange(mask.shape[1], device=mask.device)
    # Padding may be on either side.
    is_token = mask.bool()
    first, last = torch.where(is_token, places, mask.shape[1] - 1).amin(dim=1), (is_token * places).amax(dim=1)
    place = first if pooling == "first" else last
    return states[torch.arange(len(states), device=states.device), place]


def tasks_of(model: nn.Module, streams: list[Stream]) -> tuple[str | None, ...]:
    """Returns the value of a model's argument `task` for each stream.

    Returns:
        `[num_streams]`: the stream's head, or its name; `None` if the model takes no task.

    Raises:
        ValueError: If the model lacks a named head, or a replay buffer names none.
    """
    named = [stream.name for stream in streams if stream.head is not None]
    if not takes_task(model):
        if named:
            model_name = type(inner_model(model)).__name__
            raise wrong_value(
                "head", f"of the streams {named} needs a parameter task of {model_name}.forward: leave head out."
            )
        return (None,) * len(streams)
    for stream in streams:
        if stream.is_memory and stream.head is None:
            text = f"Stream {stream.name!r}: name the head of its samples: Stream(..., head=...), one buffer per head."
            raise InvalidValueError(text, option="head", stream=stream.name)
    tasks = {stream.name: stream.head or stream.name for stream in streams}
    heads = heads_of(model)
    without = {name: task for name, task in tasks.items() if heads is not None and task not in heads}
    if heads is not None and without:
        raise InvalidValueError(
            f"The model has the heads {list(heads)}, but none for {list(dict.fromkeys(without.values()))} of the "
            f"streams {list(without)}. Add them, or name the head of such a stream: "
            f"Stream({next(iter(without))!r}, data_set, head={next(iter(heads), None)!r}).",
            option="head",
            found=list(without.values()),
        )
    return tuple(tasks.values())
