"""Per-row losses of a micro-batch, read from the training's own forward pass."""

import inspect
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel, TrainingArguments

from mixer.models.inputs import TASK, heads_of
from mixer.models.labels import IGNORED

_CROSS_ENTROPY_DEFAULTS = {name: value.default for name, value in inspect.signature(F.cross_entropy).parameters.items()}


def items_per_row(inputs: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """Counts the loss terms of each row: the labels that are not ignored.

    Args:
        inputs: A collated micro-batch.
        shifts_labels: Whether the model predicts the next token, so a row's first label is no term.

    Returns:
        int64 `[num_rows]`; 1 per row if the batch has no `labels` tensor.
    """
    if not has_labels(inputs):
        return torch.ones(num_rows(inputs), dtype=torch.int64)
    labels: Tensor = inputs.get("shift_labels", inputs.get("labels"))
    if shifts_labels and "shift_labels" not in inputs:
        labels = labels[..., 1:]
    return labels.ne(IGNORED).reshape(len(labels), -1).sum(dim=1)


def has_labels(inputs: Mapping[str, Any]) -> bool:
    """Whether a micro-batch has labels by row."""
    labels = inputs.get("shift_labels", inputs.get("labels"))
    return isinstance(labels, Tensor) and labels.dim() > 0


def labels_can_shift(inputs: Mapping[str, Any]) -> bool:
    """Whether a row has several labels, so the first may be no term of the loss."""
    labels = inputs.get("labels")
    return isinstance(labels, Tensor) and labels.dim() > 1


def tokens_per_row(inputs: Mapping[str, Any]) -> Tensor:
    """Counts the tokens of each row, by the attention mask or else the length.

    Returns:
        int64 `[num_rows]`; 0 for inputs that are no tokens.
    """
    mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
    is_of_tokens = isinstance(mask, Tensor) and isinstance(ids, Tensor) and mask.shape == ids.shape  # or of choices
    if isinstance(mask, Tensor) and (mask.dim() == 2 or is_of_tokens):
        return mask.reshape(len(mask), -1).sum(dim=1).to(torch.int64)
    if isinstance(ids, Tensor) and ids.dim() in (2, 3):
        return torch.full((len(ids),), ids.shape[1:].numel(), dtype=torch.int64)
    of_columns = [own for name, own in inputs.items() if name.endswith("_attention_mask") and isinstance(own, Tensor)]
    if of_columns:  # a pair of texts, say
        return torch.stack([own.sum(dim=1).to(torch.int64) for own in of_columns]).sum(dim=0)
    return torch.zeros(num_rows(inputs), dtype=torch.int64)


def num_rows(inputs: Mapping[str, Any]) -> int:
    """Returns the number of rows of a micro-batch: labels, or the length of most tensors; 0 without a tensor."""
    lengths = {name: len(value) for name, value in inputs.items() if isinstance(value, Tensor) and value.dim()}
    return lengths.get("labels") or (statistics.mode(lengths.values()) if lengths else 0)


def logits_in(output: object) -> Any:
    """Returns what a model's output, a mapping or an object, has as `logits`; `None` without."""
    return output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)


