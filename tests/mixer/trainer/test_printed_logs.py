"""What is printed of log entries while a run trains."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PrinterCallback

from mixer.ledger.progress.bar import MixturePrinter
from tests.helpers import On, Tokens, three_streams
from tests.mixer.trainer.runs import make, train

_TIMES = ("runtime", "per_second")


def _run(folder: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> tuple[str, list[dict[str, Any]]]:
    """What a run of six steps with an evaluation after three prints, and what it keeps, without times."""
    options = {"eval_strategy": "steps", "eval_steps": 3, "eval_dataset": three_streams(), "objective": "worst"}
    trainer = train(folder, max_steps=6, **options | changes)
    history = [
        {key: value for key, value in entry.items() if not key.endswith(_TIMES)} for entry in trainer.state.log_history
    ]
    return capsys.readouterr().out, history


def test_a_run_prints_lines_and_tables_and_keeps_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, kept = _run(tmp_path / "line", capsys)
    dicts, kept_by_dicts = _run(tmp_path / "dict", capsys, logging_style="dict")
    assert kept == kept_by_dicts
    assert dicts.count("{'loss': '") == 6
    steps = [line for line in lines.splitlines() if "  lr " in line]
    assert len(steps) == 6
    assert steps[0].startswith("step 1/6  loss 4.")
    assert re.fullmatch(
        r"step 6/6  loss [\d.]+  objective [\d.]+  lr 1.67e-02  [\d,.]+ samples/s  00:00 left", steps[5]
    )
    last = next(entry for entry in reversed(kept) if "eval_objective" in entry)["eval_objective"]
    assert "step 6/6  evaluation: loss " in lines
    assert f"objective {last:.3f}" in lines
    table = re.findall(r"(?m)^  (\w)\s+(\d+)%  [\d.]+\s+(\d+)\s+[\d.]+$", lines)
    assert [row[0] for row in table] == [*"abc", *"abc"]
    assert sum(int(row[2]) for row in table[3:]) == 5 * 8 + 5  # the last batch of an epoch is smaller


def test_with_one_data_set_too_callbacks_get_what_they_get_with_the_trainers_style(tmp_path, capsys) -> None:
    kept: dict[str, list[list[str]]] = {"line": [], "dict": []}
    for style, names in kept.items():
        trainer = make(tmp_path / style, train_dataset=Tokens(20, 1), logging_style=style)
        trainer.add_callback(On(log=lambda _, logs, names=names, **__: names.append(sorted(logs))))
        trainer.train()
        printed = capsys.readouterr().out.splitlines()
        if style == "line":
            assert [line.startswith("step ") for line in printed] == [True, True, True, False]
            assert printed[-1].startswith("trained on 20 samples in ")
            trainer.remove_callback(PrinterCallback)  # ours too
            assert not any(isinstance(one, MixturePrinter) for one in trainer.callback_handler.callbacks)
    assert kept["line"] == kept["dict"]
