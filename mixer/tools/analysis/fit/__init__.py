"""The best fixed mixture by a regression on recorded runs."""

from mixer.tools.analysis.fit.constraints import Constraints
from mixer.tools.analysis.fit.fitted import FittedMixture
from mixer.tools.analysis.fit.mixture import fit_mixture

__all__ = ["Constraints", "FittedMixture", "fit_mixture"]
