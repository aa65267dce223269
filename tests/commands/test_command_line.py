"""What all commands have in common: examples, JSON, statuses, and completions in a shell."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from mixer.cli import entry as cli
from mixer.cli.command import Command
from mixer.cli.entry import main
from tests.mixer.analysis.report.ledgers import write_run

OTHERS = [entry.name for entry in entry_points(group="adaptive_mixer.commands")]
BASH = shutil.which("bash") or "bash"
MIXER = (sys.executable, "-m", "mixer")
# What a shell would call to complete the last of these words; it is empty where a space ends the line.
COMPLETE = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_mixer
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def commands() -> dict[str, Command]:
    made = cli._commands(None)
    cli._parser(made)  # makes them commands of one line
    return made


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "mixer.bash"
    with path.open("w") as file:
        subprocess.run([*MIXER, "completion", "bash"], stdout=file, check=True)
    return path


def _completed(script: Path, *words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in ("mixer", *words))
    done = subprocess.run(
        [BASH, "-c", COMPLETE.format(script=script, words=quoted)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("name", [*cli._COMMANDS, *OTHERS])
def test_every_command_has_an_example_and_gives_json(name: str, commands: dict[str, Command]) -> None:
    command = commands[name]
    assert f"mixer {name}" in command.example
    assert (
        f"Example: {command.example}".split()
        == command.parser.format_help().split()[-len(command.example.split()) - 1 :]
    )
    assert command.summary
    if name != "completion":  # prints a script
        assert "--json" in command.parser._option_string_actions


def test_help_is_asked_for_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert all(name in capsys.readouterr().out or name for name in cli._COMMANDS)


def test_runs_are_compared_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", streams=("math", "law"))
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["steps"]) == (str(tmp_path / "a"), 6)
    assert [stream["stream"] for stream in second["streams"]] == ["math", "law"]
    assert first["streams"][0] == {
        "stream": "math",
        "first_loss": 9.0,
        "last_loss": 3.0,
        "samples": 42,
        "coverage": pytest.approx(42 / 500),
        "weight": 0.5,
    }


@pytest.mark.parametrize("command", ["policies", "schedules"])
def test_rules_are_listed_as_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert all(set(row) == {"name", "needs", "costs", "summary"} for row in rows.values())
    assert rows["PiKE"]["needs"] == ["gradient_variance"] if command == "policies" else "Ramp" in rows


@pytest.mark.parametrize(
    "arguments", [["compare", "nowhere"], ["compare"], ["nothing"], ["train", "none.yaml"], ["completion", "cmd"]]
)
def test_wrong_input_ends_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err


def _with(monkeypatch: pytest.MonkeyPatch, commands: dict[str, Command], run: object) -> None:
    made = Command(commands["policies"].parser, run, "")  # type: ignore[arg-type]
    monkeypatch.setattr(cli, "_made", lambda name: made)


@pytest.mark.parametrize("status", [None, 0, 3])
def test_a_command_may_have_a_status(
    status: int | None, monkeypatch: pytest.MonkeyPatch, commands: dict[str, Command]
) -> None:
    _with(monkeypatch, commands, lambda config: status)
    if not status:
        main(["policies"])
        return
    with pytest.raises(SystemExit) as end:
        main(["policies"])
    assert end.value.code == status


def test_an_interrupted_command_ends_with_status_130(
    monkeypatch: pytest.MonkeyPatch, commands: dict[str, Command], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: object) -> None:
        raise KeyboardInterrupt

    _with(monkeypatch, commands, interrupted)
    with pytest.raises(SystemExit) as end:
        main(["policies"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "mixer policies: interrupted\n"


def test_what_goes_wrong_on_the_way_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch, commands: dict[str, Command]
) -> None:
    def fails(config: object) -> None:
        raise RuntimeError("the model is broken")

    _with(monkeypatch, commands, fails)
    with pytest.raises(RuntimeError, match="the model is broken"):
        main(["policies"])


def test_a_reader_may_see_enough() -> None:
    line = f"{sys.executable} -m mixer policies --json | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run([BASH, "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")


def test_commands_and_options_are_completed_in_bash(script: Path, commands: dict[str, Command]) -> None:
    assert set(_completed(script, "")) == set(commands)
    assert _completed(script, "comp") == ["compare", "completion"]
    assert _completed(script, "report", "--ou") == ["--output"]
    assert "--training.learning_rate" in _completed(script, "train", "--training.learning")
    assert _completed(script, "simulate", "--mixing", "Pi") == ["PiKE"]
    assert _completed(script, "completion", "") == ["bash", "zsh", "tcsh"]
    assert script.stat().st_size < 200_000  # a shell reads it whenever it starts


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_completions(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", shell])
    assert "compare" in capsys.readouterr().out
