"""Scores of predicted texts against references, from 0 to 1: functions of `predictions` and `references`.

They are called as the metrics of the `evaluate` package are, so one of its functions does as well:
`evaluate.load("rouge").compute`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from mixer.utils.errors import InvalidTypeError, InvalidValueError

# Called by keyword, `score(predictions=..., references=...)`; gives a number, or a dict with one of the score's name.
TextScore = Callable[..., Any]


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    r"""Returns the share of predictions that equal their reference, but for white space at the ends.

    Example:
        >>> exact_match(["yes", " no\n"], ["no", "no"])
        0.5
    """
    return _mean(lambda text, reference: float(text.strip() == reference.strip()), predictions, references)


def first_word_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    r"""Returns the share of predictions whose first word equals that of the reference, as of a letter with a reason.

    Example:
        >>> first_word_match(["B\nbecause it floats", "A."], ["B\nbecause it is light", "B"])
        0.5
    """
    return _mean(lambda text, reference: float(_words(text)[:1] == _words(reference)[:1]), predictions, references)


def token_f1(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Returns the mean F1 of the words that prediction and reference have in common, in any order.

    Words are compared in lower case and without punctuation (Rajpurkar et al. 2016).

    Example:
        >>> round(token_f1(["the cat sat"], ["The cat."]), 2)
        0.8
    """

    def f1(text: str, reference: str) -> float:
        words = _words(text), _words(reference)
        return _f1(sum((Counter(words[0]) & Counter(words[1])).values()), *words)

    return _mean(f1, predictions, references)


def rouge_l(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Returns the mean ROUGE-L: F1 by the longest common subsequence of words (Lin 2004), compared as in `token_f1`.

    Example:
        >>> round(rouge_l(["the cat sat down"], ["down the cat"]), 2)
        0.57
    """

    def f1(text: str, reference: str) -> float:
        words = _words(text), _words(reference)
        return _f1(_common(*words), *words)

    return _mean(f1, predictions, references)


def edit_similarity(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Returns the mean similarity of characters: twice the longest common subsequence over both lengths.

    It is 1 less the number of insertions and deletions over both lengths: `fuzz.ratio` / 100, as for code completion
    (Lu et al. 2021).

    Example:
        >>> edit_similarity(["return x"], ["return y"])
        0.875
    """
    return _mean(lambda text, reference: _f1(_common(text, reference), text, reference), predictions, references)


def last_number_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Returns the share of predictions whose last number is that of the reference, as of GSM8K (Cobbe et al. 2021).

    Example:
        >>> last_number_match(["2 * 506 = 1,012 eggs.", "It is 4."], ["#### 1012", "#### 5"])
        0.5
    """
    return _mean(lambda text, reference: float(_last_number(text) == _last_number(reference)), predictions, references)


def json_lines_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Returns the share of predictions whose lines are the reference's as JSON, in any order, as calls of tools are.

    Example:
        >>> json_lines_match(['{"b": 2, "a": 1}', '{"a": 1}'], ['{"a": 1, "b": 2}', '{"a": 2}'])
        0.5
    """
    return _mean(lambda text, reference: float(_json_lines(text) == _json_lines(reference)), predictions, references)


_EXACT = (exact_match, first_word_match, last_number_match, json_lines_match)
TEXT_SCORES: Mapping[str, TextScore] = {
    function.__name__: function for function in (*_EXACT, token_f1, rouge_l, edit_similarity)
}


def score_texts(score: TextScore, name: str, predictions: Sequence[str], references: Sequence[str]) -> float:
    """Applies a score.

    Args:
        score: The function; see `TextScore`.
        name: Name of the score, for a function that returns several.
        predictions: The generated texts.
        references: The expected ones.

    Raises:
        ValueError: If it returns several scores, none of that name.
        TypeError: If it returns no number.
    """
    value = score(predictions=list(predictions), references=list(references))
    if isinstance(value, Mapping):
        if name not in value and len(value) != 1:
            raise InvalidValueError.about("score", f"{name} must give one of {sorted(value)} alone.")
        value = value[name] if name in value else next(iter(value.values()))
    if not isinstance(value, Real):
        raise InvalidTypeError.about("score", f"{name} must give a number or a dict of one, got {value!r}.")
    return float(value)


def _mean(score: Callable[[str, str], float], predictions: Sequence[str], references: Sequence[str]) -> float:
    pairs = list(zip(predictions, references, strict=True))
    return sum(score(*pair) for pair in pairs) / len(pairs) if pairs else float("nan")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _last_number(text: str) -> float | None:
    found = re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?", text)
    return float(found[-1].replace(",", "")) if found else None


def _json_lines(text: str) -> list[str]:
    return sorted(_as_json(line) for line in text.splitlines() if line.strip())


def _as_json(line: str) -> str:
    """Writes JSON in one way; leaves what is none as it is."""
    try:
        return json.dumps(json.loads(line), sort_keys=True)
    except ValueError:
        return line.strip()


def _f1(num_common: int, first: Sequence[Any], second: Sequence[Any]) -> float:
    """Returns the F1 of two sequences with so much in common; two empty ones are equal."""
    total = len(first) + len(second)
    return 2 * num_common / total if total else 1.0


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Returns the length of the longest common subsequence, a row of bits at a time (Hyyrö 2004)."""
    places: dict[Any, int] = {}
    for place, item in enumerate(first):
        places[item] = places.get(item, 0) | 1 << place
    row = full = (1 << len(first)) - 1
    for item in second:
        matched = row & places.get(item, 0)
        row = (row + matched | row - matched) & full
    return len(first) - row.bit_count()
