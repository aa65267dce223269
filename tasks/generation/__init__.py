"""Answers that a model generates to the prompts of a data set, and their scores against references."""

from tasks.generation.answers import generate_answers
from tasks.generation.text_scores import (
    TEXT_SCORES,
    TextScore,
    edit_similarity,
    exact_match,
    first_word_match,
    rouge_l,
    score_texts,
    token_f1,
)

__all__ = [
    "TEXT_SCORES",
    "TextScore",
    "edit_similarity",
    "exact_match",
    "first_word_match",
    "generate_answers",
    "rouge_l",
    "score_texts",
    "token_f1",
]
