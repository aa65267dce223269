"""Tasks and sequences of tasks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args, overload

from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError
from tasks.sources.checks import check_map_style, find_unrepeatable, labels_in

Scenario = Literal["class", "domain", "task", "free"]


@dataclass(frozen=True)
class Task:
    """What is trained on for a while, and what shows how well that was learnt.

    Args:
        name: Name in logs, and of the task's stream.
        train: A map-style data set.
        evaluation: Another.
        classes: Labels that the task promises; `None` takes those of the training data, and stays `None` where samples
            have none, as in language modelling.
        description: A sentence for reports.

    Raises:
        ValueError: If a data set is empty, has no example of a promised class or reads the same sample differently when
            it is read again; or the name cannot be a stream's.
        TypeError: If a data set cannot be indexed.
    """

    name: str
    train: DataSet = field(repr=False)
    evaluation: DataSet = field(repr=False)
    classes: tuple[int, ...] | None = None
    description: str = ""

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.strip() or "/" in name or not name.isprintable():
            raise InvalidValueError.about("name", f"must be printable, not empty and without '/', got {name!r}.")
        for part in ("train", "evaluation"):
            self._check_data(part, getattr(self, part))
        classes = self.labels_trained_on if self.classes is None else tuple(int(label) for label in self.classes)
        if self.classes is not None:
            self._check_promise(classes or ())
        object.__setattr__(self, "classes", classes)
        if classes and min(classes) < 0:
            raise InvalidValueError.about("classes", f"of task {self.name!r} must be 0 or more, got {min(classes)}.")

    @cached_property
    def labels_trained_on(self) -> tuple[int, ...] | None:
        """Labels in the training data, ascending, those beside `classes` too; `None` where samples have none."""
        return labels_in(self.train)

    def _check_data(self, part: str, dataset: DataSet) -> None:
        where = f"Task {self.name!r}: {part}"
        check_map_style(dataset, where)
        if len(dataset) == 0:
            raise InvalidValueError.about(part, f"of task {self.name!r} must have a sample at least.", stream=self.name)
        changing = find_unrepeatable(dataset)
        if changing is not None:
            raise InvalidValueError.about(
                part,
                f"of task {self.name!r} must be the same when read again, but sample {changing} is not.",
                stream=self.name,
            )

    def _check_promise(self, promised: tuple[int, ...]) -> None:
        if not promised or len(set(promised)) < len(promised):
            raise InvalidValueError.about(
                "classes", f"of task {self.name!r} must differ, at least one, got {promised}."
            )
        for part, labels in (("train", self.labels_trained_on), ("evaluation", labels_in(self.evaluation))):
            if labels is None:
                raise InvalidValueError.about(
                    "classes", f"of task {self.name!r} are promised, but {part} has no label.", stream=self.name
                )
            missing = sorted(set(promised) - set(labels))
            if missing:
                raise InvalidValueError.about(
                    "classes", f"of task {self.name!r} must all be in {part}, but it lacks {missing}.", stream=self.name
                )


@dataclass(frozen=True)
class TaskSequence:
    """Tasks in the order in which they are learnt.

    Args:
        tasks: The tasks.
        scenario: What the model is told. `"class"`: new classes come, and it tells apart all seen so far. `"task"`: it
            knows which task a sample is of, so only that task's classes compete. `"domain"`: the same classes in
            all tasks, inputs change. `"free"`: tasks flow into each other and classes may come back.

    Raises:
        ValueError: If there are no tasks, two have one name, classes do not fit the scenario, or the scenario is not
            known.
    """

    tasks: tuple[Task, ...]
    scenario: Scenario = "class"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if self.scenario not in get_args(Scenario):
            raise InvalidValueError.about("scenario", f"must be one of {get_args(Scenario)}, got {self.scenario!r}.")
        if not self.tasks:
            raise InvalidValueError("A sequence needs at least one task, got none.", option="tasks")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise InvalidValueError(f"Names of tasks must be unique, these come twice: {twice}.", option="tasks")
        if self.scenario == "domain":
            self._check_same_classes()
        if self.scenario != "free":
            self._check_labels()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(task.name for task in self.tasks)

    @property
    def num_classes(self) -> int:
        """Outputs that a head for all tasks needs: the highest label and one, labels beside classes too."""
        trained_on = {label for task in self.tasks for label in task.labels_trained_on or ()}
        return max(trained_on.union(self.classes_seen(len(self) - 1))) + 1

    def classes_seen(self, after: int) -> tuple[int, ...]:
        """Returns the labels known after a task.

        Args:
            after: Number of the last task learnt, from 0.

        Returns:
            The classes of all tasks up to this one, ascending.

        Raises:
            IndexError: If there is no such task.
            ValueError: If none of the tasks has classes.
        """
        if not 0 <= after < len(self):
            raise IndexError(f"after must be the number of one of {len(self)} tasks, counted from 0, got {after}.")
        if all(task.classes is None for task in self.tasks):
            raise InvalidValueError.about(
                "tasks", f"must have whole numbers as labels, but {list(self.names)} have none."
            )
        return tuple(sorted({label for task in self.tasks[: after + 1] for label in task.classes or ()}))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @overload
    def __getitem__(self, key: int | str) -> Task: ...
    @overload
    def __getitem__(self, key: slice) -> "TaskSequence": ...
    def __getitem__(self, key: int | str | slice) -> "Task | TaskSequence":
        if isinstance(key, slice):
            return TaskSequence(self.tasks[key], self.scenario)
        if not isinstance(key, str):
            return self.tasks[key]
        if key not in self.names:
            raise KeyError(f"There is no task {key!r}; the tasks are {list(self.names)}.")
        return self.tasks[self.names.index(key)]

    def _check_same_classes(self) -> None:
        first, *others = self.tasks
        differing = [task for task in others if set(task.classes or ()) != set(first.classes or ())]
        if differing:
            shown = ", ".join(f"{task.name!r} {_classes_text(task.classes)}" for task in (first, *differing[:3]))
            raise InvalidValueError.about("scenario", f"must be 'class' or 'task', as classes differ: {shown}.")

    def _check_labels(self) -> None:
        for task in self.tasks:
            for part, labels in (("train", task.labels_trained_on), ("evaluation", labels_in(task.evaluation))):
                strange = set(labels or ()) - set(task.classes or ())
                if strange and task.classes is not None:
                    raise InvalidValueError.about(
                        "classes",
                        f"of task {task.name!r} lack the labels {_classes_text(strange)} of {part}.",
                        stream=task.name,
                    )


def _classes_text(classes: Iterable[int] | None) -> str:
    if classes is None:
        return "without classes"
    ordered = sorted(classes)
    return f"[{', '.join(map(str, ordered[:10]))}{', ...' if len(ordered) > 10 else ''}]"
