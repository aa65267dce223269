"""The page on what data did: its commands, on the demo's recipe made small."""

import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from mixer.ledger.card import mixture_card
from mixer.tools.cli.entry import main
from mixer.tools.cli.seen import list_unseen
from tests.commands.recipes import ROOT, Runs, write_recipe
from tests.commands.test_before_and_after_cli import SMALL
from tests.helpers import run_page

PAGE = (ROOT / "docs" / "what_your_data_did.md").read_text()
# Twelve steps in place of 128.
STEPS = {"32": "4", "96": "8"}
WRITTEN = [shlex.split(line)[1:] for line in re.findall(r"(?m)^mixer .+$", PAGE)]
COMMANDS = [command for command in WRITTEN if command[0] != "value"]  # which trains much, and has a test of its own


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            words = [STEPS.get(word, word) for word in command]
            if words[0] == "train":
                small = SMALL[: SMALL.index("--mixing")] + SMALL[SMALL.index("--batch_size") :]
                words = ["train", *small, *words[2:]]
            if words[0] in ("train", "fork"):
                main(words)
    return folder


def test_the_commands_of_the_page_run_as_they_stand(runs, monkeypatch, printed, refused) -> None:
    said = {}
    monkeypatch.chdir(runs)
    for command in COMMANDS:
        words = [STEPS.get(word, word) for word in command]
        if words[0] not in ("train", "fork"):
            said[" ".join(words[:1] + words[-1:])] = printed(*words)
    assert {"seen 18", "seen --never", "seen 10", "card runs/demo/uniform", "card --json"} <= said.keys()
    never = [int(row) for row in said["seen --never"].split()]
    assert len(never) == 60 - json.loads(said["card --json"])["sources"][0]["samples"]
    assert "## Training data and its mixture" in said["card runs/demo/uniform"]
    compared = said["compare runs/demo/null"]
    assert "without_junk parted from uniform" in compared
    assert "noise" in compared
    for command in ("fork", "value"):
        assert "at the steps 4, 8, 12" in refused(command, "runs/demo/uniform", "--at", "5")
    assert "one of --row N" in refused("seen", "runs/demo/uniform")


def test_the_python_of_the_page_runs_as_it_stands(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page("what_your_data_did", runs, monkeypatch)
    assert names["exposure"].streams == ["python", "cpp", "english", "manual", "junk"]


def test_what_a_run_has_drawn_becomes_the_mixture_of_the_next(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "runs" / "demo" / "uniform", tmp_path / "runs" / "demo" / "adaptive")
    sources = mixture_card(tmp_path / "runs" / "demo" / "adaptive")["sources"]
    capsys.readouterr()
    run_page("finding_a_mixture", tmp_path, monkeypatch)
    mixing = yaml.safe_load(capsys.readouterr().out)["mixing"]
    assert mixing == {row["name"]: row["samples"] for row in sources}
    plan = json.loads(printed("simulate", *SMALL, "--mixing", json.dumps(mixing), "--json"))
    assert [row["samples"] for row in plan["streams"]] == [row["samples"] for row in sources]


def test_a_stream_of_which_every_row_was_seen_says_so_beside_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for unseen, out, err in (([], "", "every row of english was trained on"), ([3], "3\n", "")):
        exposure: Any = SimpleNamespace(never=lambda stream, rows=unseen: iter([np.array(rows, dtype=np.int64)]))
        list_unseen(exposure, "english", is_json=False)
        printed = capsys.readouterr()
        assert (printed.out, err in printed.err, bool(printed.err)) == (out, True, bool(err))


def test_values_are_told_of_each_source_and_evaluation_set(tmp_path: Path, printed: Runs) -> None:
    training = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.01}
    main(["train", write_recipe(tmp_path, training, mixing="Uniform")])
    (words,) = [command for command in WRITTEN if command[0] == "value"]
    words = [{"runs/demo/uniform": str(tmp_path / "run"), "96": "2", "16": "1"}.get(word, word) for word in words]
    found = json.loads(printed(*words, "--json"))
    assert (found["run"], found["at"]) == (str(tmp_path / "run"), 2)
    names = ["python", "cpp"]
    rows = found["values"]
    assert [(row["source"], row["target"]) for row in rows] == [(one, other) for one in names for other in names]
    for row in rows:
        assert row["by_million_tokens"] == pytest.approx(row["change"] / row["tokens"] * 1e6)
