"""Streams that were gone through too often."""

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run

# Up to four passes repeated text is worth nearly as much as new text (Muennighoff et al. 2023, arXiv:2305.16264).
_LEAST_PASSES = 4.0
# So many times the mixture's own epochs: who trains for ten epochs means to repeat everything.
_LEAST_MULTIPLE = 3.0
_ROUNDING = 0.01


def over_repeated(run: Run) -> Finding | None:
    """Finds streams with more passes than their cap, or without a cap far more than the mixture has epochs.

    Args:
        run: The run.

    Returns:
        The finding, or `None`; replay buffers are there to be repeated.
    """
    epochs = float(run.clock["epoch"].iloc[-1])
    passes = {name: float(rows["passes"].iloc[-1]) for name, rows in run.streams.items() if name not in run.buffers}
    told = {}
    for name, number in sorted(passes.items(), key=lambda one: -one[1]):
        cap = run.caps.get(name)
        if cap is not None and number > cap + _ROUNDING:
            told[name] = f"{name} {number:.1f} times, beyond its cap of {cap:g}"
        elif cap is None and number > max(_LEAST_PASSES, _LEAST_MULTIPLE * epochs):
            told[name] = f"{name} {number:.1f} times without a cap, in {epochs:.1f} epochs of the mixture"
    return about_streams("over-repeated", run.name, told, "Gone through again and again")
