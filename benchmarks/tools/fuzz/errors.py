"""Which errors users are promised: those of our own, with a message in words."""

import re

import yaml

_PROMISED = (ValueError, TypeError, OSError, yaml.YAMLError)
# What libraries say of their own doings.
_INTERNAL = re.compile(
    r"could not be broadcast|operands could not|inhomogeneous|cannot reshape|setting an array element|zero-size array"
    r"|object is not (subscriptable|iterable|callable)|unsupported operand|not supported between|unhashable type"
    r"|has no attribute|unexpected keyword|positional argument|dimensions? (must|except)|cannot convert float"
    r"|invalid literal for int|could not convert string|truth value|matmul|out of bounds|index out of|buffer size must"
    r"|not enough values|too many values|negative dimensions|Python int too large|maximum recursion"
    r"|cannot be interpreted as an integer|must be real number|list indices|string indices|argument of type"
)


def why_undocumented(error: BaseException) -> str | None:
    """Says what is wrong about an error.

    Args:
        error: What was raised.

    Returns:
        The reason; `None` for an error that users are promised. What was `damaged` names what, and why in brackets.
    """
    kind, message = type(error).__name__, str(error)
    if not isinstance(error, _PROMISED) or isinstance(error, UnicodeError):
        return f"{kind}: {message}"
    if not message.strip():
        return f"{kind} without a message"
    told = re.sub(
        r"(damaged|torn|missing|missing or torn|taken up|read|read as YAML)[:,]? ?\(.*\)", "", message, flags=re.DOTALL
    )
    found = _INTERNAL.search(told)
    return f"{kind} of a library: {message}" if found else None
