"""Has Hugging Face data sets call users' functions in the thread that reads, where their random numbers are seeded.

Since version 5 they read several sources (interleaved ones, or the shards of a shuffled data set) in threads, ahead of
time: a random map below would draw from generators that are seeded for something else meanwhile, in no fixed order.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from datasets import iterable_dataset


class _OneThread(concurrent.futures.Executor):
    """Runs what is submitted at once."""

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
    """Reads that are begun inside call functions in the thread that reads.

    Yields:
        Nothing.
    """
    module: Any = iterable_dataset
    threads = getattr(module, "concurrent", None)
    if threads is None:  # a version that reads in one thread anyway
        yield
        return
    module.concurrent = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=_OneThread))
    try:
        yield
    finally:
        module.concurrent = threads


def nodes_of(dataset: Any) -> Iterator[Any]:
    """Walks through the steps that a data set consists of.

    Args:
        dataset: Any data set.

    Yields:
        The steps of a Hugging Face one, the last first.
    """
    yield from _below(getattr(dataset, "_ex_iterable", None))


def reads_sources(node: Any) -> bool:
    """Says whether a step reads several sources in turn.

    Args:
        node: The step.

    Returns:
        Whether it does.
    """
    return hasattr(node, "ex_iterables") or hasattr(node, "max_input_shards")


def calls_functions_in_threads(dataset: Any) -> bool:
    """Says whether a data set would call a user's function in other threads.

    Args:
        dataset: The data set.

    Returns:
        Whether a map, filter or generator stands below a step that reads several sources.
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
