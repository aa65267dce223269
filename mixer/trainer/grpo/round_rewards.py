"""What a round of generation shows of each stream: rewards, their spread, lengths and divergence."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.ledger.ledger import Ledger
from mixer.loading.loaded_step import MicroBatch, StepBatch, StepResult
from mixer.measurements import Results, Rewards, RewardStatistics
from mixer.measurements.rewards import NUM_SUMS, figures_of, sums_of_groups
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import FloatArray

# Entries of the log by what they show.
_LOGGED = {"reward": "reward", "spread": "reward_std", "silent": "silent", "mean_length": "length", "kl": "kl"}


class RoundRewards(Method):
    """Measures rewards by stream for policies, log and ledger, from what the trainer has generated and scored.

    Args:
        num_generations: Completions of a prompt.
    """

    measures = (Rewards,)

    def __init__(self, num_generations: int):
        self.num_generations = num_generations
        self.ledger: Ledger | None = None  # of the trainer, once it is constructed
        self._micro: MicroBatch | None = None

    def attach(self, run: RunContext) -> None:
        """Begins with no rewards; see `Method.attach`."""
        self._run, self._names = run, [stream.name for stream in run.streams]
        self._sums, self._logged = self._zeros(), self._zeros()

    def _zeros(self) -> FloatArray:
        return np.zeros((len(self._names), NUM_SUMS))

    # ---- A round ----

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Begins a round; see `StepHook.begin_step`."""
        self._sums = self._zeros()

    def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
        """Takes note of the prompts of this rank; see `StepHook.begin_micro_batch`."""
        self._micro, self._starts = trained.micro, trained.plan.starts
        self.num_prompts = trained.plan.total - self._run.passes.num_skipped  # of the round, over all ranks

    @property
    def micro(self) -> MicroBatch:
        """This rank's prompts of the round."""
        assert self._micro is not None, "a round begins with its prompts"  # noqa: S101
        return self._micro

    def prompt_streams(self) -> list[str]:
        """Returns whose reward functions score each of this rank's prompts: of a replayed one, those of its source."""
        names = [self._names[number] for number in self.micro.stream_ids]
        positions, cursors = self.micro.positions, self._run.planner().cursors
        assert positions is not None, "a step draws its prompts"  # noqa: S101
        for number in self._run.memories:
            sources = getattr(cursors[number], "origins")()[0]  # noqa: B009 the cursor of a buffer has it
            for place in np.flatnonzero(self.micro.stream_ids == number).tolist():
                names[place] = sources[int(positions[place] - self._starts[number])]
        return names

    @property
    def row_streams(self) -> Tensor:
        """int64 `[num_rows]`: the stream of each of this rank's completions."""
        return torch.from_numpy(self.micro.stream_ids).repeat_interleave(self.num_generations)

    def note_rewards(self, rewards: Tensor, lengths: Tensor) -> Tensor:
        """Adds up this rank's groups.

        Args:
            rewards: `[num_rows]`: the reward of each completion; NaN without one.
            lengths: `[num_rows]`: its tokens.

        Returns:
            `[num_prompts]`: the standard deviation of the rewards of each group.
        """
        of_groups = rewards.double().cpu().numpy().reshape(-1, self.num_generations)
        mean_lengths = lengths.double().cpu().numpy().reshape(of_groups.shape).mean(axis=1)
        self._sums += sums_of_groups(self.micro.stream_ids, of_groups, len(self._names), mean_lengths)
        return torch.from_numpy(figures_of(of_groups)[2])

    def note_divergence(self, row_streams: Tensor, sums: Tensor, counts: Tensor) -> None:
        """Adds the divergence from the reference model.

        Args:
            row_streams: int64 `[num_rows]`: the stream of each row.
            sums: `[num_rows]`: the sum over its tokens.
            counts: `[num_rows]`: its tokens.
        """
        columns = torch.stack([sums.double(), counts.double()], dim=1).cpu().numpy()
        np.add.at(self._sums[:, -2:], row_streams.cpu().numpy(), columns)

    def observe(self, result: StepResult) -> Results:
        """Adds up the groups of all ranks; see `Observer.observe`."""
        sums = self._run.rank_sync.add_up(torch.from_numpy(self._sums)).numpy()
        self._logged = self._logged + sums
        found = RewardStatistics.of(sums)
        if self.ledger is not None:
            columns = {name: values.tolist() for name, values in vars(found).items()}
            steps = [result.plan.step] * len(self._names)
            self.ledger.record("rewards", {"step": steps, "stream": self._names, **columns})
        return {Rewards: found}

    # ---- The log ----

    def log_entries(self) -> dict[str, float]:
        """Returns the means since the last entry, of streams that had a prompt; see `Method.log_entries`."""
        found, self._logged = RewardStatistics.of(self._logged), self._zeros()
        return {
            f"{entry}/{name}": float(value)
            for field, entry in _LOGGED.items()
            for name, value in zip(self._names, getattr(found, field), strict=True)
            if np.isfinite(value)
        }

    @property
    def log_state(self) -> dict[str, Any]:
        """The sums since the last entry; see `Method`."""
        return {"sums": self._logged.tolist()}

    @log_state.setter
    def log_state(self, state: Mapping[str, Any]) -> None:
        self._logged = np.array(state["sums"]) if state.get("sums") else self._zeros()
