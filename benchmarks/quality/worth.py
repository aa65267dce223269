"""Do `mixer value` and first-order alignments say what a source is worth, and what do forks of one parent gain?

`python -m benchmarks worth` trains eight runs of the scenario `junk` (three sources, random bytes, garbled English; a
perceptron over a window; uniform mixing) with a checkpoint in the middle, on a seed each, and goes on from there.

Forks: without the random bytes to the end, and with a weight moved by a hundredth, which shows the noise. The change of
the mean loss of the three targets, as a mean over seeds with its spread: between fork and its own parent, and between
the fork of one seed and the parent of another.

Worth, for the first seed: `source_values` at the checkpoint with nine repeats. Three in turn give a change and an
interval, and the other six the truth: what that source does to that target, the mean over rows. The first-order
prediction of the same is from alignments that are measured after every second step of the parent: the learning rates of
the steps times the source's share, times its alignment less that of the others. Coverage is the share of intervals of
95 % with the truth in them, slope that of the truth over the prediction, both through 0. Sign errors are among clear
truths, those above twice their standard error; told are verdicts that are not "cannot tell", wrong those among them
with the other sign than a clear truth.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers.utils import logging

from benchmarks.common import new_parser, show, write_json
from benchmarks.quality.runs import new_trainer
from benchmarks.quality.scenarios import Scenario
from mixer import Fixed, MixingTrainer
from mixer.measurements import Alignment, TargetStatistics
from mixer.policies.contract import Decision, Mixture, Observation
from mixer.tools.analysis.fit.surrogate import rank_correlation
from mixer.tools.analysis.value import source_values
from mixer.utils.arrays import FloatArray
from mixer.utils.statistics import paired_bound

_SEEDS, _JUDGED_SEEDS, _REPEATS, _AT_ONCE = 8, 1, 9, 3
_STEPS = 24  # of a fork that measures worth


class _Measuring(Fixed):
    """Constant shares, with the alignments that adaptive policies go by kept in a list."""

    is_static = False
    needs = (Alignment(interval_steps=2),)

    def start(self, mixture: Mixture) -> Decision:
        """Begins a list; see `Policy.start`."""
        self.kept: list[tuple[int, TargetStatistics]] = []
        return super().start(mixture)

    def update(self, observation: Observation) -> Decision:
        """Keeps a measurement; see `Policy.update`."""
        if (statistics := observation[Alignment]) is not None:
            self.kept.append((observation.step, statistics))
        return super().update(observation)


def _build(scenario: Scenario, seed: int, mixing: Fixed, folder: Path, **options: Any) -> MixingTrainer:
    parts, objective = scenario.read(None), scenario.objective
    test, development = ({name: parts[name][part] for name in objective.names} for part in ("test", "validation"))
    return new_trainer(
        scenario,
        scenario.new_model(seed),
        replace(scenario.arguments(str(folder), seed, False), **options),
        parts,
        mixing,
        eval_dataset=test,
        objective=replace(objective, development_sets=development),
    )


def _last(trainer: MixingTrainer) -> float:
    return float(trainer.ledger.evaluations().groupby("stream")["loss"].last().mean())


def _of_seed(scenario: Scenario, seed: int, steps: int, repeats: int) -> dict[str, Any]:
    """Trains a run, its forks, and measures what its sources are worth if there are repeats."""
    half, equal = scenario.num_steps // 2, dict.fromkeys(scenario.streams, 1.0)
    ends = {"eval_strategy": "steps", "eval_steps": scenario.num_steps}
    with tempfile.TemporaryDirectory() as root:
        parent = Path(root) / "parent"
        mixing = _Measuring(equal) if repeats else Fixed(equal)
        trainer = _build(scenario, seed, mixing, parent, save_strategy="steps", save_steps=half, **ends)
        trainer.train()
        found: dict[str, Any] = {"parent": _last(trainer)}
        for name, weight in (("without", 0.0), ("null", 1.01)):
            fork = _build(scenario, seed, Fixed({**equal, "junk": weight}), Path(root) / name, **ends)
            fork.fork(parent, half)
            found[name] = _last(fork)
        if repeats:
            assert isinstance(mixing, _Measuring)
            values = source_values(partial(_build, scenario, seed), parent, half, steps, repeats)
            found["changes"] = values["changes"].tolist()
            rates = trainer.ledger.clock().set_index("step")["learning_rate"]
            predicted = _predicted(mixing.kept, rates, half, steps, len(scenario.streams))
            found["predicted"] = [part.tolist() for part in predicted]
    return found


def _predicted(
    kept: Sequence[tuple[int, TargetStatistics]], rates: "pd.Series[float]", at: int, steps: int, num_streams: int
) -> tuple[FloatArray, FloatArray]:
    """Predicts the changes of `source_values` from alignments, with standard errors; `[num_streams, num_targets]`."""
    own = [one for step, one in kept if at <= step <= at + steps]
    mean = np.mean([one.alignment for one in own], axis=0).T
    variance = np.sum([one.error**2 for one in own], axis=0).T / len(own) ** 2
    scale = rates.loc[at + 1 : at + steps].sum() / num_streams
    others = (mean.sum(axis=0) - mean) / (num_streams - 1)
    errors = variance + (variance.sum(axis=0) - variance) / (num_streams - 1) ** 2
    return -scale * (mean - others), scale * np.sqrt(errors)


def _judged(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compares both ways with the truth, for one seed."""
    rows = []
    changes = np.array(found["changes"])  # [num_pairs, num_repeats]
    for start in range(0, changes.shape[1], _AT_ONCE):
        chosen = np.arange(start, start + _AT_ONCE)
        rest = np.delete(changes, chosen, axis=1)
        truths, errors = rest.mean(axis=1), rest.std(axis=1, ddof=1) / np.sqrt(rest.shape[1])
        for pair, (truth, error) in enumerate(zip(truths, errors, strict=True)):
            own = changes[pair, chosen]
            ways = {"short forks": (own.mean(), paired_bound(own.tolist()))}
            if not start:
                prediction, spread = (np.ravel(found["predicted"][part])[pair] for part in (0, 1))
                ways["first order"] = (prediction, 1.96 * spread)
            for way, (change, half) in ways.items():
                row = {"way": way, "change": float(change), "half": float(half)}
                rows.append({**row, "truth": float(truth), "error": float(error)})
    return rows


