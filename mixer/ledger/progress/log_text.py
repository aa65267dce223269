"""Log entries as text: a line for each, and a table of streams at evaluations."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

from mixer.ledger.progress.callback import ProgressLine
from mixer.mixture.controller import Mixing
from mixer.utils.text import clock_text, duration, duration_text, printable, short_number, shortened

LoggingStyle = Literal["line", "dict"]

_PREFIX = "eval_"
# Without evaluations, the table follows every tenth line.
_LINES_PER_TABLE = 10
_MOST_ROWS, _MOST_METRICS, _LONGEST_NAME = 12, 4, 32
# Entries that the line says otherwise, or that only trackers and the ledger need.
_SILENT = frozenset(
    {"loss", "learning_rate", "epoch", "grad_norm", "total_flos", "num_input_tokens_seen", "train_coverage"}
    | {"batch_size", "learning_rate_factor", "gradient_noise_scale"}
)
_TIMES = ("runtime", "_per_second", "model_preparation_time", "jit_compilation_time")


class LogText:
    """Makes text of log entries; the entries themselves stay as they are.

    Args:
        mixing: Returns the controller of the current run.
        line: Knows the speed and the remaining time.
        sets: Returns the names of the evaluation sets.
    """

    def __init__(self, mixing: Callable[[], Mixing], line: ProgressLine, sets: Callable[[], Collection[str]]):
        self._mixing, self._line, self._sets = mixing, line, sets
        self._last: Mapping[str, Any] = {}  # the newest entry of a step
        self._evaluated: dict[str, dict[str, float]] = {}  # results by set that no table has shown yet
        self._objective: float | None = None
        self._num_lines = 0  # since the last table

    def of(self, logs: Mapping[str, Any], state: Any) -> str:
        """Returns the text of an entry: its line and, when it is due, the table of streams.

        Args:
            logs: The entry.
            state: The trainer's state.

        Returns:
            The text; empty for one of several evaluation sets, which the table shows together.
        """
        if (name := self._set_of(logs)) is not None:
            self._evaluated[name] = _results(logs, f"{_PREFIX}{name}_")
            return ""
        if "train_runtime" in logs:
            return self._summary(logs)
        self._objective = logs.get(f"{_PREFIX}objective", self._objective)
        is_step, is_evaluation = "loss" in logs, f"{_PREFIX}loss" in logs
        if is_step:
            self._last = logs
            self._num_lines += 1
        others = [f"{_called(key)} {_shown(key, value)}" for key, value in self._others(logs).items()]
        if is_evaluation:
            others = [" ".join(["evaluation:", *others[:1]]), *others[1:]]
        text = "  ".join(
            part for part in (self._place(logs, state), *(self._step(logs) if is_step else []), *others) if part
        )
        if not (is_evaluation or self._evaluated or self._num_lines >= _LINES_PER_TABLE):
            return text
        return "\n".join([text, *self._table()])

    def _set_of(self, logs: Mapping[str, Any]) -> str | None:
        """Returns the evaluation set of an entry, the longest name that fits: one may begin with another."""
        sets = sorted(self._sets(), key=len, reverse=True)
        return next((name for name in sets if any(key.startswith(f"{_PREFIX}{name}_") for key in logs)), None)

    def _others(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries for the line that are no figures of streams, such as those of a user or of TRL."""
        names = {*self._mixing().names, "other"}
        own = {key: value for key, value in logs.items() if key.partition("/")[2] not in names}
        return _results({key: value for key, value in own.items() if not key.startswith("gradient_cosine/")}, _PREFIX)

    def _place(self, logs: Mapping[str, Any], state: Any) -> str:
        """Returns the place in the run: epoch, coverage and batch size of the entry, if it has them."""
        if not state.max_steps:  # an evaluation outside of training
            return ""
        clock = self._mixing().clock
        if clock.is_step_based:
            return f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}"
        done = {**clock.done, "epochs": logs.get("epoch", clock.epoch)}
        # Only the drop-in trainer's state has it: its epoch counts dropped samples too.
        covered = [f"coverage {state.train_coverage:.2f}"] if hasattr(state, "train_coverage") else []
        size = int(logs.get("batch_size", clock.batch_size))
        return ", ".join(
            [f"step {state.global_step}", clock_text(done, clock.budget.limits), *covered, f"batch {size:,}"]
        )

    def _step(self, logs: Mapping[str, Any]) -> list[str]:
        rate, left = self._line.samples_per_second(), self._line.remaining.seconds
        parts = [f"loss {_number(logs['loss'])}"]
        parts += [f"objective {_number(self._objective)}"] if self._objective is not None else []
        parts += [f"lr {logs['learning_rate']:.2e}"] if "learning_rate" in logs else []
        parts += [f"{short_number(round(rate) if rate >= 10 else rate)} samples/s"] if rate is not None else []
        return [*parts, f"{duration_text(left)} left"] if left is not None else parts

    def _summary(self, logs: Mapping[str, Any]) -> str:
        samples, seconds = int(self._mixing().seen.sum()), float(logs["train_runtime"])
        text = f"trained on {samples:,} samples in {duration(seconds)}, mean loss {_number(logs.get('train_loss'))}"
        if self._num_lines and len(self._mixing().names) > 1:
            text = "\n".join([text, *self._table()])
        self._last, self._evaluated, self._objective, self._num_lines = {}, {}, None, 0
        return text

    def _table(self) -> list[str]:
        """Returns the lines of the table: share, loss and samples of each stream, and the results of its set."""
        mixing, last, evaluated = self._mixing(), self._last, self._evaluated
        self._evaluated, self._num_lines = {}, 0
        counts = {name: last.get(f"count/{name}", 0) for name in mixing.names}
        total, seen = sum(counts.values()), dict(zip(mixing.names, mixing.seen.tolist(), strict=True))
        names = list(dict.fromkeys([*mixing.names, *evaluated]))
        if len(names) <= 1:
            return []
        shown = sorted(names, key=lambda name: -seen.get(name, 0))[:_MOST_ROWS]
        unit = "labels" if any(f"labels/{name}" in last for name in mixing.names) else "tokens"
        tokens = {name: last[f"{unit}/{name}"] for name in mixing.names if f"{unit}/{name}" in last}
        num_tokens = sum(tokens.values())
        columns: dict[str, dict[str, str]] = {
            f"of {unit}": {name: f"{number / num_tokens:.0%}" for name, number in tokens.items() if num_tokens},
            "of samples" if num_tokens else "share": {
                name: f"{count / total:.0%}" for name, count in counts.items() if total
            },
            **{
                figure: {name: _number(last[f"{figure}/{name}"]) for name in names if f"{figure}/{name}" in last}
                for figure in ("loss", "reward", "silent")  # the latter two of rounds of generation
            },
            "samples": {name: f"{count:,}" for name, count in seen.items() if total},
        }
        for key in _most_telling(dict.fromkeys(key for results in evaluated.values() for key in results)):
            cells = {name: _shown(key, results[key]) for name, results in evaluated.items() if key in results}
            columns[f"eval {_called(key)}"] = cells
        lines = _aligned([name for name in names if name in shown], columns)
        return [*lines, f"  and {len(names) - len(shown)} more"] if len(names) > len(shown) else lines


