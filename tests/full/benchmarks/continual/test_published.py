"""Protocols of continual learning, on requests and texts that are made up."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks.continual import pretrained, text
from benchmarks.continual.command import main, run_once
from benchmarks.continual.methods import setting_of
from benchmarks.continual.protocols import PROTOCOLS
from benchmarks.continual.results import Run
from benchmarks.made_up_data import make_data
from benchmarks.quality.encoder import polarity
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.tasks.data import write_intents

PROTOCOL, TEXT = PROTOCOLS["clinc150"], PROTOCOLS["text-domains"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("data")
    write_intents(path / "clinc150", {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}, num_train=12, num_test=5)
    return path


def test_bounds_and_a_memory_between_them(folder: Path) -> None:
    quicker = dataclasses.replace(
        PROTOCOL, training={**PROTOCOL.training, "num_train_epochs": 8, "learning_rate": 5e-3}
    )
    found = {
        m: run_once(quicker, m, 8, 1, folder, folder)["average_accuracy"] for m in ("finetune", "er-ring", "joint")
    }
    assert found["finetune"] == 50.0  # the last task alone
    assert found["joint"] == 100.0
    assert found["er-ring"] > 60.0


def test_a_memory_is_counted_as_the_protocol_counts_it() -> None:
    ring = setting_of("er-ring", PROTOCOLS["tiny-episodic"], 3, 17).memory
    assert (ring.capacity, ring.selection.slots_per_group) == (3 * 10 * 17, 3)
    assert setting_of("er-ring", PROTOCOL, 300, 10).memory.selection.slots_per_group is None
    assert setting_of("er-class-balanced", PROTOCOLS["split-mnist"], 1_100, 5).memory.is_online is False


@pytest.mark.parametrize(
    ("protocol", "method", "message"),
    [
        ("split-mnist", "er-loss-aware", "LossAware goes by the loss .* filled at each task's end"),
        ("tiny-episodic", "er-herding", "er-herding: Herding reads a whole task again at its end, but this protocol"),
        ("permuted-mnist-10", "icarl", "icarl is for new classes .* domain-incremental. Take a class-incremental one"),
        (
            "split-mnist",
            "o-lora",
            "o-lora is for trained models, but this protocol begins anew. Take clinc150-pretrained",
        ),
        ("split-mnist", "lamol", "lamol is for language models, but .* a classifier. Take text-domains"),
        ("clinc150", "slca", "slca is for trained encoders. Take clinc150-pretrained"),
        ("split-mnist", "coda-prompt", "coda-prompt is for encoders that are frozen"),
        ("fashion-pretrained", "l2p", "l2p is for transformers, but this protocol trains convolutions"),
        ("text-domains", "icarl", "icarl goes by classes, but blocks of text have none"),
    ],
)
def test_methods_without_a_place_are_refused(protocol, method, message, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--protocol", protocol, "--method", method, "--data-dir", "nowhere"])
    assert re.search(f"{protocol}: .*{message}", capsys.readouterr().err)


def test_the_report_sums_up_the_runs_of_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"seconds": 10.0, "growth_bytes": 2e8, "kept_bytes": 3e4, "forgetting": 2.0}
    figures |= {"first_rate": 1e3, "last_over_first": 1.0}
    for seed, accuracy in ((1, 89.0), (2, 91.0)):
        row = Run("split-mnist", "er-reservoir", 1_100, seed)
        row.write(tmp_path, {**figures, "average_accuracy": accuracy})
    main(["--report", "--folder", str(tmp_path)])
    row = "split-mnist | er-reservoir | 1,100 | 2 | 90.0 ± 1.4 | 90.78 ± .85 | 2.0 | 10 | 200 | 30 | 1,000 | 1.00"
    assert capsys.readouterr().out.splitlines()[2:] == [f"| {row} |"]


def _run_on_text(method: str, base: Path, data: Path) -> dict[str, float]:
    """Runs a small form of `text-domains`."""
    tiny = dataclasses.replace(
        TEXT,
        sequence=lambda folder, seed: text.sequence(folder, seed)[2:],
        model=partial(text.model, num_steps=3),
        training={**TEXT.training, "max_steps": 2, "warmup_steps": 0},
        batch_size=4,
    )
    return run_once(tiny, method, 6, 1, data if data.exists() else make_data(data), base)


@pytest.mark.parametrize("method", ["joint", "inf-lora"])
def test_methods_for_text_begin_with_a_base_that_is_kept(method: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base, data = (tmp_path_factory.getbasetemp() / name for name in ("base", "texts"))
    assert 2.0 < _run_on_text(method, base, data)["average_accuracy"] < 6.0  # nats a byte
    assert [path.name for path in base.iterdir()] == ["text-base-3-1.safetensors"]


def test_joint_training_is_scored_by_the_mean_over_tasks(folder: Path) -> None:
    tasks = PROTOCOL.sequence(folder, 1)
    arranged, score = setting_of("joint", PROTOCOL, 0, 2).arranged(tasks)
    assert (arranged.names, len(arranged["all"].train), len(arranged["all"].evaluation)) == (("all",), 48, 20)
    assert score is not None
    assert setting_of("finetune", PROTOCOL, 0, 2).arranged(tasks) == (tasks, None)


def test_the_upper_layers_of_an_encoder_go_on_where_the_frozen_ones_end(folder, tmp_path, monkeypatch) -> None:
    tokenizer = byte_level()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    encoder = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).eval()
    for part in (tokenizer, encoder):
        part.save_pretrained(tmp_path)
    monkeypatch.setenv(pretrained.FOLDER, str(tmp_path))

    texts = ["stay", "please owe for her"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
        rows = pretrained.encoded([*enumerate(texts)]).read_columns(torch.arange(2).numpy())
        found = pretrained.UpperLayers(2).eval().features(rows["hidden"], rows["attention_mask"])
    for own, words, features in zip(hidden, texts, found, strict=True):
        torch.testing.assert_close(features, own[: len(words)].mean(dim=0), rtol=0, atol=2e-3)  # half precision

    made = make_data(tmp_path / "made")
    clean, turned = (polarity("cr", str(made), num_samples=20, wrong=wrong)["train"] for wrong in (0.0, 1.0))
    for column, is_same in (("hidden", True), ("labels", False)):
        own, other = (part.read_columns(torch.arange(20).numpy())[column] for part in (clean, turned))
        torch.testing.assert_close(other, own if is_same else 1 - own)

    tasks = pretrained.intents(folder, 1, num_train=6, num_test=3)
    small = dataclasses.replace(
        PROTOCOLS["clinc150-pretrained"],
        sequence=lambda folder, seed: tasks,
        model=lambda seed, folder: pretrained.UpperLayers(4),
    )
    size = sum(parameter.numel() for parameter in pretrained.UpperLayers(4).parameters())
    found = {
        method: run_once(small, method, 0, 1, folder, folder)
        for method in ("lwf", "ran-pac", "slca", "o-lora", "coda-prompt")
    }
    assert found["lwf"]["kept_bytes"] == 4 * size
    assert 0 <= found["ran-pac"]["kept_bytes"] - 4 * 2_000 * (16 + 2_000 + 4) < 1_000
    assert 0 <= found["slca"]["kept_bytes"] - 4 * 4 * (16 + 6 * 16) < 2_000  # a mean and a factor of six rows a class
    assert all(np.isfinite(one["average_accuracy"]) for one in found.values())
    components = len(tasks) * 2 * 10 * (2 * 4 * 16 + 2 * 16)  # in two layers; with keys and attention
    assert found["coda-prompt"]["kept_bytes"] == 4 * components
