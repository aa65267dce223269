"""Streams whose gradients pull against each other."""

from statistics import NormalDist

import numpy as np

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run

# A mean cosine below this is worth a word, if so many measurements say so and noise alone would hardly do it: in less
# than one run of a thousand, however many pairs there are.
_GREATEST_COSINE, _FEWEST_MEASUREMENTS, _CHANCE = -0.05, 8, 1e-3


def in_conflict(run: Run) -> Finding | None:
    """Finds pairs of streams whose cosine is negative throughout, beyond its noise.

    Args:
        run: The run.

    Returns:
        The finding, or `None`.
    """
    cosines = run.cosines
    if cosines is None:
        return None
    pairs = np.triu(cosines.counts, 1) >= _FEWEST_MEASUREMENTS
    if not pairs.any():
        return None
    deviations = NormalDist().inv_cdf(1.0 - _CHANCE / int(pairs.sum()))
    with np.errstate(invalid="ignore"):  # a pair that was not measured often enough has no error
        bad = pairs & (cosines.mean < _GREATEST_COSINE) & (cosines.mean + deviations * cosines.error < 0.0)
    found = sorted(zip(*(places.tolist() for places in np.nonzero(bad)), strict=True), key=lambda at: cosines.mean[at])
    texts = {
        (first, second): f"{cosines.names[first]} and {cosines.names[second]}, mean cosine "
        f"{cosines.mean[first, second]:.2f} over {cosines.counts[first, second]:,} measurements"
        for first, second in found
    }
    told = {str(pair): text for pair, text in texts.items()}
    finding = about_streams("in conflict", run.name, told, "Gradients pull against each other")
    if finding is None:
        return None
    streams = dict.fromkeys(cosines.names[place] for pair in found for place in pair)
    return Finding(finding.kind, finding.run, tuple(streams), finding.text)
