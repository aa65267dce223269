"""The plots of the page below its tables, in their order."""

from collections.abc import Callable, Sequence

from mixer.tools.records.run import Run
from mixer.tools.report.plot import Plot
from mixer.tools.report.plots.gradients import gradient_cosines, gradient_norms, whole_gradient
from mixer.tools.report.plots.losses import losses, metrics, terms
from mixer.tools.report.plots.mixture import coverage, memory, weights
from mixer.tools.report.plots.rewards import rewards
from mixer.tools.report.plots.steps import schedules

# Each takes the runs and the greatest number of points of a line. A plot without panels is left out.
PLOTS: tuple[Callable[[Sequence[Run], int], Plot], ...] = (
    *(losses, terms, metrics, rewards),
    *(weights, coverage, memory),
    schedules,
    *(whole_gradient, gradient_norms, gradient_cosines),
)
