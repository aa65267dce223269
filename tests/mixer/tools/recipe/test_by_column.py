"""`data.by`: one source of a recipe as a stream of each value of a column."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from mixer.tools.recipe.data import DataSource
from mixer.tools.recipe.data.formats import Text
from mixer.tools.recipe.streams import StreamRecipe
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.refusals import refused

TEXTS = {"web": 6, "books": 3, "odd": 1}


@pytest.fixture
def path(tmp_path: Path) -> str:
    rows = [{"source": name, "text": f"{name} {number}"} for name, count in TEXTS.items() for number in range(count)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "rows.jsonl")


def _texts(dataset: Any, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return [tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in dataset]


def test_each_value_is_a_stream_with_its_rows_and_the_options(path: str) -> None:
    tokenizer = byte_level()
    recipe = StreamRecipe(data=DataSource(path, by="source", min_samples=2), format=Text(pack=False), max_epochs=2)
    built = recipe.build_all("corpus", tokenizer)
    assert {name: len(part.stream.dataset) for name, part in built.items()} == {"web": 6, "books": 3, "rare": 1}
    assert {part.stream.max_epochs for part in built.values()} == {2}
    assert _texts(built["books"].stream.dataset, tokenizer) == ["books 0", "books 1", "books 2"]


def test_held_out_rows_and_shares_of_rows_are_of_each_value(path: str) -> None:
    recipe = StreamRecipe(
        data=DataSource(path, by="source", values=["web", "books"]),
        format=Text(pack=False),
        validation=0.2,
        rows_share=0.5,
    )
    built = recipe.build_all("corpus", byte_level())
    held = {name: len(part.evaluation) for name, part in built.items() if part.evaluation is not None}
    for name, part in built.items():
        assert len(part.stream.dataset) == round(0.5 * (TEXTS[name] - held.get(name, 0)))


def test_streamed_rows_are_read_by_each_value(path: str) -> None:
    tokenizer = byte_level()
    recipe = StreamRecipe(
        data=DataSource(path, streaming=True, by="source", values=["books", "odd"]), format=Text(pack=False)
    )
    built = recipe.build_all("corpus", tokenizer)
    assert {name: _texts(part.stream.dataset, tokenizer) for name, part in built.items()} == {
        "books": ["books 0", "books 1", "books 2"],
        "odd": ["odd 0"],
    }


def test_what_is_no_stream_or_has_no_such_column_is_refused(path: str) -> None:
    with refused("evaluation.held.data.by", found="source"):
        StreamRecipe(data=DataSource(path, by="source")).build("held", field="evaluation")
    with refused("streams.corpus.data.by", found="language"):
        StreamRecipe(data=DataSource(path, by="language"), format=Text()).build_all("corpus", byte_level())
    with refused("by"):
        DataSource(path, values=["web"])
