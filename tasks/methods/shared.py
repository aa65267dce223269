"""Shared by methods: a task that they need, weights held near earlier ones, a frozen model, logits, saved tensors."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.models.row_losses import logits_in
from mixer.models.side_state import frozen_copy
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError

_FILE, _STRIDES = "state.safetensors", "strides"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class TaskContext:
    """A task of a continual run, as its methods see it.

    Args:
        number: Its number, from 0.
        num_tasks: Number of tasks in the run.
        name: Its name, which its stream has too.
        dataset: Its training data, map-style.
        classes: Its classes, ascending; `None` where samples have none.
        seen: All classes up to this task, ascending; empty where samples have none.
        earlier: The classes of each task before this one that has some.
        scenario: Which classes compete: `"class"`, `"task"`, `"domain"` or `"free"`; see `tasks.TaskSequence`.
    """

    number: int
    num_tasks: int
    name: str
    dataset: DataSet
    classes: tuple[int, ...] | None
    seen: tuple[int, ...]
    earlier: tuple[tuple[int, ...], ...] = ()
    scenario: str = "class"


class TaskMethod(Method):
    """A method that goes by the tasks of a continual run; it refuses a run without tasks.

    Passed in a list it lasts for all tasks, and what it saves is saved after each task too.

    Attributes:
        needs_classes: Whether samples must have classes.
        needs_all_logits: Whether all classes must compete, so that a task-incremental sequence is refused.
        adds_parameters: Whether `begin_task` adds parameters, so that each task needs a new optimizer.
        lasts_for_all_tasks: Whether it needs what it learnt in earlier tasks, so that a new one for each is refused.
        run: The run that it takes part in.
        task: The present task; `None` before `begin_task`.
    """

    needs_classes: bool = False
    needs_all_logits: bool = False
    adds_parameters: bool = False
    lasts_for_all_tasks: bool = False
    run: RunContext
    task: TaskContext | None = None

    def attach(self, run: RunContext) -> None:
        """Waits for a task; see `Method.attach`."""
        self.run, self.task = run, None

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Called before the first step of a task, on all ranks, after `attach`; an override calls this one.

        Args:
            task: The task.
            model: The model as the task before left it, also where a run resumes in the middle of this task.
        """
        self.task = task

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Called after the last step of a task, on all ranks, before it is scored and saved.

        Args:
            task: The task.
            model: The model, which it may change.
        """

    def prepare(self, model: nn.Module) -> None:
        """Refuses a run without tasks; see `Method.prepare`."""
        if self.task is None:
            raise InvalidValueError.about(
                "methods",
                f"{self.name} goes by tasks: use ContinualRun(methods=...), and call super().begin_task(...).",
            )


class WeightMethod(TaskMethod):
    """A method that holds weights near those at the end of earlier tasks; see `WeightAnchor`."""

    needs = frozenset({"whole gradients"})
    lasts_for_all_tasks = True

    def __init__(self) -> None:
        self._anchor = WeightAnchor()

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Holds nothing yet in the first task; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        if not task.number:
            self._anchor = WeightAnchor()

    def save(self, folder: Path) -> None:
        """Writes the importances and the weights; see `Method.save`."""
        save_tensors(folder, importances=self._anchor.importances, weights=self._anchor.weights, **self.further_state())

    def further_state(self) -> dict[str, Tensors]:
        """Returns what else is saved, by name of the group."""
        return {}

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        if (state := load_tensors(folder, self.run.device)) is not None:
            self._anchor.importances, self._anchor.weights = state.get("importances", {}), state.get("weights", {})
            self.load_further(state)

    def load_further(self, state: Mapping[str, Tensors]) -> None:
        """Loads the result of `further_state`."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def wide(tensor: Tensor) -> torch.dtype:
    """Returns the type in which small numbers of a tensor add up: single precision at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def copied(model: nn.Module) -> Tensors:
    """Returns copies of the weights that are trained, by name."""
    return {name: parameter.detach().clone() for name, parameter in trainable(model).items()}


def flat_weights(model: nn.Module) -> Tensor:
    """Returns the trained parameters as one vector on the CPU, in single precision."""
    return torch.cat([parameter.detach().to("cpu", torch.float32).flatten() for parameter in trainable(model).values()])


@torch.no_grad()
def set_weights(model: nn.Module, vector: Tensor) -> None:
    """Sets the trained parameters to a vector of `flat_weights`."""
    parameters = trainable(model).values()
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    for parameter, values in zip(parameters, parts, strict=True):
        parameter.copy_(values.view_as(parameter))


class WeightAnchor:
    """Holds weights near those at the end of earlier tasks, each by its importance.

    The penalty is `Σ importance (weight − anchor)²`. Outputs that a growing head has added since have no importance.
    """

    def __init__(self) -> None:
        self.importances: Tensors = {}
        self.weights: Tensors = {}

    def hold(self, model: nn.Module, importances: Mapping[str, Tensor], decay: float = 1.0) -> None:
        """Adds importances to `decay` times the earlier ones, and anchors the model at its present weights."""
        for name, new in importances.items():
            if (earlier := self.importances.get(name)) is not None:
                new[_part(earlier)] += decay * earlier
            self.importances[name] = new
        self.weights = copied(model)

    def add_gradient(self, run: RunContext, factor: float) -> None:
        """Adds `factor` times half the gradient of the penalty to a complete gradient."""
        parameters = trainable(run.passes.model) if self.importances else {}
        for name in self.importances.keys() & parameters.keys():
            parameter, importance = parameters[name], self.importances[name]
            part = _part(importance)
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distance = parameter.detach()[part] - self.weights[name][part]
            parameter.grad[part].add_(run.mean_over_step(factor * importance * distance))


def _part(smaller: Tensor) -> tuple[slice, ...]:
    """Returns the part of a tensor that has grown since it had this shape."""
    return tuple(map(slice, smaller.shape))


class FrozenModel:
    """A copy of the model as it is now, which is not trained.

    Args:
        model: The model, not wrapped.
        passes: Move inputs to its device.
    """

    def __init__(self, model: nn.Module, passes: AuxiliaryPasses):
        self._model, self._passes = frozen_copy(model), passes

    def logits(self, trained: ForwardResult, asked_by: str) -> Tensor:
        """Returns its logits of a micro-batch, `[num_rows, num_classes]`, without a graph."""
        with torch.no_grad():
            output = self._model(**self._passes.prepare_inputs(trained.micro.inputs))
        return class_logits(output, len(trained.micro.stream_ids), asked_by)


def last_linear(model: nn.Module, asked_by: str) -> nn.Linear:
    """Returns the last linear layer, whose input `extract_features` takes for features.

    Args:
        model: The model.
        asked_by: The method, for the error.

    Raises:
        ValueError: If there is none.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise InvalidValueError.about(
            "model", f"must have a linear layer for {asked_by}, but {type(model).__name__} has none."
        )
    return layers[-1]


