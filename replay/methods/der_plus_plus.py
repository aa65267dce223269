"""Dark experience replay with labels."""

from mixer.mixture.plan import Plan
from mixer.policies.shared.ranges import check_range
from mixer.trainer.method import RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from replay.methods.der import DER
from replay.methods.memories import factors_of_means
from replay.second_draw import SecondDraw


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

    _way_out = "Name the one of {!r}, as in second='again', and leave others out."

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
        if self.second is None:
            self._factors = {self._memory_id: self.beta}
        else:
            self._factors = {self._memory_id: 0.0, self._find_second(run, self.second): self.beta}

    def _find_second(self, run: RunContext, name: str) -> int:
        second_id = run.stream_id(name, f"{self.name}(second={name!r})")
        draw = run.streams[second_id].dataset
        if not isinstance(draw, SecondDraw) or draw.buffer is not self._buffer:
            raise ValueError(
                f"{self.name}: second must name a second draw of {self.memory!r}, but stream {name!r} is a "
                f"{type(draw).__name__}. Add one: train_dataset={{..., {self.memory!r}: buffer, {name!r}: "
                "buffer.second_draw()}, or leave second out."
            )
        return second_id

    def factors(self, plan: Plan, items: Int64Array) -> FloatArray:
        """Takes means over new samples, and times β over those whose labels count; see `Method.factors`."""
        return factors_of_means(items, self._factors)
