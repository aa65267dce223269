"""Dark experience replay: stored logits are regression targets for replayed samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mixer.mixture.step_plan import StepPlan
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count, check_range
from replay.methods.logits import labelled, logits_of
from replay.methods.memories import factors_of_means, find_memory, refuse_second_draws
from replay.second_draw import SecondDraw

_LOGITS = "logits"
_FOR_TOKENS = 32


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

    needs = frozenset({"one stream each"})
    second: str | None = None
    _hint = "Learn from their labels, DERPlusPlus({!r}, second=...), or leave them out."

    def __init__(self, memory: str = "memory", alpha: float = 0.5, top_k: int | None = None):
        check_range("alpha", alpha, 0.0, float("inf"), "0.1 to 1 are usual, and 0 compares no logits")
        if top_k is not None:
            check_count("top_k", top_k, 1, "32 of a vocabulary are usual")
        self.memory, self.alpha, self.top_k = memory, float(alpha), top_k

    def attach(self, run: RunContext) -> None:
        """Finds the memory and has the logits of its samples kept; see `Method.attach`."""
        self._run = run
        self._memory_id, self._buffer, feeding = find_memory(run, self.memory, self.name)
        refuse_second_draws(run, self.name, self._hint.format(self.memory), self.second)
        feeding.kept.keep(_LOGITS, self._to_keep)

    def prepare(self, model: nn.Module) -> None:
        """Refuses a memory whose oldest or newest place holds a sample without logits; see `Method.prepare`."""
        if len(self._buffer):
            self._buffer.payloads(np.unique([0, len(self._buffer) - 1]), _LOGITS)

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray:
        """Takes the mean over new samples alone; see `Method.factors`."""
        return factors_of_means(items, {self._memory_id: 0.0})

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns α times the mean squared distance, this rank's part; see `Method.term`."""
        micro, run = trained.micro, self._run
        if micro.positions is None or int(micro.stream_ids[0]) != self._memory_id:
            return None
        slots = run.planner().others[self._memory_id].slots(micro.positions)  # type: ignore[attr-defined]  # a buffer's
        distances = self._squared_distances(trained, self._buffer.payloads(slots, _LOGITS))
        has_token_logits = labelled(self._logits(trained), trained, run.passes) is not None
        counts = run.passes.items_by_stream if has_token_logits else trained.plan.counts
        return run.mean_over_step(self.alpha * distances, trained, int(counts[self._memory_id]))

    def _to_keep(self, trained: ForwardResult) -> list[Tensor]:
        """Returns what is stored of each row of a micro-batch.

        Of token logits only the positions whose label counts are kept, so that padding does not matter; the places of
        the `top_k` largest are floats of the logits' type, exact up to 2**24.

        Args:
            trained: The micro-batch and what the model gave.

        Returns:
            `[num_classes]`, `[2, top_k]` or `[num_positions, 2, top_k]` for each row.

        Raises:
            ValueError: If the model gives no logits, or its rows are not the samples.
        """
        vectors, counts, top_k = self._vectors(trained)
        vectors = vectors.detach()
        if top_k is not None:
            largest = vectors.topk(min(top_k, vectors.shape[-1]))
            vectors = torch.stack([largest.values, largest.indices.to(vectors.dtype)], dim=-2)
        return list(vectors.unbind() if counts is None else torch.split(vectors, counts))

    def _squared_distances(self, trained: ForwardResult, kept: Sequence[NDArray[Any]]) -> Tensor:
        """Compares the logits of a micro-batch with kept ones.

        Args:
            trained: The micro-batch and what the model gave.
            kept: For each row what `_to_keep` gave.

        Returns:
            `[num_vectors]`, with a graph: of each sample or position the mean over classes of squared differences.

        Raises:
            ValueError: If something of another shape was kept.
        """
        vectors, counts, top_k = self._vectors(trained)
        own = vectors.shape[1:] if top_k is None else torch.Size([2, min(top_k, vectors.shape[-1])])
        now = [tuple(own) if counts is None else (count, *own) for count in counts or [0] * len(kept)]
        for before, shape in zip(kept, now, strict=True):
            if before.shape != shape:
                text = (
                    f"{self.name}: a sample came into the buffer with logits of shape {list(before.shape)} and "
                    f"has {list(shape)} now. A sample needs the same classes, top_k and labelled positions each time: "
                    "mask and truncate in the data set, not at random in the collator, or begin with an empty buffer."
                )
                raise InvalidValueError(text, option="logits", found=list(shape))
        join = np.stack if counts is None else np.concatenate
        stored = torch.from_numpy(join(list(kept))).to(vectors.device, vectors.dtype)
        if top_k is not None:
            stored, places = stored.unbind(dim=-2)
            vectors = vectors.gather(-1, places.long())
        return (vectors - stored).square().flatten(1).mean(dim=1)

    def _vectors(self, trained: ForwardResult) -> tuple[Tensor, list[int] | None, int | None]:
        """Returns vectors of logits with a graph, how many a row has (`None`: one), and how many of each are stored."""
        logits = self._logits(trained)
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        counts = labelled(logits, trained, self._run.passes)
        if counts is None:
            return logits, None, self.top_k
        vectors = logits[:, : counts.shape[1]][counts.to(logits.device)]
        return vectors, counts.sum(dim=1).tolist(), self.top_k or _FOR_TOKENS

    def _logits(self, trained: ForwardResult) -> Tensor:
        return logits_of(trained.output, len(trained.micro.stream_ids), self.name)


