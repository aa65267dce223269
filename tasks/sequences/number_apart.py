"""Tasks with disjoint class numbers."""

from tasks.sequences.data_sets import relabel
from tasks.task import Scenario, Task, TaskSequence


def number_apart(sequence: TaskSequence, scenario: Scenario = "task") -> TaskSequence:
    """Numbers the classes of one task after the other 0, 1, ..., as a head for each task needs it.

    Args:
        sequence: Tasks with classes; two of them may have some in common.
        scenario: What the new sequence is.

    Returns:
        A sequence of the same samples. A task's classes keep their order.

    Raises:
        ValueError: If a task has no classes, or labels beside them.
        TypeError: If data are of a kind that cannot be relabelled.
    """
    without = [task.name for task in sequence if task.classes is None]
    if without:
        raise ValueError(f"number_apart: the tasks {without} have no classes that could be numbered; leave it out.")
    tasks, num_classes = [], 0
    for task in sequence:
        numbers = {label: number for number, label in enumerate(task.classes or (), num_classes)}
        num_classes += len(numbers)
        train, evaluation = relabel(task.train, numbers), relabel(task.evaluation, numbers)
        tasks.append(Task(task.name, train, evaluation, tuple(numbers.values()), task.description))
    return TaskSequence(tuple(tasks), scenario)
