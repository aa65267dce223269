"""The best fixed mixture by a regression on recorded runs."""

from mixer.analysis.fit.constraints import Constraints
from mixer.analysis.fit.fitted import FittedMixture
from mixer.analysis.fit.mixture import fit_mixture

__all__ = ["Constraints", "FittedMixture", "fit_mixture"]
