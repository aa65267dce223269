"""The recipes that read the data of the examples, each in a short run of the command line, by what they leave."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mixer import Ledger, MultiTaskModel
from mixer.tools.cli.entry import main

ROOT = Path(__file__).parents[3]
Train = Callable[..., pd.DataFrame]
NOT_EVALUATED = {"training__eval_strategy": "no", "training__eval_on_start": "false"}


@pytest.fixture
def train(world: Path) -> Train:
    """Runs `mixer train recipes/NAME.yaml ...`; gives the evaluations, a row a set."""

    def run(name: str, **options: object) -> pd.DataFrame:
        words = [word for option, value in options.items() for word in (f"--{option.replace('__', '.')}", str(value))]
        main(["train", str(ROOT / "recipes" / f"{name}.yaml"), "--training.output_dir", "out", "--overwrite", *words])
        return Ledger(world / "out/ledger").evaluations()

    return run


def _changes(evaluations: pd.DataFrame) -> pd.Series:
    """Gives by how much the loss of each set changed."""
    by_set = evaluations.sort_values("step", kind="stable").groupby("stream")["loss"]
    return by_set.last() - by_set.first()


def _counts(world: Path) -> dict[str, int]:
    counts: dict[str, int] = Ledger(world / "out/ledger").to_pandas().groupby("stream")["count"].sum().to_dict()
    return counts


def test_three_tasks_in_three_formats_of_files(world: Path, train: Train) -> None:
    changes = _changes(train("multi_task_classification", training__max_steps=60, training__eval_strategy="epoch"))
    assert changes.index.tolist() == ["domain", "language", "topic"]
    assert changes.max() < -0.2
    assert _counts(world) == {"topic": 960, "language": 960, "domain": 960}
    model = MultiTaskModel.from_pretrained(world / "out")
    assert {name: head.num_classes for name, head in model.heads.items()} == {"topic": 5, "language": 3, "domain": 10}


def test_only_adapters_are_trained_and_saved(world: Path, train: Train) -> None:
    changes = _changes(train("chat_lora", training__max_steps=30, training__eval_steps=30))
    assert changes.index.tolist() == ["numpy", "pandas", "torch"]
    assert changes.max() < -0.02
    assert sum(_counts(world).values()) == 30 * 16
    assert all("lora_" in name for name in load_file(world / "out/adapter_model.safetensors"))
    base = AutoModelForCausalLM.from_pretrained("data/examples/base")
    assert PeftModel.from_pretrained(base, world / "out").peft_config["default"].lora_alpha == 32


def test_conversations_are_packed_and_shared_by_tokens(world: Path, train: Train) -> None:
    train("sft_packed", training__max_steps=12, **NOT_EVALUATED)
    tokens = Ledger(world / "out").to_pandas().groupby("stream")["tokens"].sum()
    assert (tokens / tokens.sum())["pandas"] == pytest.approx(0.2, abs=0.02)


def test_a_twentieth_is_replayed(world: Path, train: Train) -> None:
    changes = _changes(train("continued_pretraining", training__max_steps=20, training__eval_steps=20))
    assert changes["new"] < -0.5
    assert _counts(world) == {"new": 20 * 19, "old": 20}


def test_the_batch_size_follows_the_tokens(world: Path, train: Train) -> None:
    ramp = '{"class_path": "Ramp", "init_args": {"initial": 4, "final": 16, "over": 10000, "unit": "tokens"}}'
    train("batch_size_ramp", batch_size=ramp, budget='{"tokens": 20000}', **NOT_EVALUATED)
    clock = Ledger(world / "out/ledger").clock()
    assert clock["batch_size"].is_monotonic_increasing
    assert clock["batch_size"].iloc[[0, -2]].tolist() == [4, 16]
    assert clock["tokens"].iloc[-2] < 20_000 <= clock["tokens"].iloc[-1]
    losses = Ledger(world / "out/ledger").to_pandas().groupby("stream")["loss"]
    assert (losses.last() < losses.first() - 0.5).all()


def test_prompts_are_rewarded_by_the_module_beside_the_recipe(world: Path, train: Train) -> None:
    train("grpo", training__max_steps=2)
    assert Ledger(world / "out").rewards()["stream"].unique().tolist() == ["sums", "names"]


def test_embeddings_are_trained_in_miniature(world: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
    main(["train", str(ROOT / "recipes" / "sentence_embeddings.yaml"), "--tiny", "--training.output_dir", "out"])
    assert Ledger(world / "out/ledger").clock()["step"].iloc[-1] == 2
