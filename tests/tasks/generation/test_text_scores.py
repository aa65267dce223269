"""Scores of texts by hand, and against definitions that are slower."""

import functools
import math

import pytest
from hypothesis import given, strategies as st

from mixer.utils.errors import InvalidTypeError
from tasks.generation import (
    TEXT_SCORES,
    edit_similarity,
    exact_match,
    json_lines_match,
    last_number_match,
    rouge_l,
    score_texts,
    token_f1,
)
from tests.refusals import refused

TEXTS = st.lists(st.tuples(st.text("ab .", max_size=9), st.text("ab .", max_size=9)), min_size=1, max_size=4)


def longest_common(one: str, other: str) -> int:
    @functools.cache
    def of(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        return 1 + of(i + 1, j + 1) if one[i] == other[j] else max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@given(TEXTS)
def test_scores_lie_between_0_and_1_and_equal_texts_are_right(pairs: list[tuple[str, str]]) -> None:
    predictions, references = map(list, zip(*pairs, strict=True))
    for score in TEXT_SCORES.values():
        assert 0 <= score(predictions=predictions, references=references) <= 1
        assert score(predictions=predictions, references=predictions) == 1
    assert token_f1(predictions, references) >= rouge_l(predictions, references) >= 0
    similarity = [2 * longest_common(*pair) / len("".join(pair)) if "".join(pair) else 1 for pair in pairs]
    assert edit_similarity(predictions, references) == pytest.approx(sum(similarity) / len(pairs))


@pytest.mark.parametrize(
    ("text", "reference", "is_right"),
    [
        ("10 - 3 = 7, so she has 7.", "#### 7", True),
        ("It costs $1,250.50", "1250.5", True),
        ("between 10-12", "12", True),
        ("it fell to -3", "-3", True),
        ("it fell to -3", "3", False),
        ("seven", "7", False),
    ],
)
def test_the_last_number_is_the_answer(text: str, reference: str, is_right: bool) -> None:
    assert last_number_match([text], [reference]) == is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"name": "area", "arguments": {"b": [1, 2], "a": "x"}}\n{"name": "sum"}', True),
        ('{"name":"sum"}\n\n {"arguments": {"a":"x","b":[1,2]}, "name":"area"} \n', True),
        ('{"name": "area", "arguments": {"b": [2, 1], "a": "x"}}\n{"name": "sum"}', False),
        ('{"name": "sum"}', False),
        ('{"name": "sum"', False),
    ],
)
def test_calls_are_compared_as_json(text: str, is_right: bool) -> None:
    reference = '{"name": "area", "arguments": {"a": "x", "b": [1, 2]}}\n{"name": "sum"}\n'
    assert json_lines_match([text], [reference]) == is_right


def test_functions_in_the_manner_of_evaluate_are_scores() -> None:
    texts = ["a", "b"], ["a", "c"]
    assert score_texts(exact_match, "exact_match", *texts) == 0.5
    assert score_texts(lambda predictions, references: {"f1": 0.25, "rouge_l": 1}, "rouge_l", *texts) == 1.0
    assert score_texts(lambda *, predictions, references: {"f1": len(predictions)}, "any", *texts) == 2.0
    with refused("score"):
        score_texts(lambda predictions, references: {"a": 1, "b": 2}, "any", *texts)
    with refused("score", InvalidTypeError):
        score_texts(lambda predictions, references: "high", "any", *texts)
    assert math.isnan(exact_match([], []))
