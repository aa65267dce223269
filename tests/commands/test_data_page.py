"""The examples of `docs/data.md` run as they stand there."""

import re
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from mixer import Ledger
from mixer.cli.entry import main
from mixer.recipe.fields import check_fields
from mixer.recipe.recipe import Recipe
from tests.commands.recipes import LLAMA
from tests.commands.test_data_cli import write_data
from tests.mixer.recipe.small_tokenizers import byte_level

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
QUIET = ["--training.use_cpu", "true", "--training.report_to", "none", "--training.save_strategy", "no"]


def example(name: str) -> str:
    (found,) = re.findall(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    byte_level().save_pretrained("my-model")
    LlamaForCausalLM(LlamaConfig(**{**LLAMA, "max_position_embeddings": 128})).save_pretrained("my-model")
    for path in ("data/maths", "data/books"):
        (tmp_path / path).mkdir(parents=True)
    write_data(tmp_path / "data")
    table = pd.DataFrame({"question": ["1+1?", "2+2?"] * 10, "answer": ["2", "4"] * 10, "level": ["low", "high"] * 10})
    table.to_csv("data/maths/sums.csv", index=False)
    for split in ("train", "test"):
        Path(f"data/books/{split}.txt").write_text("a line of some book\n" * 20)
    return tmp_path


def test_the_recipe_trains_and_the_python_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("recipe.yaml").write_text(example("recipe: mixture"))
    main(["train", "recipe.yaml", "--dry_run", *QUIET])
    assert "maths, first sample: 1+1?" in capsys.readouterr().out
    main(["train", "recipe.yaml", *QUIET])
    assert Ledger(Path("run/ledger")).to_pandas()["count"].sum() == 16
    capsys.readouterr()
    exec(example("python: formats"), {"tokenizer": byte_level()})  # noqa: S102
    assert capsys.readouterr().out == "2<|endoftext|>\n"


def test_all_fields_on_the_page_exist() -> None:
    blocks: list[Any] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(blocks) == 3
    for block in blocks:
        check_fields(Recipe, block)
