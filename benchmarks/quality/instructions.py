"""Questions with answers, and texts, for `--model smollm2`: files of the data's folder and what is built in.

A question is what a user writes, an answer what the assistant does. Some answers have an exact check: `EXACT`.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.quality.data import labelled, read_text
from tasks import chats
from tasks.sources import clinc150
from tasks.text_domains import cpp_headers, python_source

Pair = tuple[str, str]  # a question, which is empty for a text, and its answer
_BUILT_IN = 900  # pairs that are read of what Python carries
_BLOCKS, _BYTES = 700, 320  # of code
_PARAGRAPH = range(200, 2_000)  # characters of a text


def last_number(answer: str) -> str:
    """Finds the number that an answer to a sum ends with; see GSM8K.

    Args:
        answer: The answer.

    Returns:
        What follows the last `####`, without commas; empty if there is none.
    """
    _, sign, number = answer.rpartition("####")
    return number.strip().replace(",", "") if sign else ""


def calls(answer: str) -> Any:
    """Reads calls of tools, for which the order of their arguments makes no difference.

    Args:
        answer: A call a line, as JSON.

    Returns:
        What the lines say; the answer itself if they are no JSON.
    """
    try:
        return [json.loads(line) for line in answer.strip().splitlines()]
    except ValueError:
        return answer


# What of two answers has to be equal. Code is left out: to check it would be to run what a model wrote.
EXACT: Mapping[str, Callable[[str], Any]] = {
    "gsm8k": last_number,
    "tool_calls": calls,
    **dict.fromkeys(("characters", "examples", "error_codes", "requests"), str.strip),
}


@cache
def pairs(name: str, folder: str | None) -> tuple[Pair, ...]:
    """Reads all pairs of a source.

    Args:
        name: One of `SOURCES`.
        folder: The data's folder; only what is built in needs none.

    Returns:
        The pairs, in the order of the files.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    return tuple(dict.fromkeys(SOURCES[name](Path(folder or "."))))


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = folder / "instruct" / name
    if not path.is_file():
        raise FileNotFoundError(f"{name} is missing under instruct/ of the data: give its folder, by --data-dir.")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)


def _gsm8k(folder: Path) -> Iterator[Pair]:
    return ((row["question"], row["answer"]) for row in _rows(folder, "gsm8k_train.jsonl.gz"))


def _gsm8k_number(folder: Path) -> Iterator[Pair]:
    return ((question, last_number(answer)) for question, answer in _gsm8k(folder))


def _mbpp(folder: Path) -> Iterator[Pair]:
    return ((row["text"], row["code"].replace("\r\n", "\n")) for row in _rows(folder, "mbpp.jsonl.gz"))


def _tool_calls(folder: Path) -> Iterator[Pair]:
    for row in _rows(folder, "tool_calls.jsonl.gz"):
        tools = [tool["function"] for tool in row["tools"]]
        names = "\n".join(f"{own['name']}({', '.join(own['parameters']['properties'])})" for own in tools)
        asked = next(turn["content"] for turn in reversed(row["messages"]) if turn["role"] == "user")
        made = [call["function"] for call in row["messages"][-1]["tool_calls"]]
        answer = [json.dumps({"name": own["name"], "arguments": json.loads(own["arguments"])}) for own in made]
        yield f"Tools:\n{names}\n\n{asked}", "\n".join(answer)


def _natural(file_name: str) -> Callable[[Path], Iterator[Pair]]:
    return lambda folder: ((row["input"], row["output"][0]) for row in _rows(folder, file_name))


def _instructions(folder: Path) -> Iterator[Pair]:
    for name in ("seed_tasks.jsonl", "user_instructions.jsonl"):
        for row in _rows(folder, name):
            own = row["instances"][0]
            yield f"{row['instruction']}\n{own['input']}".strip(), own["output"]


def _requests(third: int | None) -> Callable[[Path], Iterator[Pair]]:
    def found(folder: Path) -> Iterator[Pair]:
        for split in clinc150(folder / "clinc150"):
            names = split.features["label"].names
            for row in split:
                if third is None or row["label"] % 3 == third:
                    yield f"Which intent has this request?\n{row['text']}", names[row["label"]].replace("_", " ")

    return found


def _polarity(folder: Path) -> Iterator[Pair]:
    for label, text in labelled(folder, "mr"):
        yield f"Is this review positive or negative?\n{text}", ("negative", "positive")[label]


def _chats(read: Callable[..., chats.Rows], **count: int) -> Callable[[Path], Iterator[Pair]]:
    def found(_folder: Path) -> Iterator[Pair]:
        for row in read(**(count or {"num_samples": _BUILT_IN}))["train"]:
            question, answer = (turn["content"] for turn in row["messages"])
            yield question, answer

    return found


def _manual(_folder: Path) -> Iterator[Pair]:
    return (("", row["text"]) for row in chats.manual()["train"])


def _paragraphs(*names: str) -> Callable[[Path], Iterator[Pair]]:
    def found(folder: Path) -> Iterator[Pair]:
        for name in names:
            text = read_text(folder / "lm" / name)
            parts = text.split("\n\n" if "shakespeare" in name else "\n")
            yield from (("", part.strip()) for part in parts if len(part.strip()) in _PARAGRAPH)

    return found


def _code(read: Callable[..., Any]) -> Callable[[Path], Iterator[Pair]]:
    def found(_folder: Path) -> Iterator[Pair]:
        for block in read(_BLOCKS, 8, _BYTES)["train"].blocks.numpy():
            yield "", block.tobytes().decode(errors="ignore")

    return found


SOURCES: Mapping[str, Callable[[Path], Iterator[Pair]]] = {
    "gsm8k": _gsm8k,
    "gsm8k_number": _gsm8k_number,
    "mbpp": _mbpp,
    "tool_calls": _tool_calls,
    "common_sense": _natural("task024_cosmosqa_answer_generation.jsonl.gz"),
    "dialogue": _natural("task1729_personachat_generate_next.jsonl.gz"),
    "instructions": _instructions,
    "requests": _requests(None),  # of all intents, then of a third of them each
    **{f"requests_{third}": _requests(third) for third in range(3)},
    "polarity": _polarity,
    "docstrings": _chats(chats.docstrings),
    "examples": _chats(chats.examples),
    "characters": _chats(chats.characters),
    "error_codes": _chats(chats.error_codes, num_samples=80, num_validation_samples=20),
    "manual": _manual,
    "wikipedia": _paragraphs("wikitext2-valid.txt", "wikitext2-test.txt"),
    "shakespeare": _paragraphs("tinyshakespeare.txt"),
    "python": _code(python_source),
    "cpp": _code(cpp_headers),
}
