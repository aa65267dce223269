"""Makes Hugging Face datasets call users' functions in the reading thread, whose random numbers are seeded.

Since version 5 they read several sources (interleaved datasets, or shards of a shuffled one) ahead in threads: a random
map below would draw, in no fixed order, from generators seeded for another row.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from datasets import iterable_dataset


class _OneThread(concurrent.futures.Executor):
    """Executor that runs each submitted call at once."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def in_one_thread() -> Iterator[None]:
    """Makes reads that start in the context call functions in the reading thread."""
    module: Any = iterable_dataset
    threads = getattr(module, "concurrent", None)
    if threads is None:  # this version of datasets reads in one thread
        yield
        return
    module.concurrent = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=_OneThread))
    try:
        yield
    finally:
        module.concurrent = threads


def nodes_of(dataset: Any) -> Iterator[Any]:
    """Yields the processing stages of a Hugging Face dataset, last first; nothing for other datasets."""
    yield from _below(getattr(dataset, "_ex_iterable", None))


def reads_sources(node: Any) -> bool:
    """Whether a processing stage reads several sources in turn."""
    return hasattr(node, "ex_iterables") or hasattr(node, "max_input_shards")


def calls_functions_in_threads(dataset: Any) -> bool:
    """Whether the dataset would call a user's function in other threads.

    True if a map, filter or generator precedes a stage that reads several sources.
    """
    sources = [node for node in nodes_of(dataset) if reads_sources(node)]
    return any(_calls_function(node) for source in sources for node in _below(source))


def _below(node: Any) -> Iterator[Any]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node is not None:
            yield node
            waiting += [getattr(node, "ex_iterable", None), *getattr(node, "ex_iterables", ())]


def _calls_function(node: Any) -> bool:
    generator = getattr(getattr(node, "generate_examples_fn", None), "__self__", None)
    return hasattr(node, "function") or type(generator).__name__ == "Generator"
