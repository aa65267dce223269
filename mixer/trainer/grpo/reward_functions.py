"""Reward functions of single streams, as one list for TRL, which has each score all completions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name, is_async_callable

from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.text import did_you_mean, safe_names

STREAM = "stream"  # the column with the name of a row's stream, for reward functions

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class StreamReward:
    """A reward function that scores the completions of some streams; those of others have no reward from it.

    Args:
        function: The function.
        streams: Names of its streams.
    """

    def __init__(self, function: Callable[..., Any], streams: Sequence[str]):
        self._function, self._streams = function, frozenset(streams)
        self.__name__ = get_callable_name(function)

    def __call__(self, **columns: Any) -> list[Any]:
        """Scores completions as TRL asks for it: one number each, `None` for other streams."""
        places = self._places(columns)
        found = self._function(**self._part(columns, places)) if places else []
        return self._spread(columns, places, found)

    def _places(self, columns: Mapping[str, Any]) -> list[int]:
        return [place for place, name in enumerate(columns[STREAM]) if name in self._streams]

    def _part(self, columns: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
        """Returns the rows at some places; a column that none of them has is left out, as another stream's."""
        count, part = len(columns[STREAM]), {}
        for name, values in columns.items():
            is_column = isinstance(values, list) and len(values) == count
            part[name] = [values[place] for place in places] if is_column else values
            if is_column and all(value is None for value in part[name]):
                del part[name]
        self._check_columns(part)
        if "log_extra" in part:
            part["log_extra"] = partial(self._log, columns, places)
        return part

    def _check_columns(self, part: Mapping[str, Any]) -> None:
        own = inspect.signature(self._function).parameters.values()
        required = [one.name for one in own if one.default is one.empty and one.kind in _BY_NAME]
        if lacking := [name for name in required if name not in part]:
            text = (
                f"The reward function {self.__name__!r} of the streams {sorted(self._streams)} needs {lacking}, which"
            )
            text += f" no row of them has. There are {sorted(part)}."
            raise InvalidValueError(text, option="reward_funcs", found=lacking)

    def _log(self, columns: Mapping[str, Any], places: Sequence[int], name: str, values: Sequence[Any]) -> None:
        columns["log_extra"](name, self._spread(columns, places, values))

    def _spread(self, columns: Mapping[str, Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
        if len(values) != len(places):
            text = f"The reward function {self.__name__!r} returned {len(values)} rewards for {len(places)} completions"
            raise InvalidValueError(f"{text} of the streams {sorted(self._streams)}.", option="reward_funcs")
        whole: list[Any] = [None] * len(columns[STREAM])
        for place, value in zip(places, values, strict=True):
            whole[place] = value
        return whole


class AsyncStreamReward(StreamReward):
    """The same of a function that is awaited."""

    async def __call__(self, **columns: Any) -> list[Any]:  # type: ignore[override]  # TRL awaits it
        """Scores completions; see `StreamReward`."""
        places = self._places(columns)
        found = await self._function(**self._part(columns, places)) if places else []
        return self._spread(columns, places, found)


def as_one_list(rewards: Any, names: Sequence[str]) -> tuple[list[Any], list[frozenset[str]] | None]:
    """Makes one list of reward functions by stream.

    Args:
        rewards: A function or a list of them for each stream, by name; or what TRL takes, for all streams.
        names: Names of the streams.

    Returns:
        The functions, in the order in which they occur first, and the streams of each; `None` if all score all.

    Raises:
        ValueError: If a stream has no function, or a name is that of no stream.
        TypeError: If a function cannot be called.
    """
    if not isinstance(rewards, Mapping):
        return list(rewards) if isinstance(rewards, tuple) else rewards, None  # TRL takes lists only
    by_stream = {name: own if isinstance(own, list | tuple) else [own] for name, own in _named(rewards, names).items()}
    functions: list[Any] = []
    for name, own in by_stream.items():
        for function in own:
            if not (callable(function) or isinstance(function, str)) or inspect.isclass(function):
                expected, hint = "functions, reward models or their names", "An instance, not a class."
                raise InvalidTypeError(option="reward_funcs", stream=name, expected=expected, found=function, hint=hint)
            functions += [] if any(function is other for other in functions) else [function]
    of_each = [
        frozenset(name for name, own in by_stream.items() if any(function is one for one in own))
        for function in functions
    ]
    return [_wrapped(function, streams) for function, streams in zip(functions, of_each, strict=True)], of_each


def _named(rewards: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    own: dict[str, Any] = safe_names(rewards, "reward_funcs")
    unknown, missing = sorted(own.keys() - set(names)), [name for name in names if not own.get(name)]
    if unknown or missing:
        hint = "".join(did_you_mean(name, names) for name in unknown).strip() or None
        expected = f"a mapping with a function or more for each of the streams {[*names]}"
        raise InvalidValueError(option="reward_funcs", expected=expected, found=sorted(own), hint=hint)
    return own


def _wrapped(function: Any, streams: Sequence[str] | frozenset[str]) -> Any:
    if isinstance(function, nn.Module | str):  # a reward model scores all rows; those of others are left out after it
        return function
    kind = AsyncStreamReward if is_async_callable(function) else StreamReward
    return kind(function, sorted(streams))
