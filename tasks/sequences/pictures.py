"""Standard sequences of tasks of pictures, by the names that papers give them."""

from typing import NamedTuple

from mixer.utils.errors import InvalidValueError, require
from mixer.utils.text import did_you_mean
from tasks.sequences.by_class import by_class
from tasks.sources.checks import require_labels
from tasks.sources.images import pictures
from tasks.task import Scenario, TaskSequence


class _Standard(NamedTuple):
    num_classes: int
    num_tasks: int
    size: int
    evaluation_split: str | None


# CIFAR-10, Tiny ImageNet: Buzzega et al. 2020, arXiv:2004.07211. ImageNet-R: Wang et al. 2022, arXiv:2204.04799, with
# 24,000 pictures for training and 6,000 for evaluation, drawn at random.
_STANDARD = {
    "seq-cifar10": _Standard(10, 5, 32, "test"),
    "seq-cifar100": _Standard(100, 10, 32, "test"),
    "seq-tiny-imagenet": _Standard(200, 10, 64, "valid"),
    "split-imagenet-r": _Standard(200, 10, 224, None),
}


def standard(
    name: str,
    path: str,
    num_tasks: int | None = None,
    *,
    size: int | None = None,
    seed: int | None = None,
    scenario: Scenario = "class",
) -> TaskSequence:
    """Makes a standard sequence of pictures: tasks of equally many classes.

    Args:
        name: `"seq-cifar10"` (5 tasks), `"seq-cifar100"`, `"seq-tiny-imagenet"` or `"split-imagenet-r"` (10 tasks).
        path: The pictures: a folder or a name on the hub; see `tasks.sources.pictures`. ImageNet-R has no split for
            evaluation: a fifth of its pictures, `train`, is held out.
        num_tasks: Another number of tasks, such as 5 or 20.
        size: Height and width for the model; `None` takes those of the pictures, and 224 of ImageNet-R.
        seed: Seed of the order of classes; `None` goes by their numbers. 1993 is usual beside a pre-trained model.
        scenario: See `by_class`.

    Raises:
        ValueError: If the name is unknown, or the pictures are of another number of classes than tasks can share.
    """
    if name not in _STANDARD:
        raise InvalidValueError(
            option="name", expected=f"one of {[*_STANDARD]}", found=name, hint=did_you_mean(name, _STANDARD).strip()
        )
    own = _STANDARD[name]
    count = own.num_tasks if num_tasks is None else num_tasks
    require(count >= 1 and own.num_classes % count == 0, "num_tasks", f"a divisor of {own.num_classes}", count)
    splits = pictures(path, evaluation_split=own.evaluation_split, size=own.size if size is None else size)
    found = len(set(require_labels(splits.train, "train").tolist()))
    require(found == own.num_classes, "path", f"pictures of {own.num_classes} classes, as {name} has", found)
    return by_class(*splits, own.num_classes // count, seed=seed, scenario=scenario)
