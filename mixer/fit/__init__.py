"""The best fixed mixture of recorded runs, by regression."""

from mixer.fit.fitted import FittedMixture
from mixer.fit.mixture import fit_mixture

__all__ = ["FittedMixture", "fit_mixture"]