class _ItemCrossEntropy(TorchFunctionMode):
    """Computes a cross entropy term by term and reduces it afterwards: the same loss, with the terms for free."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.cross_entropy:
            return func(*args, **kwargs)
        options = {**_CROSS_ENTROPY_DEFAULTS, **dict(zip(_CROSS_ENTROPY_DEFAULTS, args, strict=False)), **kwargs}
        reduction, target = options["reduction"], options["target"]
        if reduction not in ("sum", "mean") or options["weight"] is not None or target.is_floating_point():
            return func(*args, **kwargs)
        terms = func(**(options | {"reduction": "none"}))
        self.terms.append(terms.detach())
        return terms.sum() if reduction == "sum" else terms.sum() / target.ne(options["ignore_index"]).sum()


@dataclass(eq=False)
class RowLossReader:
    """Reads the loss of each row from a model's forward pass, without a second one.

    A model that computes its loss by `model.loss_function` (most heads of transformers) has its cross entropy reduced
    after the terms are stored, at no cost. For other models the terms are computed from the logits, without a gradient.

    Args:
        model: The model, not wrapped for distributed training; only a weak reference is held.
        shifts_labels: Whether the model predicts the next token.
        label_smoothing: The Trainer's label smoothing factor.
        wrap_loss_function: `False` leaves the loss function as it is, for compiled models.
        keeps_output: Whether to keep the output of a forward until the next one.
        weighs_by_probability: Whether to multiply each item's loss by its probability, as dynamic fine-tuning does.
            Only used for models that return log-probabilities in place of logits.
        trusts_labels: Whether the labels of a micro-batch are those of its forward. Then those that count are found on
            the CPU, where no one waits for them.
    """

    model: InitVar[nn.Module]
    shifts_labels: bool
    label_smoothing: float = 0.0
    wrap_loss_function: InitVar[bool] = True
    keeps_output: bool = False
    weighs_by_probability: bool = False
    trusts_labels: bool = False

    def __post_init__(self, model: nn.Module, wrap_loss_function: bool) -> None:
        self.output: Any = None
        self.row_losses: Tensor | None = None  # of the last forward
        self.terms: list[Tensor] = []
        self._keeps_forward = False
        self.was_given_count = False  # whether the model's loss function was given `num_items_in_batch`
        self._forward: Any = None  # the output of the last one
        self._labels: Any = None
        self.is_listening = False
        inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
        self._inner = weakref.ref(inner) if inner is not None and wrap_loss_function else None
        self._previous_loss_function: Callable[..., Any] | None = None
        self._model = weakref.ref(model)
        self._handle: RemovableHandle | None = None

    def attach(self) -> None:
        """Installs the hooks; they hold a weak reference, so a copy of the model does not copy the reader."""
        own = weakref.ref(self)

        def after_forward(_module: nn.Module, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
            reader = own()
            if reader is not None and reader.is_listening:
                reader.read_output(output, kwargs)

        model = self._model()
        assert model is not None, "the model exists while its reader is attached"  # noqa: S101
        self._handle = model.register_forward_hook(after_forward, with_kwargs=True)
        inner = self._inner() if self._inner else None
        if inner is None:
            return
        self._previous_loss_function = inner.__dict__.get("_loss_function")
        original = inner.loss_function

        def loss_function(*args: Any, **kwargs: Any) -> Any:
            reader = own()
            if reader is None or not reader.is_listening:
                return original(*args, **kwargs)
            reader.was_given_count = kwargs.get("num_items_in_batch") is not None
            with _ItemCrossEntropy() as items:
                loss = original(*args, **kwargs)
            reader.terms += items.terms
            return loss

        inner.loss_function = loss_function

    def detach(self) -> None:
        """Removes the hooks and restores the model."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            inner = self._inner() if self._inner else None
            if inner is not None:
                del inner.__dict__["_loss_function"]
                if self._previous_loss_function is not None:
                    inner.loss_function = self._previous_loss_function

    def listen(self, inputs: Mapping[str, Any], keeps_forward: bool = False) -> None:
        """Prepares for the next forward.

        Args:
            inputs: Its micro-batch.
            keeps_forward: Whether `other_row_losses` will be asked of it.
        """
        self._keeps_forward = keeps_forward
        self.row_losses, self.terms, self.is_listening, self.output = None, [], True, None
        self._labels, self._forward, self.was_given_count = inputs.get("labels"), None, False

    def take_row_losses(self) -> Tensor | None:
        """Returns the sum of each row's loss terms in the last forward, `[num_rows]`, once; `None` if unknown."""
        rows = self.row_losses
        self.row_losses = self._labels = self.output = self._forward = None
        self.is_listening = False
        return rows

    def other_row_losses(self) -> Tensor | None:
        """Returns the row losses of the last forward if labels are shifted, or not, unlike expected."""
        if self._forward is None:
            return None
        self.shifts_labels, own = not self.shifts_labels, self.row_losses
        self.read_output(self._forward, {})
        self.shifts_labels, self.row_losses, other = not self.shifts_labels, own, self.row_losses
        return other

    def read_output(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        """Reads the row losses of a forward's output."""
        if self.keeps_output:
            self.output = output
        if self._keeps_forward:
            self._forward = output
        labels = kwargs.get("labels", self._labels)
        if not isinstance(labels, Tensor) or labels.dim() == 0:
            return
        if len(self.terms) == 1 and self.terms[0].numel() % len(labels) == 0:
            self.row_losses = self.terms[0].reshape(len(labels), -1).sum(dim=1)
            return
        log_probs = getattr(output, "log_probs", None)
        if isinstance(log_probs, Tensor):
            self._read_log_probs(log_probs.detach())
            return
        logits = logits_in(output)
        if isinstance(logits, Tensor):
            with torch.no_grad():
                self.row_losses = self._from_logits(logits.detach(), labels, kwargs)

    def _read_log_probs(self, log_probs: Tensor) -> None:
        """Reads the log-probabilities of TRL's fused head: `[num_rows, num_places - 1]`, 0 for ignored labels."""
        if self.row_losses is not None:  # a second forward, for metrics alone, after one with logits
            return
        terms = -_at_least_float(log_probs)
        if self.weighs_by_probability:
            terms = terms * terms.neg().exp()
        self.row_losses = terms.sum(dim=1)

    def _from_logits(self, logits: Tensor, labels: Tensor, kwargs: Mapping[str, Any]) -> Tensor | None:
        known, own = labels, self._labels
        if self.trusts_labels and isinstance(own, Tensor) and own.shape == labels.shape:
            known = own
        labels = labels.to(logits.device, non_blocking=True)
        if labels.is_floating_point() or logits.shape[-1] == 1:
            return self._float_label_losses(logits, labels, kwargs.get(TASK))
        if logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
            return None
        if self.shifts_labels:
            logits, labels, known = logits[:, :-1], labels[:, 1:], known[:, 1:]
        flat = labels.reshape(-1)
        counted = known.reshape(-1).ne(IGNORED).nonzero().squeeze(-1).to(logits.device, non_blocking=True)
        terms = F.cross_entropy(
            _at_least_float(logits.reshape(-1, logits.shape[-1])[counted]),
            # A loss of the user's own may take other labels than classes; that these terms are not its own shows.
            flat[counted].clamp(0, logits.shape[-1] - 1),
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        rows = counted // (flat.numel() // len(labels))
        return torch.zeros(len(labels), dtype=terms.dtype, device=terms.device).index_add_(0, rows, terms)

    def _float_label_losses(self, logits: Tensor, labels: Tensor, task: str | None) -> Tensor | None:
        model = self._model()
        assert model is not None, "the model exists during its forward"  # noqa: S101
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
        if task is not None:  # heads ignore such labels of every kind
            terms = torch.where(labels.eq(IGNORED), 0, terms)
        return terms.sum(dim=1)


def _at_least_float(values: Tensor) -> Tensor:
    """Converts half precision to single."""
    return values if values.dtype == torch.float64 else values.float()


def hides_rows(args: TrainingArguments) -> bool:
    """Whether the row losses of a forward pass are hidden: rows are generated, or Liger kernels hide them.

    The fused linear loss has no logits in training, though it has them in evaluation. Liger's cross entropy overwrites
    the logits with their gradient. By default Liger installs the fused one.
    """
    if generates(args) or not args.use_liger_kernel:
        return generates(args)
    config = args.liger_kernel_config or {}
    return bool(config.get("fused_linear_cross_entropy", True) or config.get("cross_entropy", False))


def generates(args: TrainingArguments) -> bool:
    """Whether samples are prompts of rounds, whose completions are the rows of a forward, as of GRPO."""
    return hasattr(args, "steps_per_generation") and hasattr(args, "num_generations")


class RowlessTracker(RowLossReader):
    """A reader without row losses: micro-batches are of one stream each, and their loss is that stream's."""

    def read_output(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        """Keeps the output if it is needed."""
        if self.keeps_output:
            self.output = output
