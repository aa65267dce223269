"""Rules made again from the data that describe them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from mixer.policies import Policy, policy_classes
from mixer.policies.registry import built_in_policies
from mixer.schedules import Schedule, schedule_classes
from mixer.utils.recorded_arguments import FLOAT, NO_DATA
from mixer.utils.validation import refusing_damage


def policy_from(data: Any) -> Policy:
    """Makes a policy of its description.

    Args:
        data: What `as_data` gave of one.

    Returns:
        A policy that was made with the same arguments.

    Raises:
        ValueError: If its class is not among those of `mixer policies`, or something in it is no data.
    """
    made = _make(data, _policy_class, "policy")
    if not isinstance(made, Policy):
        raise ValueError(f"a policy is needed, but what is described is {made!r}.")
    return made


def schedule_from(data: Any) -> Schedule:
    """Makes a batch-size schedule of its description.

    Args:
        data: What `as_data` gave of one.

    Returns:
        A schedule that was made with the same arguments.

    Raises:
        ValueError: If its class is not among those of `mixer schedules`, or something in it is no data.
    """
    made = _make(data, _schedule_class, "schedule")
    if not isinstance(made, Schedule):
        raise ValueError(f"a schedule is needed, but what is described is {made!r}.")
    return made


def _policy_class(path: str) -> type | None:
    """Finds a policy; other packages, which may take long to import, are loaded where this one has none of the name."""
    return _find(path, built_in_policies()) or _find(path, policy_classes())


def _schedule_class(path: str) -> type | None:
    return _find(path, schedule_classes())


def _find(path: str, classes: Mapping[str, type]) -> type | None:
    by_path = {f"{known.__module__}.{known.__qualname__}": known for known in classes.values()}
    return classes.get(path) or by_path.get(path)


def _make(data: Any, find: Callable[[str], type | None], kind: str) -> Any:
    """Makes what is described. Only known classes: a file that is read must not have any other one imported."""
    if isinstance(data, list):
        return [_make(part, find, kind) for part in data]
    if not isinstance(data, Mapping):
        return data
    if NO_DATA in data:
        raise ValueError(f"{data[NO_DATA]} was given to the {kind} and is no plain data, so that it was not recorded.")
    if list(data) == [FLOAT]:
        with refusing_damage(f"a number of the {kind}"):
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[data[FLOAT]]
    if "class_path" not in data:
        return {name: _make(part, find, kind) for name, part in data.items()}
    path = str(data["class_path"])
    found = find(path)
    if found is None:
        raise ValueError(
            f"{path} is no {kind} that is known here: `mixer {'policies' if kind == 'policy' else 'schedules'}` lists "
            "them. Classes of your own are known where their package registers them as an entry point."
        )
    with refusing_damage(f"the description of {path}"):
        return found(**_make(data.get("init_args") or {}, find, kind))
