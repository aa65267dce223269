"""How an interrupted run is resumed, in the words of what was run: a command, or Python."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_WAY_ON: ContextVar[str | None] = ContextVar("way_on", default=None)


def way_on() -> str:
    """Returns how to resume the present run, after "with"."""
    return _WAY_ON.get() or "train(resume_from_checkpoint=True)"


@contextlib.contextmanager
def resumed_with(words: str) -> Iterator[None]:
    """Says how runs in the context are resumed, unless what they are part of has said it."""
    token = _WAY_ON.set(_WAY_ON.get() or words)
    try:
        yield
    finally:
        _WAY_ON.reset(token)