class DERPlusPlus(DER):
    """Holds the model to earlier logits of samples in memory, and to their labels too.

    Buzzega et al. 2020, "Dark Experience for General Continual Learning", arXiv:2004.07211, equation 7: to the loss of
    `DER` comes `β E_memory'[ℓ(y, f(x))]`, over a second, independent draw of the memory. That is a stream of its own,
    `buffer.second_draw()`, which has a part in the mix like the memory itself. Without one the same samples serve for
    both, at the cost of one draw: the terms are the same on average, but not independent.

    Args:
        memory: Name of the buffer's stream.
        alpha: `α`, 0 or more; the paper has 0.1 to 1.
        beta: `β`, 0 or more; the paper has 0.5 to 1.
        second: Name of the stream of the second draw; `None` takes the memory's own for the labels too.
        top_k: See `DER`.

    Raises:
        ValueError: As for `DER`; when the trainer is made if `second` is no second draw of that memory, or a stream
            that it does not name is one.

    Example:
        >>> memory = ReplayBuffer(1000)  # doctest: +SKIP
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model, args, train_dataset={"new": new, "memory": memory, "labelled": memory.second_draw()},
        ...     mixing=ReplayRatio(2 / 3), methods=[DERPlusPlus("memory", second="labelled")],
        ... )
    """

    _hint = "Name the one of {!r}, as in second='again', and leave others out."

    def __init__(
        self,
        memory: str = "memory",
        alpha: float = 0.5,
        beta: float = 0.5,
        second: str | None = None,
        top_k: int | None = None,
    ):
        super().__init__(memory, alpha, top_k)
        check_range("beta", beta, 0.0, float("inf"), "0.5 to 1 are usual, and 0 learns from no labels, as DER does")
        self.beta, self.second = float(beta), second

    def attach(self, run: RunContext) -> None:
        """Finds the second draw as well; see `Method.attach`."""
        super().attach(run)
        second = self.second
        if second is None:
            self._factors = {self._memory_id: self.beta}
            return
        second_id = run.stream_id(second, f"{self.name}(second={second!r})")
        draw = run.streams[second_id].dataset
        if not isinstance(draw, SecondDraw) or draw.buffer is not self._buffer:
            text = f"must name a second draw of {self.memory!r}, as buffer.second_draw() gives, got {second!r}."
            raise InvalidValueError.about("second", text, found=second)
        self._factors = {self._memory_id: 0.0, second_id: self.beta}

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray:
        """Takes means over new samples, and times β over those whose labels count; see `Method.factors`."""
        return factors_of_means(items, self._factors)
