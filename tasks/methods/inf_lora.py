"""InfLoRA: a new adapter for each task, in a subspace that earlier tasks do not use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixer.trainer.method import RunContext
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import drawn_places
from mixer.utils.ranges import check_count, check_range
from tasks.methods.adapters import AdapterMethod, activate, is_adapted, matrices_of
from tasks.methods.shared import TaskContext, load_tensors, save_tensors

if TYPE_CHECKING:
    from peft import PeftModel

_ROWS = 16


class InfLoRA(AdapterMethod):
    """Trains B of a new LoRA adapter for each task; its A is fixed where inputs of earlier tasks have no part.

    Liang and Li 2024, "InfLoRA: Interference-Free Low-Rank Adaptation for Continual Learning", arXiv:2404.00228: with
    `H` the inputs of a layer in task t, and `M` an orthonormal basis of those of earlier tasks, A has the `r` first
    principal directions of `(I - M Mᵀ) H`, so that no B changes what the layer gives for inputs of earlier tasks. After
    the task `M` takes in as many directions of its inputs as reach `threshold` of their squared norm, as gradient
    projection memory does (Saha et al. 2021, arXiv:2103.09762, equation 9).

    The adapters are as for `OLoRA`. Inputs are those of some samples of the task; a layer needs memory for a matrix
    `[num_inputs, num_inputs]` meanwhile. Pass the method in a list, so that it lasts.

    Args:
        threshold: Share of the squared norm of a task's inputs that is protected; more forgets less and learns less.
        num_samples: Largest number of samples whose inputs are looked at, drawn by the run's seed.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if the model has no LoRA adapter on
            linear layers, or one that cannot be active with others.

    Example:
        >>> model = get_peft_model(model, LoraConfig(r=8, task_type="CAUSAL_LM"))  # doctest: +SKIP
        >>> run = ContinualRun(model, sequence, args, methods=[InfLoRA()])  # doctest: +SKIP
    """

    lasts_for_all_tasks = True

    def __init__(self, threshold: float = 0.98, num_samples: int = 256):
        check_range("threshold", threshold, 0.0, 1.0, "0.95 to 0.99 are usual")
        check_count("num_samples", num_samples, 1, "some hundreds show what inputs a task has")
        self.threshold, self.num_samples = float(threshold), num_samples
        self._bases: dict[str, Tensor] = {}  # `[num_inputs, num_directions]` by layer
        self._num_done = 0

    def attach(self, run: RunContext) -> None:
        """Refuses models that cannot have an adapter for each task; see `Method.attach`."""
        super().attach(run)
        model = run.passes.model
        others = [name for name, parameter in model.named_parameters() if "lora_A" in name and parameter.dim() > 2]
        others += [name for name, _ in model.named_parameters() if "lora_embedding" in name]
        if others:
            raise InvalidValueError.about("target_modules", f"must be linear layers, but {others[0]} is none.")

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Adds the adapter of the task, and chooses its A; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        assert is_adapted(model) and self._adapter is not None, "it was checked"  # noqa: S101, PT018
        if any(bool(matrix.any()) for matrix in matrices_of(model, self._adapter, "B").values()):
            raise InvalidValueError.about(
                "model",
                f"must have a new adapter, but {self._adapter!r} is trained: merge_and_unload() it, add another.",
            )
        squares = self._squares(model, task)
        with torch.no_grad():
            for place, matrix in matrices_of(model, self._adapter, "A").items():
                free = without(squares[place], self._bases.get(place))
                matrix.copy_(directions(free, len(matrix))[0].T)

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Takes in the directions of the task's inputs; see `TaskMethod.end_task`."""
        assert is_adapted(model), "it was checked"  # noqa: S101
        squares = self._squares(model, task)
        self._bases = {place: extended(self._bases.get(place), new, self.threshold) for place, new in squares.items()}
        self._num_done = task.number + 1

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads the directions of earlier tasks, or makes all adapters active again; see `Method.load`."""
        if (state := load_tensors(folder, "cpu")) is not None:
            self._num_done, self._bases = int(state["num_done"][""]), state.get("bases", {})
        super().load(folder, allow_inexact)

    def save(self, folder: Path) -> None:
        """Writes the directions of earlier tasks; see `Method.save`."""
        if self._num_done:
            save_tensors(folder, num_done={"": torch.tensor(self._num_done)}, bases=self._bases)

    def activate_all(self, model: PeftModel, adapter: str) -> None:
        """Trains B of the task's own adapter; see `AdapterMethod`."""
        activate(model, list(model.peft_config), matrices_of(model, adapter, "B").values())

    def _squares(self, model: PeftModel, task: TaskContext) -> dict[str, Tensor]:
        """Adds up products of inputs `[num_inputs, num_inputs]` by layer, over all ranks."""
        run, count = self.run, min(self.num_samples, len(task.dataset))
        chosen = drawn_places(len(task.dataset), count, run.seed, task.number).tolist()
        batches = [chosen[first : first + _ROWS] for first in range(0, count, _ROWS)]
        places = matrices_of(model, str(self._adapter), "A")
        squares = {place: torch.zeros(a.shape[1], a.shape[1], device=a.device) for place, a in places.items()}

        def look() -> None:
            with run.passes.without_gradients(training=False), _listening(model, squares) as masks:
                for batch in batches[run.rank :: run.world_size]:
                    inputs = run.passes.prepare_inputs(run.passes.collator([task.dataset[index] for index in batch]))
                    masks[:] = [inputs["attention_mask"]] if "attention_mask" in inputs else []
                    model(**inputs)

        run.rank_sync.run_on_all(look)
        return {place: run.rank_sync.add_up(of_rank) for place, of_rank in squares.items()}


