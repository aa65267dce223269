"""The best fixed mixture by a regression on recorded runs."""

from mixer.analysis.fit.fitted import FittedMixture
from mixer.analysis.fit.mixture import fit_mixture

__all__ = ["FittedMixture", "fit_mixture"]
