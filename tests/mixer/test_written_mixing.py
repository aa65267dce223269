from mixer.recipe.written_mixing import mixing_of

WEIGHTS = {"math": 0.25, "code": 0.75}


def test_shares_of_tokens_are_written_as_such() -> None:
    assert mixing_of(WEIGHTS, "samples") == WEIGHTS
    assert mixing_of(WEIGHTS, "tokens") == {"class_path": "Fixed", "init_args": {"weights": WEIGHTS, "unit": "tokens"}}
