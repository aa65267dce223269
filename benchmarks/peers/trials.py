"""What a contestant can do beyond a fixed mixture, tried and not asserted; every one is asked the same.

A run has 100 steps of 16 samples of three streams, mixed .5/.3/.2, by a small model. Every trial counts what the
model was trained on. What a contestant's own means are is told in its `HOW`.

*weights*: after step 50 the shares are to be .1/.1/.8. The last stream's share in the next 50 steps says whether
they are. *batch_size*: after step 50 steps are to have 32 samples. *zero*: shares .5/.5/0. *resume*: the run ends
with a checkpoint at step 50, and another process's objects go on from it. *resume_batch_size*: the same, but the run
goes on with batches of 8. *coverage*: 200, 200 and 100 rows, 1,000 samples in all: which share of a stream's rows is
among the first so many draws from it. *losses*: whether the log has a loss of each stream. *order*: how many
of 65,537 rows a shuffled pass leaves out, of those whose orders are computed; the others store theirs.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer

from benchmarks.peers.counted import repeated_and_lost
from benchmarks.peers.request import NewTrainer, Request, run
from benchmarks.peers.work import NAMES, SHARES, build_model, quieted, read_datasets

_MODEL = {"hidden": 16, "layers": 1}
_STEPS, _HALF, _BATCH_SIZE = 100, 50, 16
_NEW_SHARES, _NEW_BATCH_SIZE, _RESUMED_BATCH_SIZE = (0.1, 0.1, 0.8), 32, 8
_SMALL = (200, 200, 100)
_ORDERED_ROWS = 65_537  # one more than a power of two, where ciphers are hardest put to it
_PRIVATELY = "weights, privately"

Figures = dict[str, Any]


def try_all(
    new_trainer: NewTrainer,
    options: dict[str, Any],
    how: Mapping[str, str],
    new_private_trainer: NewTrainer | None = None,
) -> dict[str, Figures]:
    """Does all trials.

    Args:
        new_trainer: Makes the contestant's trainer.
        options: Of the contest.
        how: The means that it has, in words.
        new_private_trainer: Makes one that is changed in a way that its documentation does not have; `None` if there
            is none.

    Returns:
        The figures of each trial; `error` where it ended in one, and `how`.
    """
    torch.set_num_threads(options["threads"])
    with tempfile.TemporaryDirectory() as folder:
        shape = {**_MODEL, "length": options["length"]}
        datasets = read_datasets(options["data"])
        plain = Request(datasets, SHARES, _BATCH_SIZE, _STEPS, 0, str(Path(folder) / "run"), shape)
        trials: dict[str, Callable[[], Figures]] = {
            "weights": lambda: _weights(new_trainer, plain),
            "batch_size": lambda: _batch_size(new_trainer, plain),
            "zero": lambda: _zero(new_trainer, plain),
            "resume": lambda: _resume(new_trainer, plain, _BATCH_SIZE),
            "resume_batch_size": lambda: _resume(new_trainer, plain, _RESUMED_BATCH_SIZE),
            "coverage": lambda: _coverage(new_trainer, plain),
            "losses": lambda: _losses(new_trainer, plain),
        }
        if new_private_trainer is not None:
            trials[_PRIVATELY] = lambda: _weights(new_private_trainer, plain)
        return {name: {**_tried(trial, folder), "how": how.get(name, "")} for name, trial in trials.items()}


def order_trial(shuffled_pass: Callable[[int], Sequence[int]]) -> Figures:
    """Looks for rows that a shuffled pass leaves out, where the order is computed and not stored.

    Args:
        shuffled_pass: Gives the rows of one, by their number.

    Returns:
        `rows` there are, and how many are `missing`.
    """
    return {"rows": _ORDERED_ROWS, "missing": _ORDERED_ROWS - len(set(shuffled_pass(_ORDERED_ROWS)))}


def _tried(trial: Callable[[], Figures], folder: str) -> Figures:
    """Does a trial in an empty folder; what it ends in is told."""
    (path := Path(folder) / "run").mkdir()
    try:
        return trial()
    except Exception as error:  # a refusal is what a trial may find
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    finally:
        shutil.rmtree(path)


def _weights(new_trainer: NewTrainer, plain: Request) -> Figures:
    counter = run(new_trainer, plain.but(change_at=_HALF, new_shares=_NEW_SHARES))
    after = [float((batch[:, 0] == len(NAMES) - 1).mean()) for batch in counter.batches[_HALF:]]
    is_new = np.asarray(after) > (SHARES[-1] + _NEW_SHARES[-1]) / 2
    samples = counter.samples()
    repeated = len(samples) - len(np.unique(samples, axis=0))
    # How many steps the old shares still rule: the new one is so far off that a single step tells them apart.
    late = int(np.argmax(is_new)) if is_new.any() else None
    return {"asked": _NEW_SHARES[-1], "got": float(np.mean(after)), "late_steps": late, "repeated": repeated}


def _batch_size(new_trainer: NewTrainer, plain: Request) -> Figures:
    counter = run(new_trainer, plain.but(change_at=_HALF, new_batch_size=_NEW_BATCH_SIZE))
    # Steps that are made of several micro-batches are counted by the samples of all of them.
    got = len(counter.samples(_HALF)) / _HALF
    return {"asked": _NEW_BATCH_SIZE, "got": got}


def _zero(new_trainer: NewTrainer, plain: Request) -> Figures:
    samples = run(new_trainer, plain.but(shares=(0.5, 0.5, 0.0), steps=_HALF)).samples()
    return {"drawn": int((samples[:, 0] == len(NAMES) - 1).sum())}


def _resume(new_trainer: NewTrainer, plain: Request, batch_size: int) -> Figures:
    whole = run(new_trainer, plain.but(steps=2 * _STEPS)).samples()
    before = run(new_trainer, plain.but(stop_at=_HALF)).samples()
    # As many samples follow in smaller batches.
    steps = _HALF + (_STEPS - _HALF) * _BATCH_SIZE // batch_size
    saved = None if batch_size == _BATCH_SIZE else _BATCH_SIZE
    resumed = plain.but(resume=True, batch_size=batch_size, steps=steps, saved_batch_size=saved)
    after = run(new_trainer, resumed).samples()
    repeated, lost = repeated_and_lost(np.concatenate([before, after]), whole)
    return {"samples": len(before) + len(after), "repeated": repeated, "lost": lost}


def _coverage(new_trainer: NewTrainer, plain: Request) -> Figures:
    small = {name: plain.datasets[name].select(range(size)) for name, size in zip(NAMES, _SMALL, strict=True)}
    samples = run(new_trainer, plain.but(datasets=small, steps=1_000 // _BATCH_SIZE + 1, passes=3)).samples()
    covered = []
    for stream, size in enumerate(_SMALL):
        rows = samples[samples[:, 0] == stream, 1][:size]
        covered.append(len(np.unique(rows)) / size)
    return {"covered": covered}


def _losses(new_trainer: NewTrainer, plain: Request) -> Figures:
    model, _ = build_model(plain.options)
    trainer: Trainer = quieted(new_trainer(model, plain.but(steps=10, logs=True)))
    trainer.train()
    keys = sorted({key for row in trainer.state.log_history for key in row})
    return {"found": [key for key in keys if "loss" in key and any(name in key for name in NAMES)]}
