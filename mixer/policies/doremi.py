"""DoReMi: more weight to streams with a large excess loss over a reference model."""

from collections.abc import Mapping

import numpy as np

from mixer.measurements import ExcessLoss, Loss, Needs
from mixer.policies.contract import Decision, Mixture, Observation, Unit, in_order
from mixer.policies.group_dro import GroupDRO
from mixer.policies.shared.decisions import ActsOn
from mixer.policies.shared.named_losses import check_losses
from mixer.utils.arrays import FloatArray


class DoReMi(GroupDRO):
    """Weights streams by their excess loss over a reference model: the proxy run of DoReMi.

    Xie et al. 2023, "DoReMi: Optimizing Data Mixtures Speeds Up Language Model Pretraining", arXiv:2305.10429,
    Algorithm 1: with `λ_k` the mean over items of `max(ℓ − ℓ_ref, 0)`, after each step `α_k ← α_k exp(η λ_k)`,
    normalised, then `α ← (1 − c) α + c/K`, from `α = 1/K`. The result is the average of `α` over all steps,
    `averaged_weights`: the mixture of a *second*, usually larger run. The notes of `GroupDRO` apply here too.

    The reference is the trainer's reference model, with losses on the same items, or `reference_losses`, one per stream
    and free of cost: then `λ_k = max(L_k − L_ref,k, 0)`. That is at most the former (the mean of clipped values is at
    least the clipped mean) and treats the reference's loss as constant. Record it on training data after the reference
    run.

    With the paper's `η` of 1 users report weights of nearly a single stream; 0.1 is milder.

    Args:
        step_size: `η`, per unit of loss; 1 in the paper, 0.1 is advised.
        smoothing: `c` in [0, 1].
        reference_losses: Mean loss per item of the reference model by the name of the stream; `None` uses the trainer's
            reference model.
        acts_on: Whether `α` multiplies the losses of the proxy (the paper's form), or is the sampling mixture.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If a value is outside its range; at the start of the run if the losses do not fit the streams.
    """

    remembered = ("_averaged", "_num_steps")

    needs = Needs((ExcessLoss(),))
    compares_losses = False  # excess losses are made to be compared

    def __init__(
        self,
        step_size: float = 1.0,
        smoothing: float = 1e-3,
        reference_losses: Mapping[str, float] | None = None,
        acts_on: ActsOn = "loss",
        *,
        unit: Unit = "samples",
    ):
        super().__init__(step_size, smoothing, acts_on, unit=unit)
        self.reference_losses = reference_losses
        if reference_losses is not None:
            check_losses("reference_losses", reference_losses)
            self.needs = (Loss(),)

    @property
    def averaged_weights(self) -> dict[str, float]:
        """The result so far: the average of `α` over the steps, by the name of the stream.

        Raises:
            ValueError: If no run has started.
        """
        if not hasattr(self, "_names"):
            raise ValueError("DoReMi has no averaged_weights before a run; train with mixing=DoReMi(...) first.")
        return dict(zip(self._names, self._averaged.tolist(), strict=True))

    def start(self, mixture: Mixture) -> Decision:
        """Discards all losses and starts with even `α`; see `Policy.start`."""
        self._names = mixture.names
        self._references: FloatArray | None = None
        if self.reference_losses is not None:
            self._references = np.array(in_order(self.reference_losses, mixture.names, "DoReMi: reference_losses"))
        decision = super().start(mixture)
        self._averaged, self._num_steps = self._alpha.weights, 0
        return decision

    def update(self, observation: Observation) -> Decision:
        """Updates `α` by the new excess losses, and its average; see `Policy.update`."""
        decision = super().update(observation)
        self._num_steps += 1
        self._averaged = self._averaged + (self._alpha.weights - self._averaged) / self._num_steps
        return decision

    def _losses(self, observation: Observation) -> FloatArray:
        if self._references is None:
            return observation.by_stream(ExcessLoss)
        with np.errstate(over="ignore"):
            return np.maximum(observation.by_stream(Loss) - self._references, 0.0)
