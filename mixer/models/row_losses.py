"""The loss of each row of a micro-batch, read off the one forward pass."""

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel, TrainingArguments

from mixer.models.inputs import TASK, heads_of

_IGNORED = -100
_CROSS_ENTROPY_SIGNATURE = inspect.signature(F.cross_entropy)


def items_per_row(inputs: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """Counts the terms of the loss in each row: the labels that are not ignored.

    Args:
        inputs: A collated micro-batch.
        shifts_labels: Whether the model predicts the next token, so that a row's first label is none.

    Returns:
        int64 `[num_rows]`; 1 a row where the batch has no `labels` tensor.
    """
    labels = inputs.get("shift_labels", inputs.get("labels"))
    if not isinstance(labels, Tensor) or labels.dim() == 0:
        return torch.ones(num_rows(inputs), dtype=torch.int64)
    if shifts_labels and "shift_labels" not in inputs:
        labels = labels[..., 1:]
    return labels.ne(_IGNORED).reshape(len(labels), -1).sum(dim=1)


def labels_can_shift(inputs: Mapping[str, Any]) -> bool:
    """Says whether a row has several labels, of which the first may be no term of the loss.

    Args:
        inputs: A collated micro-batch.

    Returns:
        Whether `labels` has a dimension beside the rows.
    """
    labels = inputs.get("labels")
    return isinstance(labels, Tensor) and labels.dim() > 1


def tokens_per_row(inputs: Mapping[str, Any]) -> Tensor:
    """Counts the tokens of each row: what the attention mask leaves, else the length.

    Args:
        inputs: A collated micro-batch.

    Returns:
        int64 `[num_rows]`; 0 a row for inputs that are no tokens.
    """
    mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
    is_of_tokens = isinstance(mask, Tensor) and isinstance(ids, Tensor) and mask.shape == ids.shape  # or of choices
    if isinstance(mask, Tensor) and (mask.dim() == 2 or is_of_tokens):
        return mask.reshape(len(mask), -1).sum(dim=1).to(torch.int64)
    if isinstance(ids, Tensor) and ids.dim() in (2, 3):
        return torch.full((len(ids),), ids.shape[1:].numel(), dtype=torch.int64)
    return torch.zeros(num_rows(inputs), dtype=torch.int64)


def num_rows(inputs: Mapping[str, Any]) -> int:
    """Gives the number of rows of a micro-batch, by its first tensor.

    Args:
        inputs: A collated micro-batch.

    Returns:
        The length of the first tensor that has one; 0 without.
    """
    return next((len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()), 0)


class _ItemCrossEntropy(TorchFunctionMode):
    """Has a cross entropy computed term by term and reduced afterwards: the same loss, and the terms for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.cross_entropy:
            return func(*args, **(kwargs or {}))
        call = _CROSS_ENTROPY_SIGNATURE.bind(*args, **(kwargs or {}))
        call.apply_defaults()
        options = call.arguments
        reduction, target = options["reduction"], options["target"]
        if reduction not in ("sum", "mean") or options["weight"] is not None or target.is_floating_point():
            return func(*args, **(kwargs or {}))
        options["reduction"] = "none"
        terms = func(*call.args, **call.kwargs)
        self.terms.append(terms.detach())
        return terms.sum() if reduction == "sum" else terms.sum() / target.ne(options["ignore_index"]).sum()


class RowLossReader:
    """Reads the loss of each row off a model's forward, without a second one.

    A model that computes its loss by `model.loss_function` (most heads of transformers) has its cross entropy
    reduced after the terms are kept, which costs nothing. For other models the terms are computed from the logits,
    without a gradient.

    Args:
        model: The model, not wrapped for distributed training; it is only held weakly.
        shifts_labels: Whether the model predicts the next token.
        label_smoothing: The Trainer's label smoothing factor.
        wrap_loss_function: `False` leaves the loss function as it is, for models that are compiled.
        keeps_output: Whether the output of a forward is kept until the next one, for those that add to the loss.
        keeps_items: Whether `item_losses` are kept until the next forward.
        weighs_by_probability: Whether each item's loss is multiplied by its probability, as in dynamic fine-tuning. Is
            asked for only of models that give log-probabilities in place of logits.
    """

    def __init__(
        self,
        model: nn.Module,
        shifts_labels: bool,
        label_smoothing: float = 0.0,
        wrap_loss_function: bool = True,
        keeps_output: bool = False,
        keeps_items: bool = False,
        weighs_by_probability: bool = False,
    ):
        self.output: Any = None
        # `[num_rows, num_places]`: the loss of each item, 0 where labels are ignored; `None` if they are not known.
        self.item_losses: Tensor | None = None
        self._keeps_output = keeps_output
        self._keeps_items = keeps_items
        self._shifts_labels = shifts_labels
        self._label_smoothing = label_smoothing
        self._weighs_by_probability = weighs_by_probability
        self._row_losses: Tensor | None = None
        self._terms: list[Tensor] = []
        self._labels: Any = None
        self._listening = False
        inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
        self._inner = weakref.ref(inner) if inner is not None and wrap_loss_function else None
        self._previous_loss_function: Callable[..., Any] | None = None
        self._model = weakref.ref(model)
        self._handle: RemovableHandle | None = None

    def attach(self) -> None:
        """Puts the hooks in place; they hold this tracker only weakly, so that a copy of the model does not copy it."""
        tracker = weakref.ref(self)

        def after_forward(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            listener = tracker()
            if listener is not None and listener._listening:
                listener._hear(output, kwargs)

        model = self._model()
        assert model is not None, "a tracker is attached while its model is there"  # noqa: S101
        self._handle = model.register_forward_hook(after_forward, with_kwargs=True)
        inner = self._inner() if self._inner else None
        if inner is None:
            return
        self._previous_loss_function = inner.__dict__.get("_loss_function")
        original = inner.loss_function

        def loss_function(*args: Any, **kwargs: Any) -> Any:
            listener = tracker()
            if listener is None or not listener._listening:
                return original(*args, **kwargs)
            with _ItemCrossEntropy() as items:
                loss = original(*args, **kwargs)
            listener._terms += items.terms
            return loss

        inner.loss_function = loss_function

    def detach(self) -> None:
        """Takes the hooks away and leaves the model as it was."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            inner = self._inner() if self._inner else None
            if inner is not None:
                del inner._loss_function
                if self._previous_loss_function is not None:
                    inner.loss_function = self._previous_loss_function

    def shift_labels(self, shifts: bool) -> None:
        """Sets whether the first label of a row is no term of the loss.

        Args:
            shifts: Whether the model predicts the next token.
        """
        self._shifts_labels = shifts

    def listen(self, inputs: Mapping[str, Any]) -> None:
        """Waits for the next forward.

        Args:
            inputs: The micro-batch that it will be of.
        """
        self._row_losses, self._terms, self._listening, self.output = None, [], True, None
        self._labels, self.item_losses = inputs.get("labels"), None

    def row_losses(self) -> Tensor | None:
        """Gives what the last forward showed, once.

        Returns:
            float `[num_rows]`: the sum of each row's loss terms; `None` if they cannot be told apart.
        """
        losses, self._row_losses, self._listening = self._row_losses, None, False
        self._labels = self.output = None
        return losses

    def _hear(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        if self._keeps_output:
            self.output = output
        labels = kwargs.get("labels", self._labels)
        if not isinstance(labels, Tensor) or labels.dim() == 0:
            return
        if len(self._terms) == 1 and self._terms[0].numel() % len(labels) == 0:
            terms = self._terms[0].reshape(len(labels), -1)
            self._row_losses = terms.sum(dim=1)
            self._keep(terms)
            return
        log_probs = getattr(output, "log_probs", None)
        if isinstance(log_probs, Tensor):
            self._hear_log_probs(log_probs.detach(), labels)
            return
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            with torch.no_grad():
                self._row_losses = self._from_logits(logits.detach(), labels.to(logits.device), kwargs)

    def _hear_log_probs(self, log_probs: Tensor, labels: Tensor) -> None:
        """Takes up what a fused head of TRL gives: `[num_rows, num_places - 1]`, 0 where labels are ignored."""
        if self._row_losses is not None:  # a second forward, for metrics alone, after one with logits
            return
        terms = -_at_least_float(log_probs)
        if self._weighs_by_probability:
            terms = terms * terms.neg().exp()
        self._row_losses = terms.sum(dim=1)
        # Prompt tuning puts places before those that have labels.
        self._keep(F.pad(terms[:, -(labels.shape[-1] - 1) :], (0, 1)))

    def _keep(self, terms: Tensor) -> None:
        self.item_losses = terms if self._keeps_items else None

    def _from_logits(self, logits: Tensor, labels: Tensor, kwargs: Mapping[str, Any]) -> Tensor | None:
        if labels.is_floating_point() or logits.shape[-1] == 1:
            return self._float_label_losses(logits, labels, kwargs.get(TASK))
        if logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
            return None
        if self._shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        flat = labels.reshape(-1)
        counted = flat.ne(_IGNORED).nonzero().squeeze(-1)
        terms = F.cross_entropy(
            _at_least_float(logits.reshape(-1, logits.shape[-1])[counted]),
            # A loss of the user's own may take other labels than classes; that these terms are not its own shows.
            flat[counted].clamp(0, logits.shape[-1] - 1),
            reduction="none",
            label_smoothing=self._label_smoothing,
        )
        rows = counted // (flat.numel() // len(labels))
        if self._keeps_items:
            places = terms.new_zeros(flat.numel()).index_copy_(0, counted, terms).reshape(len(labels), -1)
            # Models that shift their labels themselves have a last place too, whose label is ignored.
            self._keep(F.pad(places, (0, 1)) if self._shifts_labels else places)
        return torch.zeros(len(labels), dtype=terms.dtype, device=terms.device).index_add_(0, rows, terms)

    def _float_label_losses(self, logits: Tensor, labels: Tensor, task: str | None) -> Tensor | None:
        model = self._model()
        assert model is not None, "a forward is heard while its model is there"  # noqa: S101
        described = getattr(model, "config", None) if task is None else (heads_of(model) or {}).get(task)
        problem = getattr(described, "problem_type", None)
        if logits.numel() != labels.numel():
            return None
        logits = _at_least_float(logits).reshape(len(labels), -1)
        labels = labels.to(logits.dtype).reshape(len(labels), -1)
        if problem == "multi_label_classification":
            terms = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        else:
            terms = F.mse_loss(logits, labels, reduction="none")
        if task is not None:  # heads leave out such labels of every kind
            terms = torch.where(labels.eq(_IGNORED), 0, terms)
        self._keep(terms)
        return terms.sum(dim=1)


def _at_least_float(values: Tensor) -> Tensor:
    """Brings half precision to single; double stays as exact as it is."""
    return values if values.dtype == torch.float64 else values.float()


def hides_rows(args: TrainingArguments) -> bool:
    """Says whether the losses of rows cannot be read off a forward.

    The fused loss has no logits in training, though it has them in evaluation. The other one writes the gradient over
    them, so that what is there after the forward is no logits any more. By default Liger puts the fused one in place.

    Args:
        args: The training arguments.

    Returns:
        Whether one of the two is in place.
    """
    if not args.use_liger_kernel:
        return False
    config = args.liger_kernel_config or {}
    return bool(config.get("fused_linear_cross_entropy", True) or config.get("cross_entropy", False))


class RowlessTracker(RowLossReader):
    """A tracker that tells no rows apart: micro-batches are of one stream each, and their loss is that stream's."""

    def _hear(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        if self._keeps_output:
            self.output = output
