"""Domains of real text as tasks for a byte-level language model; nothing is downloaded."""

from collections.abc import Sequence

from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count
from tasks.sequences.parts import listed
from tasks.task import Task, TaskSequence
from tasks.text_domains import cpp_headers, english_docstrings, python_source

_DOMAINS = {
    "python": (python_source, "Python source code"),
    "cpp": (cpp_headers, "C++ headers"),
    "english": (english_docstrings, "English docstrings"),
}


def text_domains(
    num_samples: int = 2_000,
    num_evaluation_samples: int = 100,
    block_length: int = 128,
    *,
    order: Sequence[str] = ("python", "cpp", "english"),
) -> TaskSequence:
    """Makes one task of each domain of `tasks.text_domains`: Python, C++ and English.

    Samples are blocks of bytes for a causal language model with a vocabulary of 256: `input_ids` and equal `labels`,
    int64 `[block_length]`. Tasks have no classes; other files are evaluated on than are trained on.

    Args:
        num_samples: Blocks of a task for training.
        num_evaluation_samples: Blocks of a task for evaluation.
        block_length: Bytes of a block.
        order: The domains, in the order of the tasks; some can be left out.

    Returns:
        The sequence, domain-incremental.

    Raises:
        ValueError: If there is less text than that, no such domain, or a size is no whole number.
    """
    check_count("text_domains: num_samples", num_samples, 1, "2000 train a small model for some seconds")
    check_count("text_domains: num_evaluation_samples", num_evaluation_samples, 1, "100 give a loss to two digits")
    check_count("text_domains: block_length", block_length, 2, "each byte is predicted from those before")
    names = listed("text_domains: order", order, str(list(_DOMAINS)))
    if not names or len(set(names)) < len(names) or not set(names) <= set(_DOMAINS):
        raise InvalidValueError.about("order", f"must name some of {list(_DOMAINS)}, each once, got {names}.")

    def make(name: str) -> Task:
        read, description = _DOMAINS[name]
        parts = read(num_samples, num_evaluation_samples, block_length)
        return Task(name, parts["train"], parts["validation"], description=description)

    return TaskSequence(tuple(make(name) for name in names), "domain")
