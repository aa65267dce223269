"""Finding: streams with conflicting gradients."""

from statistics import NormalDist

import numpy as np

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run

# A mean cosine below this counts from so many measurements on, if noise would give it for any pair in less than one run
# of a thousand.
_GREATEST_COSINE, _FEWEST_MEASUREMENTS, _CHANCE = -0.05, 8, 1e-3


def in_conflict(run: Run) -> Finding | None:
    """Finds pairs of streams with a negative mean cosine, beyond its noise."""
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
    messages = {
        f"{first} {second}": f"{cosines.names[first]} and {cosines.names[second]}, mean cosine "
        f"{cosines.mean[first, second]:.2f} over {cosines.counts[first, second]:,} measurements"
        for first, second in found
    }
    finding = about_streams("in conflict", run.name, messages, "Gradients pull against each other")
    if finding is None:
        return None
    streams = dict.fromkeys(cosines.names[place] for pair in found for place in pair)
    return Finding(finding.kind, finding.run, tuple(streams), finding.text)
