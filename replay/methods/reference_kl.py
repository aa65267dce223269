"""The divergence from the model as it began: a reference where no old data are left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from mixer.mixture.step_plan import StepPlan
from mixer.models.side_state import frozen_copy, undisturbed
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_range
from replay.methods.logits import labelled, logits_of, softened_divergence

_FILE = "reference.safetensors"


class ReferenceKL(Method):
    """Holds the model to what it said before the run, on the rows of some streams.

    Each token that has a label (each sample of a classifier) of these streams adds `λ T² KL(p_before || p)` to the loss
    in place of its own, with `p` the softmax of the logits over the temperature `T`. So its target is the distribution
    that the model gave before, not one token of it (Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
    arXiv:1503.02531, section 2). Its streams may have rows that the model has written itself, or any rows like those
    that it must not forget.

    On the rows of the new task, beside their labels (`learns_labels=True`), this is Learning without Forgetting (Li and
    Hoiem 2017, arXiv:1606.09282): what is left for encoders and classifiers, which write no rows.

    With adapters the reference is the model without them; else it is a copy, which is saved in checkpoints. Both cost a
    forward of the rows.

    Args:
        streams: Names of the streams.
        strength: `λ`, 0 or more.
        temperature: `T`, above 0.
        learns_labels: Whether the streams' labels are learned too.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made if there is no stream of a name; in
            training, if the model gives no logits.

    Example:
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model, args, train_dataset={"new": new, "own": own}, methods=[ReferenceKL(["own"])],
        ... )
    """

    def __init__(
        self, streams: Sequence[str], strength: float = 1.0, temperature: float = 1.0, learns_labels: bool = False
    ):
        check_range("strength", strength, 0.0, float("inf"), "1 counts a token as one with a label")
        check_range("temperature", temperature, 1e-3, float("inf"), "1 compares the distributions as they are")
        if isinstance(streams, str) or not streams:
            raise InvalidValueError(option="streams", expected="a list of names of streams", found=streams)
        self.streams, self.learns_labels = list(streams), learns_labels
        self.strength, self.temperature = float(strength), float(temperature)
        self.needs = frozenset({"whole weights"} if learns_labels else {"whole weights", "one stream each"})

    def attach(self, run: RunContext) -> None:
        """Finds the streams; see `Method.attach`."""
        self._run = run
        self._reference: nn.Module | None = None
        self._ids = [run.stream_id(name, f"{self.name}(streams={self.streams!r})") for name in self.streams]

    def prepare(self, model: nn.Module) -> None:
        """Copies the model, unless a checkpoint has the copy; see `Method.prepare`."""
        if self._reference is None and not self._has_adapters:
            self._reference = frozen_copy(self._run.passes.model)

    @property
    def _has_adapters(self) -> bool:
        return hasattr(self._run.passes.model, "disable_adapter")

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray | None:
        """Leaves out the streams' own losses; see `Method.factors`."""
        if self.learns_labels:
            return None
        factors = np.ones(len(items))
        factors[self._ids] = 0.0
        return factors

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns the mean divergence over the items of the step, this rank's part; see `Method.term`."""
        is_held = torch.from_numpy(np.isin(trained.micro.stream_ids, self._ids))
        if not is_held.any():
            return None
        divergences = self._divergences(trained)
        held = divergences * is_held.to(divergences)
        num_items = int(self._run.passes.items_by_stream.sum())
        return self._run.mean_over_step(self.strength * held, trained, num_items)

    def _divergences(self, trained: ForwardResult) -> Tensor:
        """Returns `[num_samples]`: the sum over the items of each sample."""
        now, before = (self._logits(output, trained) for output in (trained.output, self._before(trained)))
        by_vector = softened_divergence(before, now, self.temperature) * self.temperature**2
        if by_vector.dim() == 1:
            return by_vector
        is_label = labelled(now, trained, self._run.passes)
        if is_label is not None:
            return (by_vector[:, : is_label.shape[1]] * is_label.to(by_vector)).sum(dim=1)
        return by_vector.flatten(1).mean(dim=1) * trained.items.to(by_vector)  # of models that choose the positions

    def _logits(self, output: Any, trained: ForwardResult) -> Tensor:
        return logits_of(output, len(trained.micro.stream_ids), self.name)

    @torch.no_grad()
    def _before(self, trained: ForwardResult) -> Any:
        """Runs the reference on a micro-batch."""
        passes = self._run.passes
        inputs = passes.prepare_inputs(trained.micro.inputs)
        if self._reference is not None:
            return self._reference(**inputs)
        model: Any = passes.model
        with undisturbed(model, self._run.device), model.disable_adapter():
            return model(**inputs)

    def save(self, folder: Path) -> None:
        """Writes the copy of the model; see `Method.save`."""
        if self._reference is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_model(self._reference, str(folder / _FILE))

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads it; see `Method.load`."""
        if (folder / _FILE).is_file():
            reference = frozen_copy(self._run.passes.model)
            load_model(reference, folder / _FILE)
            self._reference = reference

    def release(self) -> None:
        """Releases the copy; see `Method.release`."""
        self._reference = None
