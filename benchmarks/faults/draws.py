"""What is drawn for a fault: an instant, a rank, a step, a sample, a place in a file."""

import random
from typing import Any

import numpy as np

from benchmarks.faults.kinds import Draw, Known
from benchmarks.faults.run import NUM_STEPS


def instant(generator: random.Random, known: Known) -> dict[str, Any]:
    """An instant of the undisturbed run's time: `step` and `delay`."""
    return known.instant(generator)


def instant_of_rank(generator: random.Random, known: Known) -> dict[str, Any]:
    """An instant, and a `rank`."""
    return {**instant(generator, known), **rank(generator, known)}


def rank(generator: random.Random, known: Known) -> dict[str, Any]:
    """A `rank`."""
    return {"rank": generator.randrange(known.num_ranks)}


def step(generator: random.Random, known: Known) -> dict[str, Any]:
    """A `step` that is neither the start nor the end."""
    return {"step": generator.randrange(1, NUM_STEPS)}


def early_step(generator: random.Random, known: Known) -> dict[str, Any]:
    """A `step` after which much of the run is left."""
    return {"step": generator.randrange(1, NUM_STEPS // 2)}


def in_a_step(generator: random.Random, known: Known) -> dict[str, Any]:
    """A `step`, and a short `delay` into the step after it."""
    return {**step(generator, known), "delay": 0.3}


def second_run(generator: random.Random, known: Known) -> dict[str, Any]:
    """A `step` at which a second run is started, anew or to `resume`."""
    return {**step(generator, known), "resume": generator.choice([None, "newest"])}


def step_of_rank(generator: random.Random, known: Known) -> dict[str, Any]:
    """A step, and a `rank`."""
    return {**step(generator, known), **rank(generator, known)}


def leaving(by: str) -> Draw:
    """A step of a rank, and what it leaves `by`."""
    return lambda generator, known: {**step_of_rank(generator, known), "by": by}


def unknown_sample(generator: random.Random, known: Known) -> dict[str, Any]:
    """The `index` of one by which a replay buffer does not know the data set again: else it is another one to it."""
    first = set(np.linspace(0, known.num_samples - 1, 8).astype(int).tolist())
    return {"index": generator.choice([index for index in known.read() if index not in first])}


def nonsense(*choices: str) -> Draw:
    """A step, and which nonsense is given there: its `choice`."""
    return lambda generator, known: {**step(generator, known), "choice": generator.choice(choices)}


def bad_loss(value: str, nonfinite: str) -> Draw:
    """A sample whose loss has that `value`."""
    return lambda generator, known: {**unknown_sample(generator, known), "value": value, "nonfinite": nonfinite}


def clock(generator: random.Random, known: Known) -> dict[str, Any]:
    """A step at which one rank's clock, or that of all, leaps by a second or by years, forth or back."""
    seconds = generator.choice([-1, 1]) * 10 ** generator.uniform(0, 8)
    return {**step(generator, known), "rank": generator.choice([None, *range(known.num_ranks)]), "seconds": seconds}


def full_disk(what: str, most_calls: int, most_bytes: int) -> Draw:
    """Before which `call` of what writes the disk is full, and how many bytes are `left`."""
    return lambda generator, known: {
        "what": what,
        "call": generator.randrange(1, most_calls + 1),
        "left": generator.randrange(most_bytes),
    }


def damage(how: str, *where: str) -> Draw:
    """Which `file` of those that match is damaged at which `place`, both as shares, and how the run is resumed."""
    return lambda generator, known: {
        "how": how,
        "where": where,
        "file": generator.random(),
        "place": generator.random(),
        "bit": generator.randrange(8),
        "resume": generator.choice(["newest", "named"]),
    }


def other_length(generator: random.Random, known: Known) -> dict[str, Any]:
    """By how many samples, `more`, the length differs."""
    return {"more": generator.choice([-50, -7, -1, 1, 8, 1000])}
