"""Which checkpoint a run begins with: the newest complete one, one by name, or the one it once began with."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from mixer.checkpoint import checkpoint_files, trainer_files
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.files import other_version, read_json, write_json
from mixer.utils.text import first_of, listed

_ORIGIN_FILE, _ORIGIN_FORMAT = "origin.json", 1


@dataclass(frozen=True)
class Choice:
    """The checkpoint to resume from.

    Args:
        checkpoint: Its folder, or `None` if there is none.
        passed_over: The problem of each newer checkpoint, by its folder.
        ended: Whether the run that wrote it finished.
        error: Why the requested checkpoint cannot be used.
        inexact: The problem of the checkpoint, if it is used nevertheless.
        parent: The run of which this one is a fork, if it begins there.
        is_origin: Whether it is where the run has begun before, so that all ranks have the same path.
    """

    checkpoint: str | None = None
    passed_over: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    error: str | None = None
    inexact: str | None = None
    parent: str | None = None
    is_origin: bool = False


class Origin(NamedTuple):
    """Where a run began, if not anew: it begins there again if it is interrupted before its first checkpoint.

    Args:
        checkpoint: The checkpoint of another run.
        is_fork: Whether it is a fork of that run.
    """

    checkpoint: Path
    is_fork: bool

    def write(self, output_dir: Path) -> None:
        """Notes it in the folder of the run."""
        content = {"format": _ORIGIN_FORMAT, "checkpoint": str(self.checkpoint), "is_fork": self.is_fork}
        write_json(output_dir / _ORIGIN_FILE, content, sealed=True)

    @staticmethod
    def read(output_dir: Path) -> "Origin | None":
        """Reads where the run in a folder began; `None` if anew.

        Raises:
            ValueError: If the file is damaged, or a later version wrote it.
        """
        path = output_dir / _ORIGIN_FILE
        if not path.exists():
            return None
        content = read_json(path)
        if content.get("format") != _ORIGIN_FORMAT:
            text = f"{other_version(str(path), content.get('format'), _ORIGIN_FORMAT)}."
            raise InvalidValueError(text, option=_ORIGIN_FILE)
        return Origin(Path(str(content.get("checkpoint"))), content.get("is_fork") is True)

    @staticmethod
    def remove(output_dir: Path) -> None:
        """Notes that the run in a folder begins anew."""
        (output_dir / _ORIGIN_FILE).unlink(missing_ok=True)


def as_request(resume: str | bool | None) -> str | bool | None:
    """Reads the text of a truth value, as which `--resume_from_checkpoint True` arrives from `HfArgumentParser`."""
    return {"true": True, "false": False}.get(resume.lower(), resume) if isinstance(resume, str) else resume


def replaceable(output_dir: Path) -> list[Path]:
    """Lists the checkpoints in a folder with which somebody could go on, but which a new run there would replace."""
    return [
        checkpoint
        for checkpoint in checkpoint_files.list_checkpoints(output_dir)
        if checkpoint_files.is_of_trainer(checkpoint)
        or not (checkpoint_files.read_marker(checkpoint) or {"superseded": True}).get("superseded", False)
    ]


def newest_complete(output_dir: Path, among: Collection[str] | None = None, allow_inexact: bool = False) -> Choice:
    """Finds the newest checkpoint that is complete and intact.

    Args:
        output_dir: The run's output folder.
        among: Names of the checkpoints that the other nodes can use too; `None` if nodes have no disks of their own.
        allow_inexact: See `find_problem`.
    """
    passed_over: dict[str, str] = {}
    for checkpoint in checkpoint_files.list_checkpoints(output_dir):
        problem = why_not(checkpoint, allow_inexact)
        if problem is None and among is not None and checkpoint.name not in among:
            problem = "another node does not have it, or not completely, on its own disk"
        if problem is None:
            return _chosen(str(checkpoint), passed_over, allow_inexact)
        passed_over[str(checkpoint)] = problem
    return Choice(None, passed_over)


def _chosen(checkpoint: str, passed_over: dict[str, str], allow_inexact: bool) -> Choice:
    marker = checkpoint_files.read_marker(Path(checkpoint)) or {}
    inexact = checkpoint_files.find_problem(Path(checkpoint)) if allow_inexact else None
    return Choice(checkpoint, passed_over, bool(marker.get("ended", False)), inexact=inexact)


def checkpoint_at(run: Path, step: int) -> Path:
    """Finds the checkpoint of a run at a step.

    Args:
        run: The run's output folder.
        step: The step.

    Raises:
        ValueError: If there is none that is complete and intact; with the steps that have one.
    """
    found = [checkpoint for checkpoint in checkpoint_files.list_checkpoints(run) if why_not(checkpoint, False) is None]
    usable = {checkpoint_files.step_of(checkpoint): checkpoint for checkpoint in reversed(found)}
    if step not in usable:
        steps = f"at the steps {', '.join(map(str, sorted(usable)))}" if usable else "at no step"
        text = f"must be a step with a complete checkpoint: {run} has them {steps}, got {step}."
        raise wrong_value("at", text, found=step)
    return usable[step]


def why_not(checkpoint: Path, allow_inexact: bool) -> str | None:
    """Says why a run does not go on from a checkpoint of its own; `None` if it can."""
    problem = checkpoint_files.find_problem(checkpoint, allow_inexact)
    if problem is None and (checkpoint_files.read_marker(checkpoint) or {}).get("superseded", False):
        return "an earlier run in this folder saved it"
    return problem


def choose(
    output_dir: Path, requested: str | bool | None, among: Collection[str] | None = None, allow_inexact: bool = False
) -> Choice:
    """Chooses the checkpoint that was requested from `Trainer.train`.

    Args:
        output_dir: The run's output folder.
        requested: A checkpoint's folder, or `True` for the newest; `None` for the newest, if any.
        among: As for `newest_complete`.
        allow_inexact: See `find_problem`.

    Returns:
        The choice; its `error` is set if the request cannot be met.
    """
    if isinstance(requested, str):
        return _named(output_dir, requested, among, allow_inexact)
    choice = newest_complete(output_dir, among, allow_inexact)
    if choice.checkpoint is None:
        choice = _of_origin(output_dir, choice, allow_inexact) or _of_trainer(output_dir, choice)
    if choice.checkpoint is not None or choice.error is not None or requested is None:
        return choice
    wrong = "; ".join(f"{path}: {problem}" for path, problem in choice.passed_over.items())
    reason = f": no checkpoint there can be resumed from ({wrong})" if wrong else ""
    weights = "".join(checkpoint_files.from_weights(Path(path)) for path in list(choice.passed_over)[:1])
    return Choice(
        error=f"No valid checkpoint found in output directory ({output_dir}){reason}.{weights or _anew(output_dir)}"
    )


def _of_origin(output_dir: Path, choice: Choice, allow_inexact: bool) -> Choice | None:
    """Goes back to where the run began, which has no complete checkpoint of its own; `None` if it began anew."""
    origin = Origin.read(output_dir)
    if origin is None:
        return None
    found = _named(output_dir, str(checkpoint_files.whole(origin.checkpoint)), None, allow_inexact)
    if found.error is not None:
        reason = f"The run in {output_dir} began at {origin.checkpoint} and has no complete checkpoint of its own"
        return Choice(error=f"{reason}. {found.error}")
    return replace(found, passed_over=choice.passed_over, is_origin=True)


def _of_trainer(output_dir: Path, choice: Choice) -> Choice:
    """Takes the newest checkpoint of the plain Trainer, unless a run of this package has begun there since."""
    if (output_dir / "ledger").exists():
        return choice
    for checkpoint in checkpoint_files.list_checkpoints(output_dir):
        if checkpoint_files.is_of_trainer(checkpoint):
            if (lacking := trainer_files.find_lacking(checkpoint)) is None:
                return replace(choice, checkpoint=str(checkpoint), passed_over={})
            choice.passed_over[str(checkpoint)] = lacking
    return choice


def _named(output_dir: Path, requested: str, among: Collection[str] | None, allow_inexact: bool) -> Choice:
    """Takes the checkpoint that was named; says which others there are if it cannot be used."""
    checkpoint, origin = Path(requested), Origin.read(output_dir)
    if is_of_trainer := checkpoint_files.is_of_trainer(checkpoint):
        problem = trainer_files.find_lacking(checkpoint)
    else:
        problem = checkpoint_files.find_problem(checkpoint, allow_inexact)
    if problem is None:
        goes_back = (
            origin is not None
            and origin.is_fork
            and checkpoint_files.lasting(checkpoint.resolve()) == origin.checkpoint
        )
        choice = Choice(requested) if is_of_trainer else _chosen(requested, {}, allow_inexact)
        return replace(choice, parent=str(checkpoint.parent) if goes_back else None)
    others = [newest_complete(folder, among, allow_inexact).checkpoint for folder in (checkpoint.parent, output_dir)]
    other, replaced = next(filter(None, others), None), _of_replaced(checkpoint.parent)
    begin = f"{replaced}{checkpoint_files.from_weights(checkpoint) or _anew(output_dir)}"
    hint = (
        f"{'' if replaced else ' There is no other checkpoint beside it.'}{begin}"
        if other is None
        else f" The newest checkpoint that can be resumed from is {other}.{replaced}"
    )
    # A folder that is no checkpoint gets the Trainer's own message, which scripts may look for.
    is_ours = (checkpoint / checkpoint_files.MARKER_FILE).is_file()
    failed = f"Cannot resume from {requested}" if is_ours else f"Can't find a valid checkpoint at {requested}"
    return Choice(error=f"{failed}: {problem}.{hint}")


def _of_replaced(folder: Path) -> str:
    """Lists the checkpoints in a folder that are left of a run which a later one replaced; empty if there are none."""
    names = [
        found.name
        for found in reversed(checkpoint_files.list_checkpoints(folder))
        if (checkpoint_files.read_marker(found) or {}).get("superseded", False)
    ]
    if not names:
        return ""
    return (
        f" Beside it are {listed(first_of(names))}, of a run that a later one replaced: name one to go on from there."
    )


def _anew(output_dir: Path) -> str:
    """Says how to begin a new run, so that it replaces none."""
    elsewhere = ", with another output_dir" if checkpoint_files.list_checkpoints(output_dir) else ""
    return f" To begin a new run, call train() without resume_from_checkpoint{elsewhere}."
