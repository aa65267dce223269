"""Methods of continual learning by name: what each needs, as changes of a recipe, and which strengths are tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from jsonargparse import Namespace

from mixer.tools.recipe.streams import named
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import did_you_mean
from replay.selection import selection_classes

Strengths = Mapping[str, float]
_OF_A_METHOD = ("nearest-mean", "method")  # scores that another method does not have


@dataclass(frozen=True)
class SetUp:
    """What a method needs of a run.

    Args:
        method: Dotted name of its class; `None` for none.
        arguments: Arguments of the class.
        replays: Whether it needs the recipe's memory; false leaves the memory out, and `None` leaves it as it is.
        memory: Arguments of the memory that differ from the recipe's.
        changes: Other fields of the recipe, such as `training.max_steps`.
        grid: Values of its strengths that are tried, by argument.
    """

    method: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    replays: bool | None = False
    memory: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def candidates(self) -> list[Strengths]:
        """All combinations of the grid's values; one without any if there is no grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def changed(self, config: Namespace, strengths: Strengths) -> Namespace:
        """Returns the recipe with the method in place of its own.

        Args:
            config: The recipe.
            strengths: Arguments of the method, and fields of the recipe (with a dot in their names).

        Raises:
            ValueError: If the recipe has no memory and the method replays, or a strength is of nothing.
        """
        config = config.clone()
        fields = {**self.changes, **{name: value for name, value in strengths.items() if "." in name}}
        own = {name: value for name, value in strengths.items() if "." not in name}
        if own and self.method is None:
            raise wrong_value("--grid", f"names {list(own)}, but this method has no arguments.", found=list(own))
        arguments = Namespace(**{**self.arguments, **own})  # type: ignore[no-untyped-call]
        method = Namespace(class_path=self.method, init_args=arguments)  # type: ignore[no-untyped-call]
        config.methods = [] if self.method is None else [method]
        if self.replays is not None:
            config.second_draw = None
        if self.replays is False:
            config.memory = config.mixing = None
        elif config.memory is None and (self.replays or self.memory):
            raise wrong_value("memory", "must be given, such as {factory: replay.ReplayBuffer, arguments: {...}}.")
        if self.memory:
            config.memory.arguments = {**config.memory.arguments, **self.memory}
        if config.score in _OF_A_METHOD:
            config.score = None
        for name, value in fields.items():
            if name not in config:
                raise wrong_value("--grid", f"names {name!r}, which is no field of the recipe.", found=name)
            config[name] = value
        return config


# `er-class-balanced` is of `ClassBalanced`.
SELECTIONS = {
    "er-" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-"): kind
    for name, kind in selection_classes().items()
}
SET_UPS = {
    "finetune": SetUp(),
    "joint": SetUp(changes={"joint": True}),
    "er": SetUp(replays=True),
    **{
        name: SetUp(
            replays=True, memory={"selection": kind.__name__, **({"is_online": False} if kind.is_by_task else {})}
        )
        for name, kind in SELECTIONS.items()
    },
    "er-ace": SetUp("tasks.methods.ERACE", replays=True),
    "agem": SetUp("replay.AGEM", replays=True),
    "der": SetUp("replay.DER", replays=True, grid={"alpha": (0.1, 0.3, 1.0)}),
    "derpp": SetUp(
        "replay.DERPlusPlus",
        {"second": "again"},
        replays=True,
        changes={"second_draw": "again"},
        grid={"alpha": (0.1, 0.3, 1.0), "beta": (0.5, 1.0)},
    ),
    "cls-er": SetUp(
        "tasks.methods.CLSER",
        {"stable_rate": 0.7},
        replays=True,
        changes={"score": "method"},
        grid={"strength": (0.1, 0.5), "decay": (0.99, 0.999)},
    ),
    "icarl": SetUp(
        "tasks.methods.ICaRL",
        {"temperature": 2.0},
        replays=True,
        memory={"selection": "Herding", "is_online": False},
        changes={"score": "nearest-mean", "optimizer": "kept"},
    ),
    "lamol": SetUp("tasks.methods.PseudoSamples", replays=True, memory={"is_online": False}),
    "lwf": SetUp("tasks.methods.LwF", grid={"strength": (0.3, 1.0, 4.0, 16.0)}),
    "online-ewc": SetUp("tasks.methods.OnlineEWC", grid={"strength": (1.0, 1e2, 1e4, 1e6)}),
    "si": SetUp("tasks.methods.SI", grid={"strength": (0.1, 1.0, 10.0, 100.0)}),
    "merge-average": SetUp("tasks.methods.Merging"),
    "merge-ties": SetUp("tasks.methods.Merging", {"rule": "ties", "start": "initial"}),
    "o-lora": SetUp("tasks.methods.OLoRA", grid={"weight": (0.1, 0.5, 5.0)}),
    "inf-lora": SetUp("tasks.methods.InfLoRA"),
    "l2p": SetUp("tasks.methods.L2P", changes={"head": "masked"}),
    "dual-prompt": SetUp("tasks.methods.DualPrompt", changes={"head": "masked"}),
    "coda-prompt": SetUp("tasks.methods.CODAPrompt", changes={"head": "masked"}),
    "ran-pac": SetUp("tasks.methods.RanPAC", changes={"score": "method", "training.max_steps": 1}),
    "slca": SetUp("tasks.methods.SLCA", changes={"score": "method"}),
}


