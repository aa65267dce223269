"""The best fixed mixture of recorded runs, by regression."""

from mixer.analysis.fit.fitted import FittedMixture
from mixer.analysis.fit.mixture import fit_mixture

__all__ = ["FittedMixture", "fit_mixture"]
