"""NormTest: a batch large enough for a reliable gradient."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from mixer.measurements import GradientNoise
from mixer.schedules.base import BatchDecision, BatchObservation
from mixer.schedules.limits import check_above
from mixer.schedules.shared.measured import MeasuredSchedule


@dataclass(eq=False, repr=False)
class NormTest(MeasuredSchedule):
    """Grows while the batch's gradient is too noisy for its norm: `tr Σ / b > eta² · ||g||²`.

    It grows to the size that passes the test, `⌈tr Σ / (eta² · ||g||²)⌉`, and never shrinks: DDP-Norm (Lau et al. 2024,
    arXiv:2412.21124). The default of eta is ours: a size of 4 noise scales; the paper's depends on the model. Since a
    single large estimate has a lasting effect, a test at most doubles the size (ours; `max_growth=None` for the
    paper's), and `decay` smooths the measurements (0 for the paper's form). It tests after each measured step: on
    several ranks after every one.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        eta: Largest standard deviation of the gradient over its norm, above 0; the theory needs less than 1.
        decay: Share of the old averages that stays at each measurement, in [0, 1); 0 uses only the last one.
        interval_steps: Number of steps between measurements and tests on a single rank, where measuring is expensive;
            the size is constant in between.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: If a value is outside its range.
    """

    eta: Annotated[float, check_above, 0] = 0.5
    decay: float = 0.0
    interval_steps: int = 20
    _: KW_ONLY
    max_growth: float | None = 2.0

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Tests the last gradient; see `Schedule.update`."""
        self._take(observation[GradientNoise])
        scale = self._noise_scale()
        if observation[GradientNoise] is None or scale is None:
            return BatchDecision(observation.batch_size)
        needed = math.ceil(self.limits.clamp(scale / self.eta / self.eta))
        return BatchDecision(max(observation.batch_size, needed))
