"""How often a run passes over its streams."""

import numpy as np

from mixer.trainer.trainer import MixingTrainer

_NUM_POINTS = 100  # at which the shares are looked at: streams may enter late, and leave


def planned_passes(trainer: MixingTrainer) -> dict[str, float]:
    """Estimates how often a run passes over each stream if the weights that it begins with stay.

    Args:
        trainer: The trainer of the run, before it begins.

    Returns:
        By name; without iterable streams and memories, and without any where weights are shares of tokens.
    """
    mixing = trainer.mixing
    if mixing.policy.unit != "samples":
        return {}
    weights = np.array([mixing.weights[name] for name in mixing.names])
    points = (np.arange(_NUM_POINTS) + 0.5) / _NUM_POINTS
    shares = np.mean([mixing.planner.shares(weights, float(point))[0] for point in points], axis=0)
    total = mixing.clock.max_steps * mixing.batch_size
    passes = {}
    for stream, share in zip(trainer.streams, shares.tolist(), strict=True):
        if not (stream.is_iterable or stream.is_memory):
            planned = total * share / stream.num_samples
            passes[stream.name] = planned if stream.max_epochs is None else min(planned, stream.max_epochs)
    return passes
