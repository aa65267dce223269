"""Answers that a model generates to the prompts of a data set, and their scores against references."""

from tasks.generation.answers import generate_answers as generate_answers
from tasks.generation.text_scores import (
    TEXT_SCORES as TEXT_SCORES,
    TextScore as TextScore,
    edit_similarity as edit_similarity,
    exact_match as exact_match,
    first_word_match as first_word_match,
    json_lines_match as json_lines_match,
    last_number_match as last_number_match,
    rouge_l as rouge_l,
    score_texts as score_texts,
    token_f1 as token_f1,
)
