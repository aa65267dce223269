"""Options of policies and schedules, declared with their checks."""

from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin

from mixer.utils.errors import wrong_value


def check_options(rule: Any) -> None:
    """Checks the options of an object; `None` passes if it is the default.

    A `Literal` lists the valid values. `Annotated[type, check, *arguments]` calls `check(name, value, *arguments)`.

    Raises:
        ValueError: If a value is not valid; a check may raise other errors.
    """
    for option in fields(rule):
        value, kind = getattr(rule, option.name), option.type
        if value is None and option.default is None:
            continue
        if get_origin(kind) is Literal:
            check_choice(option.name, value, get_args(kind))
        elif get_origin(kind) is Annotated:
            check, *arguments = get_args(kind)[1:]
            check(option.name, value, *arguments)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuses a value that is none of two or more choices.

    Raises:
        ValueError: If it is another one.
    """
    if value not in choices:
        *most, last = map(repr, choices)
        raise wrong_value(name, f"must be {', '.join(most)} or {last}, got {value!r}.")
