"""Recipes on files of one's own, from the command line: conversations, prompts and texts in one run."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from mixer import Ledger
from mixer.tools.analysis.fit.recipes import check_recipes
from mixer.tools.cli.entry import main
from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.recipe_files import differences
from tests.commands.recipes import LLAMA, RECIPE, ROOT, Runs, write_recipe
from tests.mixer.tools.recipe.small_tokenizers import byte_level

ONCE = {"max_steps": 3, "eval_steps": 3, "eval_on_start": False}


def write_data(folder: Path) -> None:
    turns = [[{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": f"yo {n}"}] for n in range(20)]
    rows = [json.dumps({"messages": turn, "source": "ab"[number % 2]}) for number, turn in enumerate(turns)]
    (folder / "chat.jsonl").write_text("\n".join(rows))
    sums = [{"question": f"{number}+{number}?", "answer": 2 * number} for number in range(30)]
    pd.DataFrame(sums[:20]).to_csv(folder / "sums-1.csv", index=False)
    pd.DataFrame(sums[20:]).to_csv(folder / "sums-2.csv", index=False)
    pd.DataFrame({"text": [f"document {number} says little" for number in range(30)]}).to_parquet(folder / "t.parquet")


def recipe_of(folder: Path) -> dict[str, Any]:
    held_out = {"validation": {"size": 0.2, "stratify_by": "source"}}
    form = {"class_path": "Prompt", "init_args": {"prompt": "{question}\n", "completion": "{answer}"}}
    return {
        "model": {"config": LLAMA, "lora": {"r": 2, "target_modules": ["q_proj"]}},
        "tokenizer": {
            "factory": "tests.mixer.tools.recipe.small_tokenizers.byte_level",
            "arguments": {"pad_token": None},
        },
        "streams": {
            "chat": {"data": {"path": str(folder / "chat.jsonl")}, "format": "Chat", "weight": 2.0, **held_out},
            "sums": {
                "data": {"path": str(folder / "sums-*.csv"), "split": "train[:20]"},
                "format": form,
                "validation": 4,
                "weight": 1.0,
                "max_epochs": 1,
            },
            "text": {
                "data": {"path": str(folder / "t.parquet"), "streaming": True},
                "format": {"class_path": "Text", "init_args": {"max_length": 32}},
                "weight": 1.0,
            },
        },
        "training": {**RECIPE["training"], **ONCE, "output_dir": str(folder / "run")},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        write_data(folder)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe_of(folder)))
        main(["train", str(folder / "recipe.yaml")])
    return folder


@pytest.fixture(autouse=True)
def _cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")


def test_streams_of_three_formats_train_together(folder: Path) -> None:
    counts = Ledger(folder / "run" / "ledger").to_pandas().groupby("stream")["count"].sum()
    assert counts.to_dict() == {"chat": 6, "sums": 3, "text": 3}
    assert sorted(Ledger(folder / "run" / "ledger").evaluations()["stream"]) == ["chat", "sums"]
    assert (folder / "run" / "adapter_model.safetensors").is_file()


def test_the_written_recipe_is_the_same_and_can_be_read_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = folder / "run" / "recipe.yaml"
    assert differences((folder / "recipe.yaml").read_text(), written.read_text()) == []
    changed = yaml.safe_load(written.read_text())
    changed["streams"]["sums"]["format"]["init_args"]["prompt"] = "{question} = "
    assert differences(written.read_text(), yaml.safe_dump(changed)) == ["streams.sums.format.init_args.prompt"]
    (folder / "other").mkdir()
    (folder / "other" / "recipe.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(ValueError, match=r"streams\.sums\.format\.init_args\.prompt"):
        check_recipes({"one": folder / "run", "two": folder / "other"}, allow_different=False)
    main(["train", str(written), "--dry_run", "--training.output_dir", str(folder / "dry")])
    assert list((folder / "dry").iterdir()) == []
    shown = capsys.readouterr().out
    assert "chat, first sample: <|im_start|>user" in shown
    assert "⟦0<|endoftext|>⟧" in shown
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row}
    assert rows["chat"] == ["16", "4", "30.0", "0.500", "no limit"]
    assert rows["sums"] == ["16", "4", "8.9", "0.250", "1 epoch"]
    assert rows["text"] == ["not known", "none", "32.0 (of the first)", "0.250", "no limit"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--streams.sums.data.path", "org/none"], "streams.sums.data: there is no file or folder '"),
        (["--streams.sums.format", "null"], "streams.sums.format is needed"),
        (["--streams.sums.data.validation_split", "train[20:]"], "streams.sums.validation stands beside"),
        (["--streams.text.validation", "0.1"], "streams.text.validation cannot be held out of streamed data"),
        (["--tokenizer", "null"], "streams.chat.format: Chat needs a tokenizer: give the recipe one"),
        (["--model.lora", '{"r": 2, "target_modules": ["nowhere"]}'], "model.lora: "),
    ],
)
def test_wrong_input_names_the_field(folder: Path, changes: list[str], message: str, refused: Runs) -> None:
    assert message in refused("train", folder / "recipe.yaml", "--overwrite", *changes)


PAGE = (ROOT / "docs" / "data.md").read_text()


@pytest.mark.full
def test_the_recipe_of_the_page_trains_and_its_python_runs(tmp_path, monkeypatch, printed, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    byte_level().save_pretrained("my-model")
    LlamaForCausalLM(LlamaConfig(**{**LLAMA, "max_position_embeddings": 128})).save_pretrained("my-model")
    for path in ("data/maths", "data/books"):
        Path(path).mkdir(parents=True)
    write_data(Path("data"))
    table = pd.DataFrame({"question": ["1+1?", "2+2?"] * 10, "answer": ["2", "4"] * 10, "level": ["low", "high"] * 10})
    table.to_csv("data/maths/sums.csv", index=False)
    for split in ("train", "test"):
        Path(f"data/books/{split}.txt").write_text("a line of some book\n" * 20)
    recipe, python, of_bytes = re.findall(r"<!-- \w+: \w+ -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    Path("recipe.yaml").write_text(recipe)
    Path("bytes.yaml").write_text(yaml.safe_dump({**yaml.safe_load(recipe), **yaml.safe_load(of_bytes)}))
    command = ["train", "recipe.yaml", "--training.use_cpu", "true", "--training.report_to", "none"]
    assert "maths, first sample: 1+1?\\n⟦2<|endoftext|>⟧" in printed("train", "bytes.yaml", *command[2:], "--dry_run")
    printed(*command, "--training.save_strategy", "no")
    assert Ledger(Path("run/ledger")).to_pandas()["count"].sum() == 16
    capsys.readouterr()
    exec(python, {"tokenizer": byte_level()})  # noqa: S102
    assert capsys.readouterr().out == "2<|endoftext|>\n"
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        check_fields(Recipe, yaml.safe_load(block))


def never(**_: object) -> None:
    """Fails: streams are built after the evaluation sets."""
    raise RuntimeError


def test_evaluation_sets_without_a_file_are_refused_before_streams_are_built(tmp_path, refused) -> None:
    streams = {"a": {"factory": f"{__name__}.never"}}
    recipe = write_recipe(tmp_path, mixing=None, streams=streams, evaluation={"held": {"data": {"path": "none.jsonl"}}})
    assert "none.jsonl" in refused("train", recipe)
    odd = tmp_path / "below" / "rows.odd"
    odd.parent.mkdir()
    odd.write_text("")
    recipe = write_recipe(tmp_path, mixing=None, streams=streams, evaluation={"held": {"data": {"path": str(odd)}}})
    assert str(odd) in refused("train", recipe)
