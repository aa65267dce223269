"""The ledger of a simulation, which every command that reads runs can read."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from mixer.analysis.simulate.losses import Seen
from mixer.analysis.simulate.parts import Parts
from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder, StepResult
from mixer.loading.step import StepCounts
from mixer.mixture.plan import Plan
from mixer.utils.arrays import Int64Array
from mixer.utils.files import read_json, write_json


class Writer:
    """Writes planned steps as a trainer writes trained ones.

    Items of the loss are known of collated batches only: tokens stand for them, or samples if there are no tokens.

    Args:
        folder: The output folder.
        parts: The objects that plan the run.
        source: A sentence on the source of the losses, for `simulated` in `ledger.json`.

    Raises:
        ValueError: If the folder holds a trained run.
    """

    def __init__(self, folder: Path, parts: Parts, source: str):
        note = folder / "ledger" / "ledger.json"
        if note.is_file() and "simulated" not in read_json(note):
            raise ValueError(
                f"output: {folder} holds a run that was trained, whose ledger would make way for the simulation's. "
                "Give another folder."
            )
        mixing = parts.mixing
        self._ledger = Ledger(folder / "ledger", is_writer=True)
        description = {
            "streams": list(mixing.names),
            "policy": mixing.policy.name,
            "batch_size": mixing.schedule.name,
            "run": describe_run(parts.streams, mixing, parts.options, parts.args.world_size),
            "simulated": source,
        }
        self._ledger.begin(None, description)
        self._recorder = Recorder(mixing, self._ledger, reads_at_once=True)
        self._recorder.record_start()

    def record(self, plan: Plan, tokens: Int64Array, seen: Seen, learning_rate: float, factor: float) -> None:
        """Writes a step, after the controller has observed it.

        Args:
            plan: Its plan.
            tokens: int64 `[num_streams]`: its tokens.
            seen: Its observations.
            learning_rate: Its learning rate.
            factor: Factor of its batch size on the learning rate.
        """
        is_known = np.isfinite(seen.losses)
        items = np.where(is_known, tokens if tokens.any() else plan.counts, 0)
        sums = torch.from_numpy(np.append(np.where(is_known, seen.losses, 0.0) * items, seen.loss))
        result = StepResult(plan, StepCounts(items, tokens), sums, learning_rate, factor, seen.gradients)
        norm = None if math.isnan(seen.gradient_norm) else seen.gradient_norm
        self._recorder.record(result, seen.compared, norm, seen.update_norm)

    def record_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        """Writes the losses of an evaluation after a step, by stream."""
        self._ledger.record_evaluation(step, losses)

    def finish(self, source: str) -> None:
        """Seals the ledger and notes the source of the losses, which says by now how far the plans were the same."""
        self._recorder.settle()
        self._ledger.finish()
        path = self._ledger.folder / "ledger.json"
        write_json(path, {**read_json(path), "simulated": source})