@contextmanager
def outermost_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Sets the mode of the outermost module alone, which a masked head goes by, unlike dropout and its like."""
    mode, model.training = model.training, training
    try:
        yield
    finally:
        model.training = mode


def class_logits(output: object, num_rows: int, asked_by: str) -> Tensor:
    """Returns the logits of a model's output, in single precision at least.

    Args:
        output: The output.
        num_rows: Number of samples.
        asked_by: The method, for the error.

    Returns:
        `[num_rows, num_classes]`.

    Raises:
        ValueError: If there are none.
    """
    logits = logits_in(output)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != num_rows:
        found = f"'logits' of shape {list(logits.shape)}" if isinstance(logits, Tensor) else "no 'logits'"
        raise InvalidValueError.about(
            "model", f"must give logits [num_rows, num_classes] of {num_rows} rows for {asked_by}, but gives {found}."
        )
    return logits.to(wide(logits))


def save_tensors(folder: Path, **groups: Mapping[str, Tensor]) -> None:
    """Writes named groups of named tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"{group}/{name}": tensor.detach() for group, own in groups.items() for name, tensor in own.items()}
    strides = json.dumps({name: tensor.stride() for name, tensor in tensors.items()})
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, folder / _FILE, {_STRIDES: strides})


def load_tensors(folder: Path, device: torch.device | str) -> dict[str, Tensors] | None:
    """Reads what `save_tensors` wrote, onto a device; `None` if there is nothing.

    Each tensor has its strides again, and memory of its own, aligned as any new one: a processor may round products
    otherwise where either differs, and a resumed run must go on to the bit.
    """
    if not (folder / _FILE).exists():
        return None
    groups: dict[str, Tensors] = {}
    with safe_open(folder / _FILE, "pt") as file:
        strides = json.loads((file.metadata() or {}).get(_STRIDES, "{}"))
        for key in file.keys():  # noqa: SIM118  # it is no mapping
            saved = file.get_tensor(key)
            own = torch.empty_strided(saved.shape, strides.get(key, saved.stride()), dtype=saved.dtype, device=device)
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = own.copy_(saved)
    return groups
