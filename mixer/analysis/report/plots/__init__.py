"""The plots of the page, in their order."""

from collections.abc import Callable, Sequence

from mixer.analysis.report.plot import Plot
from mixer.analysis.report.plots.batch_size import batch_size
from mixer.analysis.report.plots.compared_losses import compared_losses
from mixer.analysis.report.plots.coverage import coverage
from mixer.analysis.report.plots.gradient_cosines import gradient_cosines
from mixer.analysis.report.plots.gradient_norms import gradient_norms
from mixer.analysis.report.plots.learning_rate import learning_rate
from mixer.analysis.report.plots.losses import losses
from mixer.analysis.report.plots.memory import memory, memory_classes
from mixer.analysis.report.plots.metrics import metrics
from mixer.analysis.report.plots.mixture import mixture
from mixer.analysis.report.plots.timings import prefetch, timings
from mixer.analysis.report.plots.whole_gradient import whole_gradient
from mixer.analysis.report.run import Run

# Each takes the runs and the greatest number of points of a line. A plot without panels is left out.
PLOTS: tuple[Callable[[Sequence[Run], int], Plot], ...] = (
    losses,
    metrics,
    compared_losses,
    mixture,
    coverage,
    memory,
    memory_classes,
    batch_size,
    learning_rate,
    whole_gradient,
    gradient_norms,
    gradient_cosines,
    timings,
    prefetch,
)
