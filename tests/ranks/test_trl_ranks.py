from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from accelerate import PartialState

from mixer.tools.recipe.data import DataSource
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from tests.chats_of_images import pictures
from tests.helpers import GradientRecorder
from tests.mixer.trainer.trl.cases import chats, model_of, preferences, sft_arguments, sft_mixture, tokenizer
from tests.mixer.trainer.trl.test_images import sft as images_sft
from tests.ranks.warm import Results, launched


def from_recipe(folder: Path, name: str, per_device: int, callbacks: Any = ()) -> Any:
    """Makes a run of three steps by a recipe, of packed chats of two shapes."""
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    own_options = {"max_steps": 3, "packing": True, "max_length": 24, "assistant_only_loss": True}
    training = sft_arguments(folder / "run", per_device_train_batch_size=per_device, **own_options)
    roles = {"user": "human", "assistant": "gpt"}
    shared = [
        {"conversations": [{"from": roles[turn["role"]], "value": turn["content"]} for turn in row]}
        for row in chats(12, 2)["messages"]
    ]
    rows = {"a": chats(20, 1), "b": datasets.Dataset.from_list(shared)}
    if PartialState().is_main_process:
        tokenizer().save_pretrained(folder / "base")
        model_of().save_pretrained(folder / "base")
        for stream, own in rows.items():
            own.to_json(folder / f"{stream}.jsonl")
    PartialState().wait_for_everyone()
    streams = {stream: StreamRecipe(data=DataSource(str(folder / f"{stream}.jsonl"))) for stream in rows}
    model = ModelRecipe(name_or_path=str(folder / "base"))
    trainer = Recipe(model, streams, training, mixing="Uniform", batch_size=5, trainer="sft").build()
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def of_images(folder: Path, name: str, per_device: int, callbacks: Any = ()) -> Any:
    """Makes a run of four steps over 5 chats and 7 pictures; in the last, of 1 each, a rank has no picture."""
    kind = name.partition(" ")[0]
    data, sizes = {"text": chats(5, 2), "seen": pictures(7, 1)}, [6, 4, 3, 2, 2]
    own = {"mixing": "Uniform", "batch_size": lambda step, _: sizes[step], "callbacks": list(callbacks)}
    # TRL checkpoints gradients by default.
    options = {"per_device_train_batch_size": per_device, "max_steps": 4, "gradient_checkpointing": kind == "qwen"}
    return images_sft(folder, kind, data, own, **options)


def trained(name: str, folder: Path, size: int = 2) -> list[Any]:
    """Gradients, logs and sizes of steps with several micro-batches, and one of which a rank has no samples."""
    others = {"recipe": from_recipe, **dict.fromkeys(PAIRS, preferences), **dict.fromkeys(OF_IMAGES, of_images)}
    make = others.get(name, sft_mixture)
    recorder = GradientRecorder()
    trainer = make(folder / name, name, per_device=size, callbacks=[recorder])
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    totals = trainer.ledger.timings()["total"].tolist() if trainer.is_world_process_zero() else []
    return [torch.stack(recorder.gradients), logs, totals]


pytestmark = pytest.mark.full
PAIRS = ("dpo", "reward")
OF_IMAGES = ("llava of images", "qwen of images")
NAMES = ("llama", "gpt2", *PAIRS, "recipe", *OF_IMAGES)
results = launched(*(partial(trained, name) for name in NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one_process(name: str, results: Results, tmp_path: Path) -> None:
    gradients, alone, totals = trained(name, tmp_path, 64)
    logs = results[0][name][1]
    for result in results:
        torch.testing.assert_close(result[name][0], gradients, rtol=0, atol=1e-6)
    for mine, theirs in zip(logs, alone, strict=True):
        names = [key for key in theirs if key.startswith(("loss", "count/", "num_tokens"))]
        assert [mine[key] for key in names] == pytest.approx([theirs[key] for key in names], rel=1e-5)
    if name in ("recipe", *OF_IMAGES):
        return
    # Of one sample both see the same metrics, although one rank has none, or two have run its pair.
    single = totals.index(1)
    own = {"dpo": ["rewards/margins"], "reward": ["margin"]}.get(name, ["entropy", "mean_token_accuracy"])
    for key in own:
        assert logs[single][key] == pytest.approx(alone[single][key], rel=1e-4, abs=1e-7)