def _summed_up(rows: pd.DataFrame) -> list[str]:
    change, half, truth = (rows[name].to_numpy() for name in ("change", "half", "truth"))
    is_clear, is_told = np.abs(truth) > 2.0 * rows["error"].to_numpy(), np.abs(change) > half
    is_other = np.sign(change) != np.sign(truth)
    return [
        str(len(rows)),
        f"{rank_correlation(change, truth):.2f}",
        f"{truth @ change / (change @ change):.2f}",
        f"{is_other[is_clear].mean():.0%} of {is_clear.sum()}",
        f"{(np.abs(change - truth) <= half).mean():.0%}",
        f"{is_told.sum()}",
        f"{(is_told & is_clear & is_other).sum()}",
    ]


def _spreads(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    parents, without, null = (np.array([one[name] for one in found]) for name in ("parent", "without", "null"))
    unpaired = (without[:, None] - parents)[~np.eye(len(found), dtype=bool)]
    cases = {
        "fork less its own parent": without - parents,
        "fork of one seed less the parent of another": unpaired,
        "null fork less its own parent": null - parents,
    }
    variance = (without - parents).var(ddof=1)
    return [
        [
            *(name, f"{own.mean():+.4f}", f"{own.std(ddof=1):.5f}"),
            f"{own.var(ddof=1) / variance:.2f}",
        ]
        for name, own in cases.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    options = new_parser(__doc__ or "").parse_args(argv)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    scenario = Scenario("junk", is_quick=options.quick)
    seeds, judged, steps, repeats = (2, 1, 2, 6) if options.quick else (_SEEDS, _JUDGED_SEEDS, _STEPS, _REPEATS)
    found = []
    for seed in range(1, seeds + 1):
        found.append(_of_seed(scenario, seed, steps, repeats * (seed <= judged)))
        print(f"seed {seed} of {seeds}", file=sys.stderr, flush=True)
        write_json(options.json, {"seeds": found})
    columns = ["change of the mean loss without junk", "mean", "spread", "variance, relative"]
    show(f"{seeds} seeds", columns, _spreads(found))
    rows = pd.DataFrame([row for one in found if "changes" in one for row in _judged(one)])
    columns = ["worth by", "pairs", "rank corr.", "slope", "sign errors", "coverage", "told", "wrong"]
    show(f"{judged} seeds", columns, [[str(way), *_summed_up(own)] for way, own in rows.groupby("way")])


if __name__ == "__main__":
    main()
