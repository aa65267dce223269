"""Streams named by numbers, or as data sets of the hub are: what is logged and written has a safe form."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import Tokens
from tests.mixer.trainer.runs import logged, make, train

SETS: dict[Any, Any] = {"org/a": Tokens(6, 1), 7: Tokens(6, 2), "naïve b": Tokens(6, 3)}
BY_NAME: dict[Any, float] = {7: 2, "org/a": 1, "naïve b": 1}


def test_options_by_name_take_the_given_names_and_logs_have_the_safe_ones(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3, "eval_weights": BY_NAME, "objective": ["org/a", 7]}
    trainer = train(tmp_path, train_dataset=SETS, mixing=BY_NAME, eval_dataset=SETS, save_best_of_each=True, **options)
    assert trainer.mixing.weights == {"org--a": 0.25, "7": 0.5, "naïve b": 0.25}
    assert all(logged(trainer, key) for key in ("loss/org--a", "eval_org--a_loss", "eval_7_loss"))
    assert set(trainer.ledger.to_pandas()["stream"]) == {"org--a", "7", "naïve b"}
    trainer.mixing.set_weights({"org/a": 1, "7": 1, "naïve b": 2})
    assert trainer.mixing.weights["org--a"] == 0.25


@pytest.mark.parametrize("names", [("a/b", "a--b"), (1, "1")])
@pytest.mark.parametrize("option", ["train_dataset", "eval_dataset"])
def test_names_of_one_safe_form_are_refused(tmp_path: Path, names: tuple[Any, Any], option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: {names[0]!r} and {names[1]!r} are both {str(names[1])!r}"):
        make(tmp_path, **{option: dict.fromkeys(names, Tokens(4, 1))})
