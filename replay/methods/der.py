"""Dark experience replay: stored logits are regression targets for replayed samples."""

import numpy as np
from torch import Tensor, nn

from mixer.mixture.plan import Plan
from mixer.policies.shared.ranges import check_count, check_range
from mixer.trainer.method import ForwardResult, Method, RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from replay.methods.logits import Logits
from replay.methods.memories import factors_of_means, find_memory, refuse_second_draws

_LOGITS = "logits"


class DER(Method):
    """Matches the logits that were stored when samples entered the memory; their labels are not used.

    Buzzega et al. 2020, "Dark Experience for General Continual Learning", arXiv:2004.07211, equation 6: the loss is
    `E_new[ℓ(y, f(x))] + α E_memory[||z - h(x)||²]`, with h the logits, z the stored ones and, as in the authors' code,
    the mean over samples and classes of the squared differences.

    Logits are stored from the training forward pass, one float32 per class and sample. For token-level logits the
    `top_k` largest are stored at each labelled position: 8 bytes each, 256 bytes per token for 32. A sample must have
    the same labelled positions each time, so a collator must not mask at random. Loss weights of the policy apply to
    the new samples only, not to this term. Micro-batches contain one stream each.

    Args:
        memory: Name of the buffer's stream.
        alpha: `α`, 0 or more; the paper uses 0.1 to 1.
        top_k: Number of largest logits to compare; `None` for all of a sample's, or 32 of a token's.

    Raises:
        ValueError: If a value is outside its range; at construction of the trainer, if the memory is no replay buffer
            or a stream is a second draw; at the start of training, if the memory holds samples without logits; during
            training, if the model returns no logits per class or token.

    Example:
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model, args, train_dataset={"new": new, "memory": ReplayBuffer(1000)}, mixing=ReplayRatio(0.5),
        ...     methods=[DER("memory", alpha=0.5)],
        ... )
    """

    adds_term = True
    one_stream_each = True
    second: str | None = None
    _way_out = "Learn from their labels, DERPlusPlus({!r}, second=...), or leave them out."

    def __init__(self, memory: str = "memory", alpha: float = 0.5, top_k: int | None = None):
        check_range("alpha", alpha, 0.0, float("inf"), "0.1 to 1 are usual, and 0 compares no logits")
        if top_k is not None:
            check_count("top_k", top_k, 1, "32 of a vocabulary are usual")
        self.memory, self.alpha, self.top_k = memory, float(alpha), top_k

    def attach(self, run: RunContext) -> None:
        """Finds the memory and has the logits of its samples kept; see `Method.attach`."""
        self._run = run
        self._memory_id, self._buffer, feeding = find_memory(run, self.memory, self.name)
        refuse_second_draws(run, self.name, self._way_out.format(self.memory), self.second)
        self._logits = Logits(run.runs, self.top_k, self.name)
        feeding.kept.keep(_LOGITS, self._logits.to_keep)

    def prepare(self, model: nn.Module) -> None:
        """Refuses a memory whose oldest or newest place holds a sample without logits; see `Method.prepare`."""
        if len(self._buffer):
            self._buffer.payloads(np.unique([0, len(self._buffer) - 1]), _LOGITS)

    def factors(self, plan: Plan, items: Int64Array) -> FloatArray:
        """Takes the mean over new samples alone; see `Method.factors`."""
        return factors_of_means(items, {self._memory_id: 0.0})

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Gives α times the mean squared distance, this rank's part; see `Method.term`."""
        micro, run = trained.micro, self._run
        if micro.positions is None or int(micro.stream_ids[0]) != self._memory_id:
            return None
        slots = run.planner().cursors[self._memory_id].slots(micro.positions)  # type: ignore[attr-defined]  # a buffer's
        distances = self._logits.squared_distances(trained, self._buffer.payloads(slots, _LOGITS))
        counts = run.runs.items_by_stream if self._logits.are_of_tokens(trained) else trained.plan.counts
        return distances * (self.alpha * run.world_size / max(int(counts[self._memory_id]), 1))