def set_ups_of(names: str, grid: Sequence[str] = ()) -> dict[str, SetUp]:
    """Returns the methods of a list.

    Args:
        names: Their names, with commas between them; `FILE.py:NAME` is a class, or a `SetUp`, of a file beside the
            recipe, and is called `NAME`.
        grid: Values to try in place of a method's own: `NAME.ARGUMENT=VALUE,VALUE`.

    Raises:
        ValueError: If a name is unknown or comes twice, or the grid cannot be read.
    """
    found: dict[str, SetUp] = {}
    for written in map(str.strip, names.split(",")):
        name = written.rpartition(":")[2]
        if name in found:
            raise wrong_value("methods", f"must differ, but {name!r} comes twice.", found=names)
        found[name] = _own(written) if ":" in written else _known(written)
    changes: dict[str, dict[str, tuple[float, ...]]] = {}
    for written in grid:
        name, argument, values = _in_grid(written, found)
        changes.setdefault(name, {})[argument] = values
    return {name: replace(own, grid={**own.grid, **changes.get(name, {})}) for name, own in found.items()}


def _known(name: str) -> SetUp:
    if name not in SET_UPS:
        known = f"some of {', '.join(SET_UPS)}, or FILE.py:CLASS of a file beside the recipe"
        raise InvalidValueError(
            option="methods", expected=known, found=name, hint=did_you_mean(name, SET_UPS).strip() or None
        )
    return SET_UPS[name]


def _own(written: str) -> SetUp:
    file, _, name = written.partition(":")
    dotted = f"{file.removesuffix('.py').replace('/', '.')}.{name}"
    found = named("methods", dotted)
    if isinstance(found, SetUp):
        return found
    return SetUp(dotted, replays=None, changes={"score": "method"} if hasattr(found, "score") else {})


def _in_grid(written: str, known: Mapping[str, SetUp]) -> tuple[str, str, tuple[float, ...]]:
    place, _, values = written.partition("=")
    name, _, argument = place.partition(".")
    if name not in known or not argument:
        expected = f"NAME.ARGUMENT=VALUE,VALUE with a name of {list(known)}"
        raise InvalidValueError(option="--grid", expected=expected, found=written)
    try:
        numbers = tuple(int(value) if value.isdigit() else float(value) for value in values.split(","))
    except ValueError:
        raise InvalidValueError(option="--grid", expected="numbers after '='", found=written) from None
    if len({f"{number:g}" for number in numbers}) < len(numbers):  # each has a folder of that name
        raise InvalidValueError(option="--grid", expected="numbers that differ in six digits", found=written)
    return name, argument, numbers
