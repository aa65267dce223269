"""Names of what trackers are told, and the description that they keep."""

import itertools
import re
from typing import Any

import pytest
import yaml

from mixer.ledger.trackers.adapters import MLflow
from mixer.ledger.trackers.tracked_settings import Names, config_of, evaluation_losses, grouped, redacted

DESCRIPTION: dict[str, Any] = {
    "version": "1",
    "mixing": {"class_path": "Uniform", "init_args": {}},
    "streams": [{"name": "a", "num_samples": 5, "weight": None}, {"name": "b|c", "num_samples": None, "weight": 0.25}],
}
SECRETS = "token hub_token HF_TOKEN tokens key api_key apiKey api-key apikey aws_secret password db_passwords"
SECRETS += " credentials accessToken secret_key Authorization"
NO_SECRETS = {"max_tokens": 512, "num_tokens": 1.5, "pad_token": "<pad>", "order_key": "length", "tokenizer": "gpt2"}
NO_SECRETS |= {"use_token": True, "monkeys": "a", "keys_per_row": 3, "path": "a:b@c"}


def test_entries_without_a_group_get_one_and_losses_of_evaluation_sets_are_found() -> None:
    entries = {
        "batch_size": 8,
        "train_coverage": 0.5,
        "loss/a": 1.0,
        "gradient_noise_scale": 0.1,
        "gradient_cosine/a/b": -0.5,
    }
    names = [
        "clock/batch_size",
        "clock/train_coverage",
        "loss/a",
        "mixture/gradient_noise_scale",
        "gradient_cosine/a/b",
    ]
    assert grouped(entries) == dict(zip(names, entries.values(), strict=True))
    logs = {"eval_a_loss": 1.0, "eval_b_c_loss": 2.0, "eval_loss": 3.0, "eval_worst_loss": 4.0, "eval_d_accuracy": 0.5}
    assert evaluation_losses(logs, {"a", "b_c", "d"}) == {"eval_loss/a": 1.0, "eval_loss/b_c": 2.0}


@pytest.mark.parametrize("refused", [r"[^-\w. ]", r"[^-/\w.]"])
def test_no_two_names_become_the_same(refused: str) -> None:
    names = Names(refused, longest=20)
    streams = ["a(b", "a[b", "a_b", "..", ".", "математика", "x" * 30, "x" * 31, "a_b_2"]
    given = [names.of(f"loss/{stream}") for stream in streams]
    assert len(set(given)) == len(given)
    assert all(len(name) <= 20 and name.startswith("loss/") for name in given)
    assert (given[0], given[5]) == ("loss/a_b", "loss/математика")
    assert "loss/.." not in given
    assert [names.of(f"loss/{stream}") for stream in streams] == given


def test_names_that_the_callback_of_mlflow_would_merge_are_told_apart() -> None:
    pytest.importorskip("mlflow", reason="the extra `trackers` is not installed")
    logs = {"eval_数学_loss": 1.0, "eval_英语_loss": 2.0, "eval_a(b_loss": 3.0, "eval_a[b_loss": 4.0, "loss": 5.0}
    told = MLflow(None).distinct_names(logs)
    merged = {re.sub(r"[^0-9A-Za-z_\-\.\ :/]", "_", name): value for name, value in told.items()}  # as it does
    assert list(merged.values()) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert merged["loss"] == 5.0


def test_secrets_are_hidden_at_any_depth_and_what_is_none_is_told() -> None:
    for name, value in itertools.product(SECRETS.split(), ("abc", ["abc"], {"deeper": "abc"}, 123)):
        settings = {"arguments": [{"storage": {name: value}}], "url": "s3://me:abc@host/data"}
        hidden = {"arguments": [{"storage": {name: "***"}}], "url": "s3://***@host/data"}
        if not (name == "tokens" and value == 123):  # a number of tokens
            assert redacted(settings) == hidden
        assert redacted({name: None}) == {name: None}
    assert config_of({**DESCRIPTION, **settings}, None)["mixture"]["url"] == "s3://***@host/data"
    assert redacted(NO_SECRETS) == NO_SECRETS
    recipe = yaml.safe_dump({"data": NO_SECRETS, "streams": {"a": {"api_key": "x"}}}, sort_keys=False)
    assert config_of(DESCRIPTION, recipe)["recipe"] == {"data": NO_SECRETS, "streams": {"a": {"api_key": "***"}}}


def test_a_run_without_a_recipe_is_described() -> None:
    config = config_of(DESCRIPTION, None)
    assert (config["recipe"], config["mixture"]["mixing"]["class_path"]) == (None, "Uniform")
    assert config["mixture"]["streams"]["b|c"] == {"num_samples": None, "weight": 0.25}
