"""What all commands have in common: examples, JSON, statuses, and imports."""

import json
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mixer.distributed.signals import RunTerminated
from mixer.tools.cli import entry as cli
from mixer.tools.cli.command import Command
from mixer.tools.cli.early_help import early_help
from mixer.tools.cli.entry import main
from mixer.tools.cli.registry import WITH_RECIPE, command_names, entry_of, load_command
from mixer.tools.records import comparison
from mixer.tools.report.page import page_path
from tests.commands.recipes import Runs
from tests.mixer.tools.report.ledgers import write_run
from tests.refusals import refused

# The commands one after the other in one process; stdout ends with what they imported of what trains.
READING = """
import sys
from mixer.tools.cli.early_help import early_help
from mixer.tools.cli.entry import main
for command in sys.argv[1:]:
    main(command.split())
trains = {"accelerate", "datasets", "peft", "torch", "transformers"}
print("imported:", *sorted(trains & set(sys.modules)))
"""
# What each statement has imported of what takes long, in one process.
STARTING = """
import contextlib, io, sys
slow = {"accelerate", "datasets", "numpy", "pandas", "rich", "torch", "transformers"}
for statement in sys.argv[1:]:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        exec(statement)
    print(*sorted(slow & set(sys.modules)))
"""
# Commands up to what takes long.
BEGINNING = """
import sys
from mixer.tools.cli import entry
entry.load_command = sys.exit
for command in sys.argv[1:]:
    try:
        entry.main(command.split())
    except SystemExit as end:
        print("loads", end, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def commands() -> dict[str, Command]:
    return {name: load_command(name) for name in command_names()}


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_an_example_and_gives_json(name: str, commands: dict[str, Command]) -> None:
    command = commands[name]
    assert f"mixer {name}" in command.example
    words = f"Example: {command.example}".split()
    assert command.parser.format_help().split()[-len(words) :] == words
    assert "--json" in command.parser._option_string_actions


def test_runs_are_compared_and_reported_as_json(tmp_path: Path, printed: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", streams=("math", "law"))
    first, second = json.loads(printed("compare", tmp_path / "a", tmp_path / "b", "--json"))
    assert (first["run"], first["steps"]) == (str(tmp_path / "a"), 6)
    assert [stream["stream"] for stream in second["streams"]] == ["math", "law"]
    figures = {"first_loss": 9.0, "last_loss": 3.0, "samples": 42, "coverage": pytest.approx(42 / 500), "weight": 0.5}
    figures |= {"share": 0.5, "token_share": 0.5, "tokens": 126, "label_share": 0.0, "labels": 0}
    of_training = {"first_train_loss": 10.0, "last_train_loss": pytest.approx(10 / 6)}
    assert first["streams"][0] == {"stream": "math", **figures, **of_training}
    said = json.loads(printed("report", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "page.html", "--json"))
    assert (said["page"], said["findings"]) == (str(tmp_path / "page.html"), [])
    assert said["summary"]["b"]["Steps"] == "6"
    assert [row["stream"] for row in said["streams"]["b"]] == ["math", "law"]
    assert "code only in a; law only in b" in said["note"]
    monkeypatch.chdir(tmp_path / "b")
    assert printed("report", tmp_path / "a").splitlines() == ["report.html"]
    assert (tmp_path / "b" / "report.html").exists()
    (tmp_path / "mine.html").write_text("<html></html>")
    with refused("output"):
        page_path(tmp_path / "mine.html")


def test_of_very_many_streams_a_comparison_shows_those_with_most_samples(
    tmp_path: Path, printed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_MOST_STREAMS", 2)
    write_run(tmp_path, streams=("math", "code", "law"))
    table = printed("compare", tmp_path)
    assert [name for name in ("math", "code", "law", "average") if re.search(rf"│ {name} ", table)] == [
        *("math", "code"),
        "average",
    ]
    assert "1 streams with fewer samples" in table
    assert len(json.loads(printed("compare", tmp_path, "--json"))[0]["streams"]) == 3


def test_runs_without_evaluations_are_compared_by_their_losses_of_training(tmp_path: Path, printed: Runs) -> None:
    write_run(tmp_path, num_steps=20)
    assert "Validation loss" in printed("compare", tmp_path)
    shutil.rmtree(tmp_path / "ledger" / "evaluations")
    table = printed("compare", tmp_path)
    assert "Training loss" in table
    # Two steps are a tenth, with 2 and 4 items of losses 10 and 5, and 38 and 40 items of losses 10/19 and 10/20.
    assert re.search(r"math +│ +6\.667 → 0\.513", table)
    assert re.search(r"average +│ +7\.167 → 1\.013", table)


def test_a_command_may_have_a_status_and_one_that_fails_has_its_traceback(monkeypatch, commands, capsys) -> None:
    def run(does: object) -> None:
        made = Command(commands["policies"].parser, does)  # type: ignore[arg-type]
        monkeypatch.setattr(cli, "load_command", lambda name: made)
        main(["policies"])

    for status in (None, 0):
        run(lambda config, status=status: status)
    terminated = RunTerminated("SIGTERM ended the run", signal.SIGTERM)
    interrupted, ended = (Mock(side_effect=error) for error in (KeyboardInterrupt, terminated))
    for does, code in ((lambda config: 3, 3), (interrupted, 130), (ended, 143)):
        with pytest.raises(SystemExit) as end:
            run(does)
        assert end.value.code == code
    assert capsys.readouterr().err == "mixer policies: interrupted\nmixer policies: SIGTERM ended the run\n"
    with pytest.raises(RuntimeError):
        run(Mock(side_effect=RuntimeError("the model is broken")))


def test_commands_that_read_import_nothing_that_trains_and_start_fast(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    write_run(run := tmp_path / "run")
    reading = [f"compare {run}", f"report {run}", f"watch {run} --json", f"explain {run} --step 2", "schedules"]
    done = subprocess.run([sys.executable, "-c", READING, *reading], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"


def test_nothing_is_imported_before_it_is_needed() -> None:
    call = "from mixer.tools.cli.entry import main; main({})"
    imported = {
        "import mixer, replay, tasks": "",
        call.format(["--help"]): "",
        call.format(["train", "--help"]): "",
        "from mixer import PiKE, Objective, Stream, Grouping, Mixing, schedules; mixer.schedules.Ramp": "numpy",
        "from mixer.policies import policy_classes; policy_classes()": "numpy",
        "from mixer import Ledger; from tasks import ScoreMatrix": "numpy pandas",
        call.format(["compare", "--help"]): "numpy pandas rich",
        call.format(["fit", "--help"]): "numpy pandas rich",
    }
    done = subprocess.run([sys.executable, "-c", STARTING, *imported], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(imported.values())


def test_a_command_that_takes_long_to_load_says_so_first() -> None:
    given = ["train recipe.yaml", "inspect recipe.yaml --json", "policies"]
    done = subprocess.run([sys.executable, "-c", BEGINNING, *given], capture_output=True, text=True, check=True)
    begun, *rest = done.stderr.splitlines()
    assert "recipe.yaml" in begun
    assert rest == ["loads train", "loads inspect", "loads policies"]


def test_the_help_lists_all_commands_and_an_unknown_one_has_a_suggestion(capsys, refused) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    for name in command_names():
        assert re.search(rf"^ +{name}\s+[A-Z]", listed, re.MULTILINE)  # with what it does
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"mixer {version('adaptive-mixer')}\n"
    assert "Did you mean 'train'?" in refused("trian", "recipe.yaml")


@pytest.mark.parametrize("name", [*WITH_RECIPE, "continual"])
def test_the_help_of_a_command_with_a_recipe_has_its_own_options_and_names_that_of_the_fields(
    name: str, commands: dict[str, Command]
) -> None:
    text = commands[name].parser.format_help()
    assert early_help(entry_of(name)) == text
    assert "--json" in text
    assert "mixer help FIELD" in text
    assert "--training.learning_rate LEARNING_RATE" not in text
    assert text.count("\n") < 70
    assert "--training.learning_rate" in commands[name].parser._option_string_actions


def test_the_help_of_a_command_whose_source_is_written_otherwise_is_left_to_its_code(tmp_path, monkeypatch) -> None:
    arguments = 'Recipe, print, "Says much.", "", "mixer mine recipe.yaml", {}'  # by position
    (tmp_path / "of_mine.py").write_text(f"def mine():\n    return recipe_command({arguments})\n")
    (tmp_path / "no_python.py").write_text("def mine(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("of_mine", "no_python", "not_there"):
        assert early_help(EntryPoint("mine", f"{module}:mine", "adaptive_mixer.commands")) is None


def test_a_field_is_explained_by_its_place_its_name_or_the_name_of_a_class(printed: Runs, refused) -> None:
    def told(*words: str) -> dict[str, dict[str, Any]]:
        return {part["field"]: part for part in json.loads(printed("help", *words, "--json"))}

    (rate,) = told("learning_rate").values()
    assert (rate["field"], rate["type"], rate["default"]) == ("training.learning_rate", "number", 5e-5)
    assert told("training.learning_rate") == told("learning_rate")
    (split,) = told("streams.web.data.split").values()
    assert (split["field"], split["default"]) == ("streams.NAME.data.split", "train")
    assert set(told("LossChange")) == {"mixing.LossChange", "batch_size.LossChange"}
    assert {"model", "streams", "training"} <= told()["recipe"]["fields"].keys()
    (memory,) = told("continual", "memory").values()
    assert "factory" in memory["fields"]
    assert "PiKE" in printed("help", "mixing")
    assert printed("help", "watch").startswith("usage: mixer watch")
    assert "Did you mean 'learning_rate'?" in refused("help", "lerning_rate")
    assert "Did you mean 'evaluation'?" in refused("help", "eval_dataset")
    assert "a command whose first argument is a recipe" in refused("schema", "watch")
