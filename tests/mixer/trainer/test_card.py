"""The mixture card, against figures by hand."""

from pathlib import Path

import datasets
import pytest

from mixer.ledger.card import as_markdown, mixture_card
from tests.mixer.trainer.runs import train


def rows(count: int, **info: str) -> datasets.Dataset:
    """Rows of five tokens."""
    row = [1, 2, 3, 4, 5]
    return datasets.Dataset.from_dict(
        {"input_ids": [row] * count, "labels": [row] * count}, info=datasets.DatasetInfo(**info)
    )


def test_a_card_says_what_the_model_was_trained_on(tmp_path: Path) -> None:
    web = rows(20, license="cc-by-4.0", homepage="https://example.org/web", dataset_name="web-pages")
    held = {"web": rows(3), "same": web}
    streams = {"web": web, "code": rows(9), "left | out": rows(4)}
    options = {"train_dataset": streams, "eval_dataset": held, "mixing": {"web": 3, "code": 1, "left | out": 0}}
    trainer = train(tmp_path, seed=3, data_seed=5, learning_rate=0.0, **options)
    card = mixture_card(tmp_path)
    assert [card[name] for name in ("steps", "samples", "tokens", "seed", "data_seed")] == [3, 24, 120, 3, 5]
    own, code, out = card["sources"]
    figures = ("rows", "samples", "share", "tokens", "token_share", "passes", "rows_never_seen", "skipped")
    assert [own[name] for name in figures] == [20, 18, 0.75, 90, 0.75, 0.9, 2, 0]
    assert [code[name] for name in figures[:6]] == pytest.approx([9, 6, 0.25, 30, 0.25, 6 / 9])
    assert own["licence"] == "cc-by-4.0"
    assert own["origin"] == {"dataset_name": "web-pages", "homepage": "https://example.org/web"}
    assert own["fingerprint"] == web._fingerprint
    assert card["never_drawn"] == [out["name"]]
    assert [part["to_step"] for part in card["over_time"]] == [1, 2, 3]
    assert all(part["shares"]["web"] == 0.75 for part in card["over_time"])
    assert "'same'" in card["evaluated_on_training_rows"]
    trainer.create_model_card()
    trainer.create_model_card()  # replaces the section
    text = (tmp_path / "README.md").read_text()
    assert text.count(as_markdown(card)) == 1
    assert text.count("## Training data and its mixture") == 1
    assert "| cc-by-4.0 | dataset_name web-pages, homepage https://example.org/web |" in text
