"""What a policy or a schedule may ask a run to measure: one file a measurement, with the type of its result."""

from mixer.measurements.alignment import Alignment as Alignment
from mixer.measurements.alignment import TargetStatistics as TargetStatistics
from mixer.measurements.alignment import Worth as Worth
from mixer.measurements.evaluation_loss import EvaluationLoss as EvaluationLoss
from mixer.measurements.gradient_noise import GradientNoise as GradientNoise
from mixer.measurements.gradient_noise import Noise as Noise
from mixer.measurements.gradient_norm import GradientNorm as GradientNorm
from mixer.measurements.gradients import Gradients as Gradients
from mixer.measurements.gradients import GradientStatistics as GradientStatistics
from mixer.measurements.learning_rate import LearningRate as LearningRate
from mixer.measurements.learning_rate import Rates as Rates
from mixer.measurements.loss import Loss as Loss
from mixer.measurements.mean_loss import MeanLoss as MeanLoss
from mixer.measurements.measurement import ByStream as ByStream
from mixer.measurements.measurement import Kind as Kind
from mixer.measurements.measurement import Measurement as Measurement
from mixer.measurements.measurement import Needs as Needs
from mixer.measurements.measurement import Observed as Observed
from mixer.measurements.measurement import Results as Results
from mixer.measurements.measurement import asked as asked
from mixer.measurements.measurement import at_interval as at_interval
from mixer.measurements.measurement import check_requests as check_requests
from mixer.measurements.measurement import names_of as names_of
from mixer.measurements.measurement import required as required

BUILT_IN = tuple(kind for kind in tuple(vars().values()) if isinstance(kind, type) and issubclass(kind, Measurement))
