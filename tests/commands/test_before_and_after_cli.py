"""`mixer simulate` and `mixer explain` as a user runs them: on the demo's recipe, made small."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from mixer.cli.entry import main
from tests.mixer.analysis.simulate.runs import assert_same

RECIPE = str(Path(__file__).parents[2] / "recipes" / "demo.yaml")
DATA = {"num_samples": 60, "num_validation_samples": 4, "block_length": 16}
MODEL = {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32}
MODEL |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
POLICY = '{"class_path": "LossChange", "init_args": {"num_warmup_observations": 1}}'
SMALL = ["--model.config", json.dumps(MODEL), "--mixing", POLICY, "--batch_size", "9", "--training.max_steps", "12"]
SMALL += ["--training.eval_steps", "4", "--training.warmup_steps", "3"]
SMALL += [part for name in ("python", "cpp", "english") for part in (f"--streams.{name}.arguments", json.dumps(DATA))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "run"
    main(["train", RECIPE, "--training.output_dir", str(folder), *SMALL])
    return folder


@pytest.fixture(scope="module")
def simulated(run: Path) -> Path:
    folder = run.parent / "simulated"
    main(["simulate", RECIPE, *SMALL, "--losses", str(run), "--output", str(folder), "--every", "0.5"])
    return folder


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def of(*arguments: str) -> str:
        capsys.readouterr()
        main(list(arguments))
        return capsys.readouterr().out

    return of


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def of(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 2
        return capsys.readouterr().err

    return of


def test_a_simulation_by_the_runs_own_losses_is_the_run(run: Path, simulated: Path) -> None:
    assert_same(run, simulated)
    note = json.loads((simulated / "ledger" / "ledger.json").read_text())
    assert note["simulated"].startswith("Losses are those that")
    assert Ledger(simulated / "ledger").evaluations().equals(Ledger(run / "ledger").evaluations())


def test_other_commands_show_a_simulation(printed: Callable[..., str], run: Path, simulated: Path) -> None:
    table = printed("compare", str(run), str(simulated))
    assert table.count("12 steps") == 2
    found = json.loads(printed("explain", str(simulated), "--step", "12", "--json"))
    assert found["is_decided"]


def test_what_is_printed_before_a_run(printed: Callable[..., str]) -> None:
    text = printed("simulate", RECIPE, *SMALL, "--mixing", "Uniform", "--every", "0.5")
    for said in ("Streams", "Realised mixture", "108", "The plans need no losses"):
        assert said in text
    content = json.loads(printed("simulate", RECIPE, *SMALL, "--json"))
    assert content["steps"] == 12
    assert content["samples"] == 108 == sum(stream["samples"] for stream in content["streams"])
    assert content["tokens"] == 108 * 16
    assert content["source"].startswith("Held at its start")
    assert len(content["mixture"]) == 10
    assert content["batch_size"] == {"first": 9, "last": 9, "least": 9, "greatest": 9}
    assert content["evaluation_steps"] == [0, 4, 8, 12]


def test_what_is_printed_after_a_run(printed: Callable[..., str], run: Path) -> None:
    text = printed("explain", str(run), "--step", "9")
    for said in ("Step 9", "The policy decided", "LossChange decides", "evaluation after 4", "owed"):
        assert said in text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["simulate", RECIPE, *SMALL, "--num_ranks", "0"], "num_ranks must be at least 1"),
        (["simulate", RECIPE, *SMALL, "--mixing", "Uniform", "--every", "0"], "every must be a share"),
        (["simulate", RECIPE, *SMALL, "--losses", "nowhere"], "Folder nowhere does not exist"),
        (["explain", "nowhere", "--step", "1"], "Folder nowhere does not exist"),
    ],
)
def test_wrong_input(refused: Callable[..., str], command: list[str], said: str) -> None:
    assert said in refused(*command)


def test_wrong_input_on_a_run(refused: Callable[..., str], run: Path) -> None:
    assert "1 to 12, got 13" in refused("explain", str(run), "--step", "13")
    taken: Any = ["--mixing", "Uniform", "--output", str(run)]
    assert "holds a run that was trained" in refused("simulate", RECIPE, *SMALL, *taken)
