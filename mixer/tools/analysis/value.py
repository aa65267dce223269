"""What each source is worth for each evaluation set, by short forks of a run that leave one source out."""

import math
import shutil
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import logging

from mixer.checkpoint.choosing import checkpoint_at
from mixer.checkpoint.lock import FolderLock
from mixer.ledger.folder import open_ledger, read_description
from mixer.mixture.cursors import ShuffledOrder
from mixer.policies import Fixed
from mixer.tools.report.values import write_values
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.errors import require
from mixer.utils.quiet import without_warnings
from mixer.utils.ranges import check_count
from mixer.utils.statistics import over_seeds, paired_bound
from mixer.utils.text import mixing_unit

logger = logging.get_logger(__name__)

_SHARE, _LEAST_STEPS = 0.1, 10  # of the run, for each fork

NewTrainer = Callable[[Fixed, Path], MixingTrainer]


def source_values(
    new_trainer: NewTrainer, run: str | Path, at: int, steps: int | None = None, repeats: int = 3
) -> pd.DataFrame:
    """Measures what each source is worth at a step of a run, for each evaluation set.

    From the checkpoint of that step some steps are trained on the mixture of that step, and without one source after
    the other: its samples go to the others, in proportion. The difference of the losses is what the source did *in the
    place of the others*. All is repeated on later rows of the streams, so the interval tells how much hangs on
    which rows came. It does not tell of other seeds of the model.

    Args:
        new_trainer: Builds the trainer as it was built for the run, with another `mixing` and `output_dir`.
        run: Output folder of the run.
        at: A step with a checkpoint.
        steps: Steps of each fork; `None` for a tenth of the run, at least 10.
        repeats: Number of repeats, at least 2.

    Returns:
        A row for each source and evaluation set: source, target, samples and tokens (of the source in a fork), change
        (of the loss by them, below 0 if they lower it), low and high (95 % interval), by_thousand_samples and
        by_million_tokens (the change in proportion; NaN where tokens are not known), verdict (`"helps"`, `"harms"` or
        `"cannot tell"`), changes (that of each repeat). Of several ranks only the first has rows.
        The run's folder keeps them for its report, unless the run still goes on there.

    Raises:
        ValueError: If there is no such checkpoint, the mixture has one source, a number is out of range, or a fork has
            no evaluation.
    """
    path = Path(run)
    check_count("repeats", repeats, 2, "the interval is that of repeats")
    checkpoint_at(path, at)
    if steps is None:
        steps = max(_LEAST_STEPS, round(_SHARE * int(open_ledger(path).clock()["step"].max())))
    check_count("steps", steps, 1, "a fork trains so many")
    weights, unit = mixture_at(path, at)
    sources = [name for name, weight in weights.items() if weight > 0.0]
    without = {"": weights, **{name: {**weights, name: 0.0} for name in sources}}
    require(len(without) > 2, "mixing", f"of several sources at step {at}", weights)
    losses: list[dict[str, Any]] = [{} for _ in range(repeats)]
    amounts: list[pd.DataFrame] = []
    for repeat, (name, own) in product(range(repeats), without.items()):
        with without_warnings(is_quiet=bool(amounts)):  # all forks warn alike
            trainer = new_trainer(Fixed(own, unit=unit), path.resolve().with_name(f"{path.resolve().name}-value-{at}"))
            losses[repeat][name], amount = _forked(trainer, path, at, steps, repeat)
        amounts += [amount] * (not name)
    values = _table(losses, pd.concat(amounts).groupby(level=0, sort=False).mean())
    if len(values):
        _keep(path, at, values)
    return values


def _keep(run: Path, at: int, values: pd.DataFrame) -> None:
    """Leaves what was measured in the folder of the run, while no run writes there."""
    lock = FolderLock(run)
    try:
        lock.acquire()
        write_values(run, at, values)
    except (ValueError, OSError) as error:
        logger.warning("What was measured is not kept for the report of %s: %s", run, error)
    finally:
        lock.release()


