"""`mixer new`: from files to a recipe that trains, with each guess in words."""

import csv
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from mixer.tools.cli.entry import main
from mixer.tools.recipe.first_recipe import as_yaml, first_recipe
from mixer.tools.recipe.looking import Choice, look_at
from tests.commands.recipes import LLAMA, Runs
from tests.mixer.tools.recipe.small_tokenizers import byte_level

TURNS = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Three."}]
ROWS = [{"messages": TURNS, "score": number} for number in range(50)]
SHORT = ["--training.max_steps", "3", "--training.eval_steps", "3", "--training.use_cpu", "true"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, max_position_embeddings=512))
    for part in (model, byte_level()):
        part.save_pretrained("model")
    Path("chats.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    with Path("reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "label"), *[(f"film {number}", ["bad", "good"][number % 2]) for number in range(60)]]
        )
    Path("docs").mkdir()
    for number in range(3):
        Path("docs", f"{number}.txt").write_text(f"Page {number}.\n\nIts end.\n" * 40)
    return tmp_path


def test_files_become_a_recipe_that_trains_and_a_script_that_does_the_same(folder: Path, printed: Runs) -> None:
    command = ["new", "chats.jsonl", "reviews.csv", "docs", "--model", "model"]
    said = json.loads(printed(*command, "--json"))
    assert (said["output"], said["is_accepted"], list(said["streams"])) == (
        "recipe.yaml",
        True,
        ["chats", "reviews", "docs"],
    )
    text = Path("recipe.yaml").read_text()
    recipe = yaml.safe_load(text)
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    assert json.loads(Path("recipe.schema.json").read_text())["title"] == "Recipe"
    streams = recipe["streams"]
    assert streams["chats"] == {
        "data": {"path": "chats.jsonl", "columns": ["messages"]},
        "format": "Chat",
        "validation": 0.1,
    }
    assert streams["reviews"]["format"]["init_args"] == {"prompt": "{text}\n", "completion": "{label}"}
    assert streams["docs"]["data"] == {"path": "docs", "rows": "document"}
    assert "objective" not in recipe
    for guess in ("Guess: without score.", "Or Labelled {text: text, label: label}", "Left open"):
        assert guess in text
    main(["train", "recipe.yaml", *SHORT])
    printed(*command, "--python")
    script = runpy.run_path("train.py")["recipe"]
    for name, value in (("max_steps", 3), ("eval_steps", 3), ("use_cpu", True)):
        setattr(script.training, name, value)
    trainer = script.build()
    trainer.train()
    mine, theirs = (_losses(Path(str(run))) for run in (trainer.args.output_dir, "runs/recipe"))
    assert mine == pytest.approx(theirs)
    assert len(mine) >= 2


def _losses(run: Path) -> list[float]:
    from mixer import Ledger

    table = Ledger(run / "ledger").to_pandas()
    losses: list[float] = table["loss"].dropna().tolist()
    return losses


def test_labels_alone_are_classified_with_a_head_for_each_set_of_labels(folder: Path, printed: Runs) -> None:
    rows = [{"sentence": f"line {number}", "category": f"kind {number % 3}"} for number in range(30)]
    Path("kinds.jsonl").write_text("\n".join(map(json.dumps, rows)))
    printed("new", "reviews.csv", "--model", "model", "--objective", "reviews")
    recipe = yaml.safe_load(Path("recipe.yaml").read_text())
    assert recipe["model"] == {"task": "sequence-classification", "config": {"num_labels": 2}, "name_or_path": "model"}
    assert (recipe["objective"], recipe["mixing"]) == ({"targets": ["reviews"], "development_share": 0.25}, "auto")
    printed("new", "reviews.csv", "kinds.jsonl", "--model", "model", "--output", "two.yaml")
    recipe = yaml.safe_load(Path("two.yaml").read_text())
    assert recipe["model"]["heads"] == {"reviews": {"num_labels": 2}, "kinds": {"num_labels": 3}}
    assert "validation" not in recipe["streams"]["kinds"]  # too few rows


