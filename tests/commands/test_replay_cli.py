"""Replay from the command line, as a user runs it."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from mixer.cli.entry import main

RECIPE = str(Path(__file__).parents[2] / "recipes" / "replay.yaml")
SMALL = [
    *("--model.config.hidden_size", "16", "--model.config.intermediate_size", "32"),
    *("--model.config.num_hidden_layers", "1", "--model.config.num_attention_heads", "2"),
    *("--model.config.num_key_value_heads", "2", "--model.config.max_position_embeddings", "32"),
    *("--streams.old.arguments", '{"num_samples": 60, "num_validation_samples": 4, "block_length": 16}'),
    *("--streams.new.arguments", '{"num_samples": 40, "num_validation_samples": 4, "block_length": 16}'),
    *("--streams.memory.arguments", '{"capacity": 30}', "--batch_size", "10"),
    *("--training.max_steps", "8", "--training.logging_steps", "2", "--training.eval_steps", "4"),
    *("--training.warmup_steps", "1"),
]


def train(folder: Path, *arguments: str) -> Any:
    main(["train", RECIPE, *SMALL, "--training.output_dir", str(folder), *arguments])
    return Ledger(folder / "ledger").to_pandas().pivot(index="step", columns="stream", values="count")


def test_the_recipe_replays_the_old_task_while_the_new_one_is_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = train(tmp_path / "memory", "--mixing.init_args.ratio", "0.3")
    assert counts["old"].iloc[4:].sum() == counts["new"].iloc[:4].sum() == 0
    assert (counts.sum(axis=1) == 10).all()
    assert counts["memory"].tolist() == [0] * 4 + [3] * 4
    without = train(tmp_path / "none", "--mixing.init_args.ratio", "0")
    assert without["memory"].sum() == 0
    capsys.readouterr()
    main(["compare", str(tmp_path / "memory"), str(tmp_path / "none")])
    assert "old" in (printed := capsys.readouterr().out)
    assert "worst" in printed
    main(["report", str(tmp_path / "memory")])
    assert "memory" in (tmp_path / "memory" / "report.html").read_text()


def test_one_word_is_enough(tmp_path: Path) -> None:
    counts = train(tmp_path / "run", "--mixing", "ReplayRatio", "--training.max_steps", "4")
    assert abs(counts["memory"].sum() - 3) <= 2


def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    saving = ["--training.save_strategy", "steps", "--training.save_steps", "3"]
    options = [*saving, "--streams.memory.arguments", '{"capacity": 20, "storage": "memory", "selection": "Surprise"}']
    whole = train(tmp_path / "run", *options)
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    counts = train(tmp_path / "run", *options, "--resume", str(tmp_path / "run" / "checkpoint-3"))
    assert counts.equals(whole)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mixing.init_args.ratio", "1.0"], "mixing: ratio must be a number in [0, 1), got 1.0"),
        (["--mixing.init_args.ratio", "-0.1"], "mixing: ratio must be a number in [0, 1), got -0.1"),
        (["--mixing.init_args.ratio", "often"], "mixing: "),
        (["--mixing", "ReplyRatio"], "ReplayRatio"),
        (["--mixing", "Proportional"], "ReplayRatio(0.1"),
        (["--streams.memory.arguments", '{"capacity": 0}'], "streams.memory.factory: replay.ReplayBuffer"),
        (["--streams.memory.arguments", '{"capacity": 9, "selection": "Reservior"}'], "Did you mean 'Reservoir'"),
        (["--streams.memory.arguments", "{}"], "streams.memory.factory: replay.ReplayBuffer"),
        (["--streams.memory.arguments", '{"capacity": 9, "selection": "ClassBalanced"}'], "label_column"),
    ],
)
def test_wrong_input_ends_with_two_and_names_the_field(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        train(tmp_path, *arguments)
    printed = capsys.readouterr().err
    assert message in " ".join(printed.split())
    assert stop.value.code == 2


def test_policies_of_replay_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["policies"])
    printed = capsys.readouterr().out
    for name in ("ReplayRatio", "ForgettingAware", "Spaced"):
        assert name in printed
