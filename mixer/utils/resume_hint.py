"""How an interrupted run is resumed, in the words of what was run: a command, or Python."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_HINT: ContextVar[str | None] = ContextVar("resume_hint", default=None)


def resume_hint() -> str:
    """Returns how to resume the present run, after "with"."""
    return _HINT.get() or "train(resume_from_checkpoint=True)"


@contextlib.contextmanager
def resumed_with(words: str) -> Iterator[None]:
    """Says how runs in the context are resumed, unless what they are part of has said it."""
    token = _HINT.set(_HINT.get() or words)
    try:
        yield
    finally:
        _HINT.reset(token)
