"""Findings: time spent outside of training."""

from mixer.analysis.report.findings.finding import Finding
from mixer.analysis.report.run import Run

_GREATEST_LOADING, _GREATEST_MISSES, _GREATEST_PROBING = 0.2, 0.1, 0.1


def loading_bound(run: Run) -> Finding | None:
    """Finds that much of the time goes into loading."""
    share = _share(run, "load_seconds")
    text = f"{share:.0%} of the time of steps went into loading: more workers (dataloader_num_workers) may help."
    return Finding("loading-bound", run.name, (), text) if share > _GREATEST_LOADING else None


def unforeseen(run: Run) -> Finding | None:
    """Finds that many samples were not prefetched."""
    rows = run.timings.iloc[1:]
    hits, misses = int(rows["hits"].sum()), int(rows["misses"].sum())
    if misses <= _GREATEST_MISSES * (hits + misses):
        return None
    share = misses / (hits + misses)
    text = f"{share:.0%} of the samples were not prefetched in time: the weights changed faster than expected."
    return Finding("prefetch misses", run.name, (), text)


def probing_bound(run: Run) -> Finding | None:
    """Finds that much of the time goes into measuring gradients."""
    share = _share(run, "probe_seconds")
    text = f"{share:.0%} of the time of steps went into measuring gradients: a longer interval would cost less."
    return Finding("costly measuring", run.name, (), text) if share > _GREATEST_PROBING else None


def _share(run: Run, column: str) -> float:
    """Gives a column's share of the time, without the first step, which includes warm-up."""
    sums = run.timings.iloc[1:][["load_seconds", "train_seconds", "probe_seconds"]].sum()
    return float(sums[column] / sums.sum()) if sums.sum() > 0 else 0.0
