"""Errors of a part, told again with their place."""

import contextlib

import pytest

from mixer.tools.recipe.places import placed
from mixer.utils.errors import InvalidValueError, wrong_value


def _told(error: ValueError, places: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(placed(place))
        raise error


@pytest.mark.parametrize(
    ("error", "places", "told"),
    [
        (wrong_value("lora", "must be a mapping, got 3."), ["model"], "model.lora must be a mapping, got 3."),
        (ValueError("lora_alpha must be above 0"), ["model", "lora"], "model.lora: lora_alpha must be above 0"),
        (ValueError("modeling_x.py is missing"), ["model"], "model: modeling_x.py is missing"),
        (ValueError("model.lora: it has no layers"), ["model"], "model.lora: it has no layers"),
    ],
)
def test_a_place_is_told_once_and_is_no_part_of_a_word(error: ValueError, places: list[str], told: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _told(error, places)
    assert str(caught.value) == told