def _results(logs: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Returns the numbers of an entry that are worth a place on a terminal, by name without the prefix.

    TRL puts its own prefix before the metrics of a set, which does not name the set.
    """
    names = {key: key.removeprefix(prefix).removeprefix(_PREFIX) for key in logs if key not in _SILENT}
    return {name: logs[key] for key, name in names.items() if isinstance(logs[key], Real) and not name.endswith(_TIMES)}


def _most_telling(metrics: Iterable[str]) -> list[str]:
    """Returns the metrics that a table has room for: of rounds of generation the rewards, whose loss says nothing."""
    rewards = [name for name in metrics if name.startswith("reward")]
    return sorted(rewards, key=lambda name: name != "reward")[:_MOST_METRICS] or [*metrics][:_MOST_METRICS]


def _aligned(names: Sequence[str], columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    columns = {head: cells for head, cells in columns.items() if cells}
    labels = {name: shortened(printable(name), _LONGEST_NAME) for name in names}
    first = max(map(len, ["stream", *labels.values()]))
    widths = {head: max(map(len, [head, *cells.values()])) for head, cells in columns.items()}
    heads = "".join(f"  {head:>{width}}" for head, width in widths.items())
    rows = {
        name: "".join(f"  {cells.get(name, '-'):>{widths[head]}}" for head, cells in columns.items()) for name in names
    }
    return [f"  {'stream':<{first}}{heads}", *(f"  {labels[name]:<{first}}{cells}" for name, cells in rows.items())]


def _called(key: str) -> str:
    return printable(key.replace("_", " "))


def _shown(key: str, value: Any) -> str:
    """Formats the value of an entry: numbers of things, such as TRL's `num_tokens`, without places."""
    return f"{value:,.0f}" if key.startswith("num_") and isinstance(value, Real) else _number(value)


def _number(value: Any) -> str:
    """Formats a number: three places, or three digits where it is smaller than they show."""
    if not isinstance(value, Real):
        return str(value)
    number = float(value)
    if number.is_integer() and abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:,.3f}" if number == 0 or abs(number) >= 0.1 else f"{number:.3g}"
