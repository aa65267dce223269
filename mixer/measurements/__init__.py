"""What a policy or a schedule may ask a run to measure: one file a measurement, with the type of its result."""

import re

from mixer.measurements.alignment import Alignment as Alignment, TargetStatistics as TargetStatistics, Worth as Worth
from mixer.measurements.evaluation_loss import EvaluationLoss as EvaluationLoss
from mixer.measurements.evaluation_set_loss import EvaluationSetLoss as EvaluationSetLoss
from mixer.measurements.gradient_norm import GradientNorm as GradientNorm
from mixer.measurements.gradients import (
    GradientNoise as GradientNoise,
    Gradients as Gradients,
    GradientStatistics as GradientStatistics,
    Noise as Noise,
    probe_requests as probe_requests,
)
from mixer.measurements.learning_rate import LearningRate as LearningRate, Rates as Rates
from mixer.measurements.loss import Loss as Loss, MeanLoss as MeanLoss, reported_losses as reported_losses
from mixer.measurements.measurement import (
    ByStream as ByStream,
    Kind as Kind,
    Measurement as Measurement,
    Needs as Needs,
    Observed as Observed,
    Results as Results,
    asked as asked,
    at_interval as at_interval,
    check_requests as check_requests,
    evaluated_sets as evaluated_sets,
    names_of as names_of,
    required as required,
    with_shown as with_shown,
)
from mixer.measurements.rewards import Rewards as Rewards, RewardStatistics as RewardStatistics

# The measurements by the names that keywords have: `gradient_norm` for `GradientNorm`.
BY_NAME: dict[str, Kind] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower(): kind
    for name, kind in tuple(vars().items())
    if isinstance(kind, type) and issubclass(kind, Measurement) and kind not in (Measurement, ByStream)
}
