"""Plans and shares that several tests are about."""

from collections.abc import Sequence

import numpy as np

from mixer.mixture.step_plan import StepPlan, rank_samples

Key = tuple[int, int]


def make_plan(counts: Sequence[int], starts: Sequence[int] | None = None, step: int = 3) -> StepPlan:
    array = np.array(counts, dtype=np.int64)
    if starts is None:
        starts = [1_000 * k + 7 for k in range(len(counts))]
    shares = array / max(array.sum(), 1)
    return StepPlan(
        step,
        array,
        np.array(starts, dtype=np.int64),
        shares,
        shares,
        loss_weights=None,
        batch_size=int(sum(counts)),
        staleness=0,
    )


def all_samples(plan: StepPlan) -> list[Key]:
    spans = zip(plan.starts.tolist(), plan.counts.tolist(), strict=True)
    return [(k, position) for k, (start, count) in enumerate(spans) for position in range(start, start + count)]


def samples_of(plan: StepPlan, rank: int, world_size: int, is_balanced: bool = True) -> list[Key]:
    stream_ids, positions = rank_samples(plan, rank, world_size, is_balanced)
    return list(zip(stream_ids.tolist(), positions.tolist(), strict=True))
