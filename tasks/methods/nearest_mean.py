"""The nearest-mean-of-exemplars classifier: a score by the memory's samples instead of the output layer."""

import numpy as np

from mixer import MixingTrainer
from mixer.utils.arrays import Float32Array, Int64Array
from mixer.utils.errors import InvalidValueError
from replay import ReplayBuffer, extract_features
from tasks.score import Score
from tasks.sources.checks import require_labels
from tasks.task import Task


def nearest_mean(memory: ReplayBuffer, within_task: bool = False) -> Score:
    """Makes the accuracy of the nearest mean of exemplars.

    Rebuffi et al. 2017, "iCaRL", arXiv:1611.07725, algorithm 1: a sample is of the class whose mean is nearest to its
    features, both scaled to length 1. Means are over the samples in memory, features the input of the last linear
    layer. All ranks take a part. Before a memory has samples, nothing is right.

    Args:
        memory: The buffer of the run, whose selection knows classes.
        within_task: Whether only the classes of a sample's own task compete.

    Raises:
        ValueError: If the selection knows no classes.
    """
    if "label" not in memory.selection.needs:
        raise InvalidValueError.about("memory", f"must select by class, like 'Herding', got {memory.selection.name}.")

    def measure(trainer: MixingTrainer, task: Task) -> float:
        labels: Int64Array = memory.entries["label"].astype(np.int64)
        classes = np.unique(labels)
        if within_task and task.classes is not None:
            classes = classes[np.isin(classes, task.classes)]
        if not len(classes):
            return 0.0
        held = _directions(extract_features(trainer, memory))
        means = _directions(np.stack([held[labels == label].mean(axis=0) for label in classes]))
        nearest = (_directions(extract_features(trainer, task.evaluation, batch_size=1_024)) @ means.T).argmax(axis=1)
        return float((classes[nearest] == require_labels(task.evaluation, "nearest_mean")).mean())

    return Score(measure, "accuracy", memory=memory)


def _directions(features: Float32Array) -> Float32Array:
    """Scales rows to length 1; between such rows the nearest is the one of the largest product."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(lengths > 0.0, lengths, 1.0), dtype=np.float32)