def test_splits_of_a_folder_are_found(folder: Path) -> None:
    Path("parts").mkdir()
    for name in ("train", "dev", "test"):
        Path("parts", f"{name}.jsonl").write_text(json.dumps({"question": "a", "answer": "b"}))
    look = look_at("parts")
    assert look.splits[0] == "train"
    assert {*look.splits} == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("row", "choices"),
    [
        ({"input_ids": [1, 2]}, [""]),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, ["Chat"]),
        ({"instruction": "a", "input": "b", "output": "c"}, ["Prompt", "Prompt", "Text", "Text", "Text"]),
        ({"id": "abcdefghij", "body": "a long text", "title": "a"}, ["Text", "Text"]),
        ({"text": "a", "label": 1}, ["Labelled", "Prompt", "Text"]),
        ({"text": "a", "labels": [1, 2]}, ["Text"]),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, ["Prompt", "Text", "Text", "Text"]),
    ],
)
def test_formats_are_found_by_columns_the_likeliest_first(
    folder: Path, row: dict[str, Any], choices: list[str]
) -> None:
    Path("rows.jsonl").write_text("\n".join([json.dumps(row)] * 4))
    found = look_at("rows.jsonl").choices
    assert [choice.format for choice in found] == choices
    if "instruction" in row:
        assert found[0].arguments == {"prompt": "{instruction}\n{input}\n", "completion": "{output}"}
    if "body" in row:
        assert found[0] == Choice("Text", {"column": "body"}, found[0].why)


def test_names_that_yaml_reads_as_something_else_stay_names(folder: Path) -> None:
    for name in ("2024", "yes"):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    recipe = first_recipe({name: look_at(f"{name}.jsonl") for name in ("2024", "yes")}, "model", None, "runs/recipe")
    assert [*yaml.safe_load(as_yaml(recipe, []))["streams"]] == ["2024", "yes"]


def test_the_schema_beside_a_recipe_is_no_data(folder: Path) -> None:
    Path("docs", "recipe.schema.json").write_text("{}")
    assert look_at("docs").columns == ["text"]


def _unlike(folder: Path) -> None:
    (folder / "mixed").mkdir()
    (folder / "mixed" / "a.csv").write_text("text,label\na,b\n")
    (folder / "mixed" / "b.csv").write_text("question,answer\na,b\n")


@pytest.mark.parametrize(
    ("path", "make", "told"),
    [
        ("missing.jsonl", lambda folder: None, "there is no file or folder"),
        ("empty.jsonl", lambda folder: (folder / "empty.jsonl").write_text(""), "there are no rows"),
        ("image.png", lambda folder: (folder / "image.png").write_bytes(b"\x89PNG\x00"), "is of no known format"),
        ("binary.csv", lambda folder: (folder / "binary.csv").write_bytes(b"\x89PNG\x00\xff"), "is not UTF-8"),
        ("mixed", _unlike, "the columns of"),
        ("numbers.jsonl", lambda folder: (folder / "numbers.jsonl").write_text('{"a": 1}'), "none has texts"),
        ("numbers.csv", lambda folder: (folder / "numbers.csv").write_text("a,label\n1.5,0\n2,1\n"), "none has texts"),
        ("../chats.jsonl", lambda folder: None, "no file or folder"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_written(
    path: str, make: Callable[[Path], Any], told: str, folder: Path, refused: Callable[..., str]
) -> None:
    make(folder)
    assert told in refused("new", path, "--model", "model")
    assert not Path("recipe.yaml").exists()


def test_a_recipe_that_the_dry_run_refuses_is_written_and_the_reason_told(folder: Path, capsys) -> None:
    Path("model", "tokenizer.json").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["new", "docs", "--model", "model"])
    assert ended.value.code == 3
    assert "tokenizer: " in (said := " ".join(capsys.readouterr().err.split()))
    assert "The dry run refuses it" in said
    with pytest.raises(SystemExit) as ended:
        main(["new", "docs", "--model", "model"])
    assert ended.value.code == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--objective", "review", "must be one of chats, reviews, average and worst, got 'review'. Did you mean"),
        ("--model", "absent", "there is no folder"),
        ("--model", "tasks.sources.smollm", "'tasks.sources.smollm' cannot be found"),
    ],
)
def test_wrong_names_are_refused_before_data_are_read(
    option: str, value: str, told: str, folder: Path, refused: Callable[..., str]
) -> None:
    Path("chats.jsonl").write_text("")  # which would be refused, too
    words = {"--model": "model", option: value}
    said = refused("new", "chats.jsonl", "reviews.csv", *(word for pair in words.items() for word in pair))
    assert told in said
    assert option in said
    assert not Path("recipe.yaml").exists()


def model_folder() -> str:
    return "model"


@pytest.mark.parametrize("model", ["tiny", f"{__name__}.model_folder"])
def test_a_model_may_be_a_tiny_one_or_that_of_a_function(folder: Path, printed: Runs, model: str) -> None:
    command = ["new", "chats.jsonl", "reviews.csv", "--model", model, "--objective", "average"]
    printed(*command)
    main(["train", "recipe.yaml", *SHORT])
    printed(*command, "--python")
    assert runpy.run_path("train.py")["recipe"].build().model.num_parameters() > 0
    printed("new", "reviews.csv", "--model", model, "--output", "labels.yaml")
    main(["train", "labels.yaml", *SHORT])
    assert len(_losses(Path("runs/labels"))) >= 2
