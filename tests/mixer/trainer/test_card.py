"""The mixture card, against figures by hand."""

from pathlib import Path

import datasets
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from mixer.ledger.card import as_markdown, mixture_card
from mixer.utils.files import read_json, write_json
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
    assert "| `cc-by-4.0` | `dataset_name web-pages, homepage https://example.org/web` |" in text


HOSTILE = ["![x](http:h.png)", "[y](http:h)", "<img src=h.png>", "a`b``c", "a\\|![z](http:h.png)", "`"]


def inline(text: str) -> list[Token]:
    """The inline parts of Markdown with tables, and its blocks of HTML."""
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    return [token for block in blocks for token in (block, *(block.children or ()))]


def test_no_text_of_data_or_of_the_folder_becomes_a_link_an_image_or_html(tmp_path: Path) -> None:
    streams = {name: rows(4, license=name, homepage=name) for name in HOSTILE}
    held = {name: rows(2) for name in HOSTILE}
    trainer = train(tmp_path, train_dataset=streams, eval_dataset=held, eval_strategy="steps", eval_steps=2)
    described = {"development_rows": HOSTILE, "forked_at": 1}
    for name in ("evaluated_on_training_rows", "seed", "data_seed", "objective", "mixing", "parent"):
        described[name] = HOSTILE[2]
    content = read_json(tmp_path / "ledger" / "ledger.json")
    write_json(tmp_path / "ledger" / "ledger.json", {**content, "run": {**content["run"], **described}})
    trainer.create_model_card()
    tokens = inline((tmp_path / "README.md").read_text().partition("unknown dataset")[2])
    assert {token.type for token in tokens}.isdisjoint(("link_open", "image", "html_inline", "html_block"))
    shown = [token.content.replace(r"\\", "\\") for token in tokens if token.type == "code_inline"]
    assert min(shown.count(name) for name in HOSTILE) == 3  # as source, licence and in time
