"""Whether every sample is kept with the same probability: chi-square tests of both reservoirs, and of a biased one.

With `C` slots and `N` samples each is kept with probability `p = C/N`. Over `S` seeds let `O_n` be how often sample `n`
was; a buffer keeps exactly `C`, so that `(N - 1)/N · Σ_n (O_n - S p)² / (S p (1 - p))` is chi-square with `N - 1`
degrees of freedom. *0..n-1* is the reservoir that draws the slot of sample `n` (counted from 0) from `0..n-1`, as three
public libraries do: the test has to find it.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.common import show
from mixer.utils.arrays import Int64Array
from replay import ReplayBuffer
from replay.selection import Offers

BIASED = "0..n-1"
_STEP_SIZE = 32


def kept_by_buffer(selection: str, capacity: int, num_samples: int, seed: int) -> Int64Array:
    """Offers samples in steps of 32 to a buffer.

    Args:
        selection: Name of the selection.
        capacity: C.
        num_samples: N.
        seed: The buffer's key.

    Returns:
        int64 `[capacity]`: the samples that it holds at the end.
    """
    buffer = ReplayBuffer(capacity, selection, seed=seed)
    for first in range(0, num_samples, _STEP_SIZE):
        count = min(_STEP_SIZE, num_samples - first)
        buffer.offer(Offers(count, first), lambda numbers, first=first: first + numbers)  # type: ignore[misc]
    return buffer.addresses(np.arange(len(buffer)))


def kept_by_biased(capacity: int, num_samples: int, seed: int) -> Int64Array:
    """Does what the biased reservoir does.

    Args:
        capacity: C.
        num_samples: N.
        seed: Seed of its random numbers.

    Returns:
        int64 `[capacity]`: the samples that it holds at the end.
    """
    kept = np.arange(capacity)
    drawn = np.random.default_rng(seed).integers(0, np.arange(capacity, num_samples))
    for number in np.flatnonzero(drawn < capacity).tolist():
        kept[drawn[number]] = capacity + number
    return kept


def evenness(keep: Callable[[int], Int64Array], capacity: int, num_samples: int, num_seeds: int) -> dict[str, Any]:
    """Tests whether all samples are kept equally often.

    Args:
        keep: Gives the samples that are kept with a seed.
        capacity: C.
        num_samples: N.
        num_seeds: S.

    Returns:
        `chi_square`, `p_value`, and `first` and `last`: the rates at which the first and the last tenth of the samples
        were kept, over C/N.
    """
    counts = np.zeros(num_samples, dtype=np.int64)
    for seed in range(num_seeds):
        counts[keep(seed)] += 1
    share = capacity / num_samples
    squares = ((counts - num_seeds * share) ** 2).sum() / (num_seeds * share * (1.0 - share))
    chi_square = float(squares * (num_samples - 1) / num_samples)
    halves = torch.tensor([(num_samples - 1) / 2.0, chi_square / 2.0], dtype=torch.float64)
    rates, tenth = counts / (num_seeds * share), max(1, num_samples // 10)
    return {
        "chi_square": chi_square,
        "p_value": float(torch.special.gammaincc(halves[0], halves[1])),
        "first": float(rates[:tenth].mean()),
        "last": float(rates[-tenth:].mean()),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Tests all forms.

    Args:
        args: The command line.

    Returns:
        `capacity`, `num_samples`, `num_seeds`, and under `forms` what `evenness` gives of each.
    """
    capacity, num_samples, num_seeds = (5, 40, 300) if args.quick else (20, 200, 20_000)
    forms: dict[str, Callable[[int], Int64Array]] = {
        "Reservoir": lambda seed: kept_by_buffer("Reservoir", capacity, num_samples, seed),
        BIASED: lambda seed: kept_by_biased(capacity, num_samples, seed),
    }
    figures = {name: evenness(keep, capacity, num_samples, num_seeds) for name, keep in forms.items()}
    return {"capacity": capacity, "num_samples": num_samples, "num_seeds": num_seeds, "forms": figures}


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    title = f"P(kept) = C/N: C = {figures['capacity']}, N = {figures['num_samples']}, {figures['num_seeds']:,} seeds, "
    title += f"{figures['num_samples'] - 1} degrees of freedom"
    rows = [
        [name, f"{own['chi_square']:.1f}", f"{own['p_value']:.2g}", f"{own['first']:.4f}", f"{own['last']:.4f}"]
        for name, own in figures["forms"].items()
    ]
    show(title, ["reservoir", "chi-square", "p", "first tenth / (C/N)", "last tenth / (C/N)"], rows)
