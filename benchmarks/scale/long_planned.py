"""A long run without a model: controller, policies, ledger, resumed again and again, for `benchmarks.scale.long_runs`.

Streams enter, leave and run out; weights and batch sizes are set by hand and given back; adaptive policies see losses
and gradients that are made up. Every tenth of the run the state is written as a checkpoint has it, some steps are
done that a crash loses, and another policy goes on from the checkpoint with a ledger that is cut there.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.scale.process_state import ProcessState, as_rows, begin, growth, sample
from benchmarks.speed.competitors import ROW_LENGTH, LazyRows
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.loaded_step import StepCounts, StepResult
from mixer.measurements import Gradients, Loss, Results, asked
from mixer.measurements.gradients import GradientStatistics
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.policies import ODM, Fixed, LossChange, PiKE, Policy, Smoothed

NUM_STREAMS, BATCH_SIZE, WORLD_SIZE = 10, 64, 16
_NUM_TURNS, _NUM_LOST, _NUM_EVENTS = 10, 100, 200
_LOG_STEPS = 100


def new_streams(num_steps: int) -> list[Stream]:
    """Makes the streams: one enters late, one leaves early, one runs out, the others are there all the time.

    Args:
        num_steps: Length of the run.

    Returns:
        The streams.
    """
    sizes = np.geomspace(1_000, 10**9, NUM_STREAMS).astype(int).tolist()
    given: list[dict[str, Any]] = [{} for _ in sizes]
    given[1] = {"enters_at": 0.3}
    given[2] = {"leaves_at": 0.7}
    given[3] = {"max_epochs": max(1.0, num_steps * BATCH_SIZE / NUM_STREAMS / 3 / sizes[3])}
    return [
        Stream(f"stream-{number}", LazyRows(size), **own)
        for number, (size, own) in enumerate(zip(sizes, given, strict=True))
    ]


def policies() -> Iterator[Policy]:
    """Gives the policies of the run's parts, over and over."""
    while True:
        yield LossChange(num_warmup_observations=20)
        yield ODM(num_warmup_steps=50)
        yield PiKE(interval_steps=20)
        yield Smoothed(LossChange(num_warmup_observations=20), 0.1)
        yield Fixed([1.0 + number for number in range(NUM_STREAMS)])


