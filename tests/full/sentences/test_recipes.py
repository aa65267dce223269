"""Recipes with a trainer of sentence-transformers, as a user runs them."""

import json
import re
from pathlib import Path

import datasets
import pytest
import yaml

pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from sentence_transformers import CrossEncoder, SentenceTransformer

from mixer import Ledger
from mixer.tools.cli.entry import main
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.trainers import column_losses, column_model
from tests.full.sentences.cases import model_of, pairs, scored
from tests.refusals import refused

pytestmark = pytest.mark.full
PAGE = (Path(__file__).parents[3] / "docs" / "sentence_transformers.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a model and pairs."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    model_of("sentence", tmp_path).save("my-model")
    (tmp_path / "data/titles").mkdir(parents=True)
    pairs(1, 20).rename_columns({"anchor": "question", "positive": "answer"}).to_json("data/questions.jsonl")
    pairs(2, 11).rename_columns({"anchor": "title", "positive": "text"}).to_parquet("data/titles/all.parquet")
    return tmp_path


def test_the_recipe_of_the_page_trains_and_leaves_a_model(folder: Path) -> None:
    (recipe,) = re.findall(r"<!-- recipe: sentences -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    (folder / "recipe.yaml").write_text(recipe)
    main(["train", "recipe.yaml", "--training.use_cpu", "true", "--training.report_to", "none"])
    assert Ledger("run").clock()["samples"].iloc[-1] == 16
    assert SentenceTransformer("run", device="cpu").encode("w1").shape == (16,)
    assert json.loads(Path("run/ledger/ledger.json").read_text())["run"]["one_stream_per"] == "step"


def test_losses_by_stream(folder: Path) -> None:
    scored(3, 12).to_json("data/scored.jsonl")
    losses = {"questions": "MultipleNegativesRankingLoss", "scored": "CoSENTLoss"}
    streams = {name: {"data": {"path": f"data/{name}.jsonl"}} for name in losses}
    training = {"output_dir": "run", "max_steps": 4, "use_cpu": True, "report_to": "none", "save_strategy": "no"}
    recipe = {"trainer": "sentence-transformer", "model": {"name_or_path": "my-model"}, "loss": losses}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "streams": streams, "training": training}))
    main(["train", "recipe.yaml"])
    assert Ledger("run").to_pandas()["loss"].gt(0).any()


def test_models_and_losses_by_name(tmp_path: Path) -> None:
    model_of("cross", tmp_path)
    model = column_model("cross-encoder", ModelRecipe("sequence-classification", str(tmp_path / "tiny-cross-1")))
    assert isinstance(model, CrossEncoder)
    assert type(column_losses("cross-encoder", "BinaryCrossEntropyLoss", model)).__name__ == "BinaryCrossEntropyLoss"


@pytest.mark.parametrize(("option", "changes"), [("lora", {"lora": {"r": 2}}), ("name_or_path", {})])
def test_options_that_these_models_do_not_take_are_refused(option: str, changes: dict[str, object]) -> None:
    with refused(option):
        column_model("sentence-transformer", ModelRecipe("encoder", **changes))


def test_a_loss_that_there_is_not_is_refused() -> None:
    with refused("loss"):
        column_losses("sentence-transformer", "Perplexity", None)


def test_the_card_of_a_model_becomes_a_recipe_that_trains(folder: Path) -> None:
    card = (Path(__file__).parents[2] / "commands/configurations/card.md").read_text()
    for name, place in (
        ("BASE", "my-model"),
        ("DATA/asked.jsonl", "data/questions.jsonl"),
        ("DATA/pairs.jsonl", "data/titles"),
    ):
        card = card.replace(name, place)
    (folder / "README.md").write_text(card)
    with pytest.raises(SystemExit) as ended:
        main(["recipe", "from", "README.md", "--output", "recipe.yaml"])
    assert ended.value.code == 3
    main(
        [
            "train",
            "recipe.yaml",
            "--training.output_dir",
            "run",
            "--training.use_cpu",
            "true",
            "--training.report_to",
            "none",
        ]
    )
    streams = Ledger("run").to_pandas()
    assert set(streams["stream"]) == {"questions", "titles"}
