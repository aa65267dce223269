"""The changes over a run, in one sentence."""

from mixer.analysis.report.run import Run
from mixer.ledger.evaluated_losses import mean_loss
from mixer.utils.text import first_of, listed

# Smaller moves of weights count as none.
_LEAST_MOVE = 0.005
# The range is added if it is so many times the distance from first to last.
_WIDE = 2.0


def changed(run: Run) -> str:
    """Describes the changes from the first step to the last: losses, weights, batch size and streams."""
    parts = [_losses(run), _weights(run), _batch_size(run), *_presence(run)]
    return f"{'; '.join(part for part in parts if part)}."


def _losses(run: Run) -> str:
    kept = {name: rows["loss"] for name, rows in run.evaluations.items() if len(rows) > 1}
    if kept:
        kind = "the validation loss" if len(kept) == 1 else f"the validation loss, averaged over {len(kept)} sets,"
        ends = ({name: float(losses.iloc[place]) for name, losses in kept.items()} for place in (0, -1))
        first, last = (mean_loss(losses, run.eval_weights) for losses in ends)
    else:
        losses, tenth = run.clock["loss"].dropna(), max(1, len(run.clock) // 10)
        if len(losses) < 2:
            return ""
        kind, first, last = "the training loss", losses.iloc[:tenth].mean(), losses.iloc[-tenth:].mean()
    return f"{kind} went from {first:.3f} to {last:.3f}"


def _weights(run: Run) -> str:
    column = "policy_weight" if run.is_by_tokens else "weight"
    weights = {name: rows[column] for name, rows in run.streams.items()}
    name = max(weights, key=lambda name: weights[name].max() - weights[name].min())
    one = weights[name]
    first, last, least, greatest = one.iloc[0], one.iloc[-1], one.min(), one.max()
    if greatest - least < _LEAST_MOVE:
        return "" if len(weights) == 1 else "the weights ended where they began"
    between = f" (between {least:.3f} and {greatest:.3f})" if greatest - least > _WIDE * abs(last - first) else ""
    return f"the weight of {name} moved {'most, ' if len(weights) > 1 else ''}from {first:.3f} to {last:.3f}{between}"


def _batch_size(run: Run) -> str:
    first, last = run.clock["batch_size"].iloc[0], run.clock["batch_size"].iloc[-1]
    return f"the batch size went from {first:,} to {last:,}" if first != last else f"the batch size is {last:,}"


def _presence(run: Run) -> list[str]:
    texts = []
    for word, were, are in (("joined", False, True), ("left", True, False)):
        names = [
            name
            for name, rows in run.streams.items()
            if bool(rows["active"].iloc[0]) is were and bool(rows["active"].iloc[-1]) is are
        ]
        if names:
            texts.append(f"{listed(first_of(names))} {word} the mixture")
    return texts
