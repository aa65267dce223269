"""What a policy or a schedule may ask a run to measure: one file a measurement, with the type of its result."""

from mixer.measurements.alignment import Alignment as Alignment, TargetStatistics as TargetStatistics, Worth as Worth
from mixer.measurements.evaluation_loss import EvaluationLoss as EvaluationLoss
from mixer.measurements.gradient_noise import GradientNoise as GradientNoise, Noise as Noise
from mixer.measurements.gradient_norm import GradientNorm as GradientNorm
from mixer.measurements.gradients import Gradients as Gradients, GradientStatistics as GradientStatistics
from mixer.measurements.learning_rate import LearningRate as LearningRate, Rates as Rates
from mixer.measurements.loss import Loss as Loss, MeanLoss as MeanLoss
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
    names_of as names_of,
    required as required,
    with_shown as with_shown,
)

BUILT_IN = tuple(kind for kind in tuple(vars().values()) if isinstance(kind, type) and issubclass(kind, Measurement))