def mixture_at(run: Path, step: int) -> tuple[dict[str, float], Any]:
    """Reads the weights of a run at a step, in the unit of its policy.

    Args:
        run: Its output folder.
        step: The step.

    Returns:
        Weights by stream, 0 for a stream that was absent, and the unit.
    """
    columns = ["step", "stream", "policy_weight", "active"]
    rows = open_ledger(run).read("streams", columns).to_pandas()
    rows = rows[rows["step"] <= step]
    rows = rows[rows["step"] == rows["step"].max()]
    weights = rows["policy_weight"].where(rows["active"], 0.0)
    return dict(zip(rows["stream"], weights.tolist(), strict=True)), mixing_unit(read_description(run))


class _Part(TrainerCallback):
    """Begins a fork at later rows of the streams, and ends it with an evaluation.

    Args:
        trainer: The trainer.
        end: The last step.
        repeat: Number of the repeat; each takes rows after those of the one before.
        steps: Steps of a fork.
    """

    def __init__(self, trainer: MixingTrainer, end: int, repeat: int, steps: int):
        self._trainer, self._end, self._repeat, self._steps = trainer, end, repeat, steps

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Passes over the rows of earlier repeats, where that moves no end of a stream."""
        mixing = self._trainer.mixing
        for number, cursor in enumerate(mixing.planner.cursors):
            if isinstance(cursor, ShuffledOrder) and mixing.planner.streams[number].end is None:
                mixing.planner.positions[number] += self._repeat * self._steps * mixing.clock.batch_size

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the fork."""
        if state.global_step >= min(self._end, state.max_steps):
            control.should_evaluate = control.should_training_stop = True


def _forked(
    trainer: MixingTrainer, run: Path, at: int, steps: int, repeat: int
) -> tuple["pd.Series[float]", pd.DataFrame]:
    """Trains a fork, and gives its losses by evaluation set, and samples and tokens by stream; on rank 0 alone."""
    has_names = isinstance(trainer.eval_dataset, Mapping) and len(trainer.eval_dataset) > 0
    require(has_names, "eval_dataset", "evaluation sets by name", trainer.eval_dataset)
    for shown in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(shown)
    trainer.add_callback(_Part(trainer, at + steps, repeat, steps))
    trainer.fork(run, at)
    trainer.accelerator.free_memory()
    if not trainer.is_world_process_zero():  # others may not see all of what it has written
        return pd.Series(dtype=float), pd.DataFrame(columns=["count", "tokens"], dtype=float)
    evaluations, rows = trainer.ledger.evaluations(), trainer.ledger.to_pandas()
    evaluations = evaluations[evaluations["step"] == rows["step"].max()]
    amounts = rows[rows["step"] > at].groupby("stream", sort=False)[["count", "tokens"]].sum()
    shutil.rmtree(str(trainer.args.output_dir))
    return evaluations.groupby("stream", sort=False)["loss"].last(), amounts


def _table(losses: list[dict[str, "pd.Series[float]"]], amounts: pd.DataFrame) -> pd.DataFrame:
    """Lays out the changes by source and evaluation set.

    Args:
        losses: For each repeat, the losses by the name of the source that was left out; `""` for none.
        amounts: Samples (`count`) and `tokens` by stream.
    """
    rows = []
    for source in list(losses[0])[1:]:
        for target in losses[0][""].index:
            samples, tokens = (float(amounts[column][source]) for column in ("count", "tokens"))
            changes = [float(repeat[""][target] - repeat[source][target]) for repeat in losses]
            change, half = over_seeds(changes).mean, paired_bound(changes)
            row: dict[str, Any] = {"source": source, "target": target, "samples": samples, "tokens": tokens}
            row |= {"change": change, "low": change - half, "high": change + half}
            row["by_thousand_samples"] = change / samples * 1e3 if samples else math.nan
            row["by_million_tokens"] = change / tokens * 1e6 if tokens else math.nan
            rows.append({**row, "verdict": verdict(change - half, change + half), "changes": changes})
    return pd.DataFrame(rows)


def verdict(low: float, high: float) -> str:
    """Says in words what an interval of a change of a loss shows."""
    if high < 0.0:
        return "helps"
    return "harms" if low > 0.0 else "cannot tell"
