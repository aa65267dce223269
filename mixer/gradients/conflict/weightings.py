"""The weightings of the package `torchjd`: by name, or as given."""

import contextlib
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from mixer.gradients.conflict.bargaining import bargain

Weighting = Callable[[Tensor], Tensor]

# Named as in the papers; torchjd's class of weights, and what it has no default for. CAGrad's c is that of the authors'
# runs on NYU-v2 (github.com/Cranial-XIX/CAGrad, nyuv2/run.sh).
_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "pcgrad": ("PCGradWeighting", {}),
    "cagrad": ("CAGradWeighting", {"c": 0.4}),
    "mgda": ("MGDAWeighting", {}),
    "nash-mtl": ("NashMTL", {}),
    "upgrad": ("UPGradWeighting", {}),
}
NAMES = tuple(_CLASSES)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OF_SHAPE_ALONE = ("Mean", "Sum", "Constant", "Random")  # aggregators whose weights do not go by the gradients


def weighting_of(given: Any, options: Mapping[str, Any]) -> tuple[str, Weighting]:
    """Makes or finds what weighs gradients by their Gramian.

    Args:
        given: A name of `NAMES`, or an aggregator or a weighting of torchjd.
        options: What the class that a name stands for is made with.

    Returns:
        What it is called, and the weighting: of a Gramian `[num_present, num_present]`, giving `[num_present]`.

    Raises:
        ValueError: If there is none of that name, torchjd or a solver of it is not installed, or the aggregator needs
            more than the Gramian, or a state.
        TypeError: If it is something else.
    """
    if isinstance(given, str):
        name = known_name(given)
        return name, _made(name, dict(options))
    if inspect.isclass(given):
        raise TypeError(f"conflict is the class {given.__name__}; give an instance: conflict={given.__name__}(...).")
    name = type(given).__name__
    if options:
        raise ValueError(f"conflict: options are for names such as 'cagrad'; give them to {name}(...) itself.")
    return name, _taken(given)


def described(weighting: Weighting, options: Mapping[str, Any]) -> str:
    """Says what a weighting is and how it is set, in the same words however it was given.

    Args:
        weighting: What `weighting_of` gave.
        options: What it was given.

    Returns:
        Its name, and what it is set to.
    """
    settings, name = dict(options), "nash-mtl"  # whose solver is made anew in each step
    if isinstance(weighting, nn.Module):
        classes = {class_name: known for known, (class_name, _) in _CLASSES.items()}
        name, settings = type(weighting).__name__, {}
        name = classes.get(name, name)
        for module in weighting.modules():
            settings |= {key.lstrip("_"): value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
    written = ", ".join(f"{key}={_written(value)}" for key, value in sorted(settings.items()) if value is not None)
    return f"{name}({written})" if written else name


def _written(value: Any) -> str:
    """Writes a value without what differs from process to process."""
    if isinstance(value, Tensor):
        return str(value.tolist())
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def known_name(name: str) -> str:
    """Finds a name however it is cased, with `_`, `-` or none of them.

    Args:
        name: The name.

    Returns:
        The one of `NAMES`.

    Raises:
        ValueError: If there is none.
    """
    keys = {_key(known): known for known in NAMES}
    if _key(name) in keys:
        return keys[_key(name)]
    near = difflib.get_close_matches(_key(name), keys, n=1)
    hint = f" Did you mean {keys[near[0]]!r}?" if near else ""
    raise ValueError(f"conflict: no aggregator is called {name!r}; there are {list(NAMES)}.{hint}")


def _key(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _torchjd() -> Any:
    try:
        return importlib.import_module("torchjd.aggregation")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torchjd":
            raise
        raise ValueError(
            "conflict needs torchjd, which is not installed: pip install 'adaptive-mixer[conflict]'."
        ) from None


def _made(name: str, options: dict[str, Any]) -> Weighting:
    """Makes what a name stands for."""
    if name == "nash-mtl":
        return _bargaining(options)
    class_name, defaults = _CLASSES[name]
    with _explained(name, options):
        weighting: Weighting = getattr(_torchjd(), class_name)(**{**defaults, **options})
    return weighting


def _bargaining(options: dict[str, Any]) -> Weighting:
    """Makes the weighting of Nash-MTL: its solver is made anew for each step, and so has no state."""
    for option in sorted({"n_tasks", "max_norm", "update_weights_every"} & options.keys()):
        raise ValueError(
            f"conflict='nash-mtl': {option} is no option here: weights are found anew in each step, for the streams "
            "that are in it, and the length is that of the gradients. Leave it out."
        )
    torchjd = _torchjd()
    with _explained("nash-mtl", options):
        torchjd.NashMTL(n_tasks=2, max_norm=0, **options)

    def weigh(gramian: Tensor) -> Tensor:
        solver = torchjd.NashMTL(n_tasks=len(gramian), max_norm=0, **options)
        return bargain(solver, torchjd.MGDAWeighting(epsilon=1e-9, max_iters=1000), gramian)

    return weigh


@contextlib.contextmanager
def _explained(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"conflict={name!r} needs a solver that is not installed ({str(error).partition('. ')[0]}): pip install "
            "'adaptive-mixer[conflict-solvers]' (some of these packages are copyleft), or take 'pcgrad' or 'mgda', "
            "which need none."
        ) from None
    except TypeError as error:
        raise ValueError(f"conflict={name!r} cannot be made with the options {dict(options)}: {error}.") from None


def _taken(given: Any) -> Weighting:
    """Finds the weighting of what the user gives, which has to go by the Gramian and to remember nothing."""
    torchjd = _torchjd()
    name = type(given).__name__
    if not isinstance(given, (torchjd.Aggregator, torchjd.Weighting)):
        raise TypeError(f"conflict must be one of {list(NAMES)}, or an aggregator of torchjd, got {name}.")
    if any(isinstance(part, importlib.import_module("torchjd").Stateful) for part in given.modules()):
        hint = " Give conflict='nash-mtl', which starts anew in each step." if name == "NashMTL" else ""
        raise ValueError(
            f"conflict={name} remembers earlier gradients, which no checkpoint holds: the run would not go on as it "
            f"was. Take an aggregator without a state.{hint}"
        )
    if isinstance(given, torchjd.Weighting):
        found: Weighting = given
    elif isinstance(given, torchjd.GramianWeightedAggregator):
        found = given.gramian_weighting
    elif any(isinstance(given, getattr(torchjd, known)) for known in _OF_SHAPE_ALONE):
        found = given.weighting
    else:
        raise ValueError(
            f"conflict={name} needs the gradients whole, not only their products. Take an aggregator whose weights go "
            "by the Gramian (torchjd.aggregation.GramianWeightedAggregator), such as 'upgrad'."
        )
    return found