class LongPlannedRun:
    """The run.

    Args:
        folder: Where its ledger and its checkpoint are kept.
        num_steps: Number of steps.
        num_samples: How often it is looked at.
    """

    def __init__(self, folder: Path, num_steps: int, num_samples: int = 100):
        self._folder, self._num_steps, self._num_samples = folder, num_steps, num_samples
        self._policies, self._random = policies(), np.random.default_rng(0)
        self.states: list[ProcessState] = []
        self.seconds: list[float] = []
        self._num_resumes = 0
        self._begin(None)

    def run(self) -> dict[str, Any]:
        """Plans, observes and records all steps.

        Returns:
            What `growth` gives of it; what it held (`states`) and the `seconds` of a step, sample by sample; the
            `ledger`; `num_resumes`; `num_events`.
        """
        turn, block = self._num_steps // _NUM_TURNS, max(1, self._num_steps // self._num_samples)
        begin()
        done = 0
        while done < self._num_steps:
            if done and done % turn == 0:
                self._crash_and_resume()
            started = time.perf_counter()
            self._advance(min(block, self._num_steps - done))
            self.seconds.append((time.perf_counter() - started) / block)
            done += block
            self._ledger.flush()
            self.states.append(sample(done))
        states = as_rows(self.states)
        figures = growth(states, self.seconds)
        self._ledger.finish()
        return {
            **figures,
            "states": states,
            "block_seconds": self.seconds,
            "ledger": ledger_figures(self._folder / "ledger", self._num_steps),
            "num_steps": self._num_steps,
            "num_resumes": self._num_resumes,
        }

    def _begin(self, state: dict[str, Any] | None) -> None:
        streams = new_streams(self._num_steps)
        clock = Clock(BATCH_SIZE, 10**6, Budget(steps=self._num_steps), is_constant=False)
        self._mixing = Mixing(Planner(streams, seed=0), next(self._policies), clock)
        if state is not None:
            self._mixing.load_state_dict(state, allow_inexact=True)
        self._ledger = Ledger(self._folder / "ledger", is_writer=True)
        resume_step = None if state is None else clock.step
        self._ledger.begin(resume_step, {"streams": list(self._mixing.names)}, 0)
        self._recorder = Recorder(self._mixing, self._ledger, reads_at_once=True)

    def _crash_and_resume(self) -> None:
        self._ledger.sync()
        (self._folder / "state.json").write_text(json.dumps(self._mixing.state_dict()))
        self._advance(_NUM_LOST)
        self._ledger.flush()
        self._begin(json.loads((self._folder / "state.json").read_text()))
        self._num_resumes += 1

    def _advance(self, num_steps: int) -> None:
        between = max(1, self._num_steps // _NUM_EVENTS)
        for _ in range(num_steps):
            mixing = self._mixing
            if mixing.clock.step % between == between - 1:
                self._change(mixing.clock.step // between)
            plan = mixing.next_plan()
            assert plan is not None, "the run is laid out so that streams are left at its end"
            mixing.planner.rank_share(plan, plan.step % WORLD_SIZE, WORLD_SIZE)
            self._observe(plan)
            if mixing.clock.step % _LOG_STEPS == 0:
                self._recorder.log_entries()

    def _change(self, number: int) -> None:
        """Changes one of the controls by hand, or gives it back."""
        changes = (
            lambda: self._mixing.set_weights(self._random.dirichlet(np.ones(NUM_STREAMS))),
            lambda: self._mixing.set_batch_size(int(self._random.integers(WORLD_SIZE, 4 * BATCH_SIZE))),
            lambda: self._mixing.set_weights(None),
            lambda: self._mixing.set_batch_size(None),
        )
        changes[number % len(changes)]()

    def _observe(self, plan: StepPlan) -> None:
        mixing, tokens = self._mixing, plan.counts * ROW_LENGTH
        losses = np.where(plan.counts > 0, 2.0 + (1.0 + mixing.seen / 1e4) ** -0.5, np.nan)
        losses += self._random.normal(0.0, 0.05, NUM_STREAMS)
        policy = mixing.policy
        is_due = any(plan.step % need.interval_steps == 0 for need in asked(policy.needs, Gradients))
        gradients = self._gradients(plan) if is_due else None
        measured: Results = {Loss: losses, **({} if gradients is None else {Gradients: gradients})}
        mixing.observe(plan, tokens, measured)
        sums = np.append(np.nan_to_num(losses) * tokens, np.nansum(losses * tokens) / tokens.sum())
        batch = StepResult(plan, StepCounts(tokens, tokens), torch.from_numpy(sums), 1e-3, 1.0)
        self._recorder.record(batch, measured)

    def _gradients(self, plan: StepPlan) -> GradientStatistics:
        vectors = self._random.normal(0.2, 1.0, (NUM_STREAMS, 8))
        gram = vectors @ vectors.T
        norms = np.diagonal(gram) * 0.5
        variance = np.diagonal(gram) * plan.counts * 0.5
        return GradientStatistics(gram, variance, norms, plan.counts, plan.weights, np.zeros_like(gram))


def ledger_figures(folder: Path, num_steps: int) -> dict[str, Any]:
    """Measures and checks a sealed ledger of every step once.

    Args:
        folder: The ledger's folder.
        num_steps: Number of steps.

    Returns:
        `bytes_per_row` of the table of streams, `bytes_per_step` of all tables, `num_files`, the `read_seconds` of the
        whole table of streams, `is_exact`: whether each step and stream is there once, in order, and the counts add up
        to what was seen.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    streams = sum(path.stat().st_size for path in files if path.parent.name == "streams")
    ledger = Ledger(folder)
    started = time.perf_counter()
    table = ledger.read("streams")
    read_seconds = time.perf_counter() - started
    steps = table.column("step").to_numpy()
    count, seen = (table.column(name).to_numpy().reshape(-1, NUM_STREAMS) for name in ("count", "seen"))
    wanted = np.repeat(np.arange(1, num_steps + 1), NUM_STREAMS)
    return {
        "bytes_per_row": streams / table.num_rows,
        "bytes_per_step": sum(path.stat().st_size for path in files) / num_steps,
        "num_files": len(files),
        "read_seconds": read_seconds,
        "is_exact": bool(np.array_equal(steps, wanted) and np.array_equal(np.cumsum(count, axis=0), seen)),
    }
