"""The recipes of well-known models, each trained in miniature: its architecture and its formats, on rows beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mixer import Ledger
from mixer.ledger.folder import read_note
from mixer.tools.cli.entry import main
from mixer.tools.recipe.given import read_recipe_file
from mixer.tools.recipe.recipe_files import filled_in
from tasks import ScoreMatrix
from tasks.sources import augmented, pictures
from tests.ranks.warm import some
from tests.refusals import refused as is_refused

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "recipes" / "models"
NAMES = sorted(path.stem for path in GALLERY.glob("*.yaml"))
FEW = ("modernbert_multi_task", "olmoe_pretraining", "wav2vec2_ctc")


@pytest.mark.parametrize("name", some(NAMES, FEW))
def test_a_recipe_trains_in_miniature_and_its_losses_are_by_stream(tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(ROOT)
    main(["train", f"recipes/models/{name}.yaml", "--tiny", "--training.output_dir", str(tmp_path)])
    rows = Ledger(tmp_path / "ledger").to_pandas()
    whole, written = read_recipe_file(str(GALLERY / f"{name}.yaml")), read_recipe_file(str(tmp_path / "recipe.yaml"))
    assert set(rows["stream"]) == set(whole["streams"]) == set(written["streams"])
    assert set(rows["step"]) == {1, 2}
    seen = rows.query("count > 0")
    assert set(seen["stream"]) == set(rows["stream"])
    # Losses whose rows cannot be seen are told by stream from the second step on.
    assert np.isfinite(seen["loss"][seen["step"] > 1]).all()
    assert (seen["items"] > 0).all()
    assert filled_in((GALLERY / f"{name}.yaml").read_text())  # the recipe itself is complete, too
    name = whole["model"]["name_or_path"]
    assert "/" in name or "factory" in name


@pytest.mark.full
def test_a_model_is_held_to_what_it_wrote_in_miniature(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    main(["train", "recipes/finetune_without_forgetting.yaml", "--tiny", "--training.output_dir", str(tmp_path)])
    ledger = Ledger(tmp_path)
    assert ledger.to_pandas().groupby("stream")["count"].sum().to_dict() == {"new": 12, "own": 4}
    assert ledger.terms()["term"].tolist() == ["ReferenceKL"] * 2
    assert len(list((tmp_path / "generated").glob("own-*.jsonl"))) == 1
    assert "final_weights" in read_note(tmp_path)["run"]


def learnt_in_turn(folder: Path, *words: str, **methods: dict[str, object]) -> ScoreMatrix:
    """Runs the recipe of pictures in miniature with a method; gives its scores, which are finite."""
    given = [{"class_path": name, "init_args": options} for name, options in methods.items()]
    command = ["continual", "recipes/continual_vision.yaml", "--tiny", "--methods", json.dumps(given), *words]
    main([*command, "--training.output_dir", str(folder)])
    scores = ScoreMatrix.from_file(folder / "scores.json")
    assert np.isfinite(scores.scores).all()
    return scores


def test_a_pre_trained_encoder_learns_classes_of_pictures_in_turn(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    learnt_in_turn(tmp_path, "--second_draw", "again", **{"replay.DERPlusPlus": {"second": "again"}})
    rows = Ledger(tmp_path / "02-task_2" / "ledger").to_pandas()
    assert set(rows.query("count > 0")["stream"]) == {"task_2", "memory", "again"}


def test_prompts_of_a_pre_trained_encoder_are_trained_from_the_command_line(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    method: dict[str, Any] = {"tasks.methods.CODAPrompt": {"layers": [0, 1], "components": 2}}
    learnt_in_turn(tmp_path, "--memory", "null", "--head", "masked", **method)
    saved = load_file(tmp_path / "02-task_2" / "end" / "model.safetensors")
    assert [saved[f"prompts.keys.{task}"].shape for task in range(2)] == [(2, 2, 32)] * 2


OF_FEATURES: dict[str, dict[str, Any]] = {"RanPAC": {"num_projections": 50}, "SLCA": {"num_samples": 4}}


@pytest.mark.parametrize("name", OF_FEATURES)
def test_pictures_are_told_apart_by_features_of_a_pre_trained_encoder(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    words = ["--memory", "null", "--training.max_steps", "1", *(["--score", "method"] if name == "RanPAC" else [])]
    scores = learnt_in_turn(tmp_path, *words, **{f"tasks.methods.{name}": OF_FEATURES[name]})
    assert scores.metric == "accuracy"
    if name == "RanPAC":
        assert scores.scores[0].tolist() == [0.0] * 2
        assert scores.scores[1, 0] > 1 / 6


def test_pictures_of_a_folder_are_augmented_for_training_alone(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            for shade in range(count):
                Image.new("RGB", (20, 24), (shade, 100 * number, 255)).save(tmp_path / split / name / f"{shade}.png")
    train, evaluation = pictures(str(tmp_path), size=16)
    assert [[row["labels"] for row in part] for part in (train, evaluation)] == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1]]
    torch.manual_seed(1)
    batch = augmented()([train[4], evaluation[3]])
    assert batch["labels"].tolist() == [1, 1]
    expected = torch.tensor([1, 100, 255]) / 127.5 - 1
    torch.testing.assert_close(batch["pixel_values"][1], expected[:, None, None].expand(3, 16, 16))
    colours = {tuple(pixel) for pixel in batch["pixel_values"][0].flatten(1).T.tolist()}
    assert colours == {(0.0, 0.0, 0.0), tuple(expected.tolist())}  # moved, with an edge of grey
    with is_refused("data_collator"):
        augmented()([{name: train[0][name] for name in ("pixel_values", "labels")}])
    assert [len(part) for part in pictures(str(tmp_path), evaluation_split=None, size=16)] == [4, 2]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["recipes/demo.yaml", "--tiny"], "--tiny needs a miniature"),
        (["--tiny", "recipes/models/qwen3_sft.yaml"], "--tiny: Give the path of the recipe first"),
        (["recipes/models/none.yaml", "--tiny"], "there is no file"),
    ],
)
def test_what_has_no_miniature_is_refused(monkeypatch, refused, words, problem) -> None:
    monkeypatch.chdir(ROOT)
    assert problem in refused("train", *words)
