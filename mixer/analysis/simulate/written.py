"""The ledger of a simulation, which every command that reads runs can read."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from mixer.analysis.simulate.parts import Parts
from mixer.analysis.simulate.seen import Seen, Source
from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder, StepResult
from mixer.loading.step import StepCounts
from mixer.mixture.plan import Plan
from mixer.utils.arrays import Int64Array
from mixer.utils.files import read_json, write_json


class Writer:
    """Writes what is planned as a trainer writes what it trained.

    Items of the loss, which only collated batches have, are taken for the tokens, and for samples where there are none.

    Args:
        folder: Where to.
        parts: What plans the run.
        source: Where what is observed comes from; `simulated` in `ledger.json` says so.

    Raises:
        ValueError: If the folder holds a run that is no simulation.
    """

    def __init__(self, folder: Path, parts: Parts, source: Source):
        _check_free(folder)
        mixing, self._source = parts.mixing, source
        self._ledger = Ledger(folder / "ledger", is_writer=True)
        description = {
            "streams": list(mixing.names),
            "policy": mixing.policy.name,
            "batch_size": mixing.schedule.name,
            "run": describe_run(parts.streams, mixing, parts.options, parts.args.world_size),
            "simulated": source.note,
        }
        self._ledger.begin(None, description)
        self._recorder = Recorder(mixing, self._ledger, reads_at_once=True)
        self._recorder.record_start()

    def record(self, plan: Plan, tokens: Int64Array, seen: Seen, learning_rate: float, factor: float) -> None:
        """Writes a step, after the controller has observed it.

        Args:
            plan: Its plan.
            tokens: int64 `[num_streams]`: its tokens.
            seen: What it showed.
            learning_rate: Its learning rate.
            factor: What its batch size multiplied that by.
        """
        is_known = np.isfinite(seen.losses)
        items = np.where(is_known, tokens if tokens.any() else plan.counts, 0)
        sums = np.append(np.where(is_known, seen.losses, 0.0) * items, seen.loss)
        compared = {"excess_loss": seen.excess_losses, "loss_after": seen.losses_after}
        result = StepResult(
            plan, StepCounts(items, tokens), torch.from_numpy(sums), learning_rate, factor, seen.gradients
        )
        norm = None if math.isnan(seen.gradient_norm) else seen.gradient_norm
        known = {name: values for name, values in compared.items() if values is not None}
        self._recorder.record(result, known, norm, seen.update_norm)

    def record_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        """Writes an evaluation.

        Args:
            step: Number of steps before it.
            losses: Losses by stream.
        """
        self._ledger.record_evaluation(step, losses)

    def finish(self) -> None:
        """Seals the ledger, and notes where what was observed came from: how far it was the same run shows by now."""
        self._recorder.settle()
        self._ledger.finish()
        path = self._ledger.folder / "ledger.json"
        write_json(path, {**read_json(path), "simulated": self._source.note})


def _check_free(folder: Path) -> None:
    note = folder / "ledger" / "ledger.json"
    if note.is_file() and "simulated" not in read_json(note):
        raise ValueError(
            f"output: {folder} holds a run that was trained, whose ledger would make way for the simulation's. Give "
            "another folder."
        )