@contextlib.contextmanager
def _listening(model: nn.Module, squares: dict[str, Tensor]) -> Iterator[list[Tensor]]:
    """Adds products of inputs of layers to `squares`; yields a list for the mask of the present batch."""
    masks: list[Tensor] = []

    def listen(place: str) -> Any:
        def take(_: nn.Module, args: tuple[Any, ...]) -> None:
            inputs = args[0].to(squares[place].dtype)
            if masks and inputs.shape[:-1] == masks[0].shape:
                inputs = inputs[masks[0].bool()]
            rows = inputs.reshape(-1, inputs.shape[-1])
            squares[place].addmm_(rows.T, rows)

        return take

    with contextlib.ExitStack() as handles:
        for place in squares:
            layer = model.get_submodule(place.rpartition(".lora_A")[0])
            handles.enter_context(layer.register_forward_pre_hook(listen(place)))
        yield masks


def without(squares: Tensor, basis: Tensor | None) -> Tensor:
    """Returns `(I - M Mᵀ) H Hᵀ (I - M Mᵀ)`.

    Args:
        squares: `H Hᵀ`, `[num_inputs, num_inputs]`.
        basis: `M`, `[num_inputs, num_directions]`, orthonormal; `None` for none.
    """
    if basis is None:
        return squares
    own = basis.to(squares.device)
    left = squares - own @ (own.T @ squares)
    return left - (left @ own) @ own.T


def directions(squares: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Returns the first principal directions of inputs, and their shares of the squared norm.

    Args:
        squares: `[num_inputs, num_inputs]`.
        most: Largest number of directions.

    Returns:
        `[num_inputs, most]`, of norm 1, with the largest entry of each positive; and `[most]`, descending.
    """
    values, vectors = torch.linalg.eigh(squares.double())
    values, vectors = values.flip(0)[:most].clamp(min=0), vectors.flip(1)[:, :most]
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return (vectors * largest.sign()).to(squares.dtype), (values / squares.double().trace().clamp(min=1e-30))


def extended(basis: Tensor | None, squares: Tensor, threshold: float) -> Tensor:
    """Adds to a basis the directions of inputs that it lacks.

    Args:
        basis: `[num_inputs, num_directions]`, orthonormal, or `None`.
        squares: `H Hᵀ`, `[num_inputs, num_inputs]`.
        threshold: Share of the squared norm of the inputs that the basis has in the end.

    Returns:
        The larger basis.
    """
    free = without(squares, basis)
    missing = float(free.double().trace() / squares.double().trace().clamp(min=1e-30))
    vectors, shares = directions(free, len(squares))
    covered = torch.cat([shares.new_zeros(1), shares.cumsum(0)[:-1]]) * missing + 1 - missing  # by the ones before
    found = vectors[:, covered < threshold]
    if basis is None:
        return found
    return torch.cat([basis.to(found.device), found], dim=1)[:, : len(squares)]
