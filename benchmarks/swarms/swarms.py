"""Swarms: mixtures and losses of many runs, of RegMix's models and of known laws."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.tools.analysis.fit.fit_target import FitTarget
from mixer.utils.arrays import FloatArray

LARGER = "1B"  # models of another size than those that are fitted
PILE_CC = "metric/the_pile_pile_cc_val_loss"


@dataclass(frozen=True)
class Swarm:
    """Runs to fit, and others to judge by.

    Args:
        name: Its name.
        objective: What is predicted.
        mixtures: `[num_runs, num_streams]`.
        losses: `[num_runs, num_losses]`: those of the objective.
        judged: Mixtures and objectives of other runs, by what they are.
    """

    name: str
    objective: FitTarget
    mixtures: FloatArray
    losses: FloatArray
    judged: dict[str, tuple[FloatArray, FloatArray]]

    @property
    def values(self) -> FloatArray:
        """`[num_runs]`: the objective of each run."""
        return self.objective(self.losses)


def regmix(folder: Path) -> list[Swarm]:
    """Reads RegMix's tables (Liu et al., 2407.01492): models of 1M parameters to fit, of 1M and 1B to judge by."""
    (mixtures, losses), *others = (_read(folder, *kind) for kind in (("train", "1m"), ("test", "1m"), ("test", "1B")))
    found = []
    for name, weights in (
        ("Pile-CC", {PILE_CC: 1.0}),
        ("mean of 13 losses", dict.fromkeys(losses, 1 / losses.shape[1])),
    ):
        objective = FitTarget(name, weights)
        judged = {
            size: (shares.to_numpy(), objective(own[[*weights]].to_numpy()))
            for size, (shares, own) in zip(("1M", LARGER), others, strict=True)
        }
        found.append(Swarm(f"RegMix, {name}", objective, mixtures.to_numpy(), losses[[*weights]].to_numpy(), judged))
    return found


def _read(folder: Path, kind: str, size: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    paths = [folder / "swarms" / "regmix" / f"{kind}_{what}_{size}.csv" for what in ("mixture", "pile_loss")]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise SystemExit(f"--data-dir: {missing} are missing; take another folder, or leave the option out.")
    mixtures, losses = (pd.read_csv(path, index_col="index") for path in paths)
    losses = losses.loc[mixtures.index.intersection(losses.index)].dropna()
    mixtures = mixtures.loc[losses.index]
    return mixtures.div(mixtures.sum(axis=1), axis=0), losses


def known_law(num_streams: int, num_losses: int, seed: int, num_runs: int = 1200, noise: float = 0.002) -> Swarm:
    """Makes a swarm by a law: powers of shares with returns that diminish, interactions of pairs, and noise."""
    random = np.random.default_rng(seed)
    prior = random.dirichlet(np.full(num_streams, 0.7))
    shape = (num_streams, num_losses)
    slopes = np.abs(random.standard_normal(shape)) * (random.random(shape) < 0.3)
    powers = random.uniform(0.25, 0.6, num_losses)
    pairs = 0.3 * random.standard_normal((num_streams, num_streams)) * (random.random((num_streams, num_streams)) < 0.1)
    spread = num_streams * np.exp(random.uniform(np.log(0.3), np.log(5.0), num_runs))
    mixtures = np.array([random.dirichlet(np.maximum(prior * own, 0.02)) for own in spread])
    known = np.stack([(mixtures + 1e-3) ** power @ own for power, own in zip(powers, slopes.T, strict=True)], axis=1)
    losses = 2.0 + 2.0 * np.exp(-0.6 * (known + ((mixtures @ pairs) * mixtures).sum(axis=1, keepdims=True)))
    seen = losses * (1.0 + noise * random.standard_normal(losses.shape))
    objective = FitTarget("mean", {str(number): 1.0 / num_losses for number in range(num_losses)})
    half = num_runs * 2 // 3
    judged = {"true": (mixtures[half:], objective(losses[half:]))}
    return Swarm(f"law, {num_streams} sources", objective, mixtures[:half], seen[:half], judged)
