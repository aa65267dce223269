"""The progress bar on a terminal, in a notebook, and where there is neither."""

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from transformers import ProgressCallback

from mixer import MixingTrainer
from mixer.ledger.progress.bar import MixtureProgress
from mixer.ledger.progress.line import coverage_text
from tests.helpers import Tokens, three_streams
from tests.mixer.trainer.progress_worker import train
from tests.mixer.trainer.runs import make
from tests.terminal import Terminal


@pytest.mark.full
def test_a_terminal_shows_the_data_clock_in_one_line(tmp_path: Path) -> None:
    worker = str(Path(__file__).with_name("progress_worker.py"))
    terminal = Terminal([worker, str(tmp_path)], columns=110, rows=40)
    assert terminal.wait() == 0
    line = next(line for line in terminal.lines if line.startswith("100%|"))
    assert "3.00/3 epochs [00:" in line
    assert "<00:00] batch " in line
    assert line.endswith("coverage a 100% {b} 100%")
    assert "Traceback" not in terminal.text
    terminal.close()


def test_a_narrow_terminal_cuts_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 15, 50, 0, 0))
    with os.fdopen(side, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        train(str(tmp_path))
        monkeypatch.undo()
        written = os.read(own, 1 << 20).decode()
    os.close(own)
    bars = [part for part in written.replace("\n", "\r").split("\r") if "epochs [" in part]
    assert bars[-1].startswith("100%|")
    assert all(len(bar) <= 50 for bar in bars)


def test_without_a_terminal_there_is_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(str(tmp_path))
    printed = capsys.readouterr()
    assert "%|" not in printed.err + printed.out
    assert "'train_runtime'" in printed.out  # what is logged is printed all the same


def _bars(trainer: MixingTrainer) -> list[type]:
    callbacks = trainer.callback_handler.callbacks
    return [type(callback) for callback in callbacks if isinstance(callback, ProgressCallback)]


def test_the_trainers_own_bar_is_replaced_and_a_users_own_stays_and_counts_steps(tmp_path: Path) -> None:
    seen = []

    class Own(ProgressCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_step_end(args, state, control, **kwargs)
            seen.append((self.training_bar.n, self.training_bar.total, self.training_bar.postfix))

    assert _bars(make(tmp_path)) == []
    assert _bars(make(tmp_path, disable_tqdm=False, train_dataset=Tokens(20, 1))) == [MixtureProgress]
    trainer = make(tmp_path, disable_tqdm=False)
    assert _bars(trainer) == [MixtureProgress]
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Own())
    trainer.train()
    assert [(n, total) for n, total, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1][2] == coverage_text(trainer.mixing)


def test_a_resumed_run_begins_its_estimate_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    show = MixtureProgress.on_step_end

    def noting(self: MixtureProgress, *args: Any, **kwargs: Any) -> None:
        show(self, *args, **kwargs)
        lines.append((self._line.share, self._line._remaining.seconds))

    monkeypatch.setattr(MixtureProgress, "on_step_end", noting)
    for checkpoint in (None, str(tmp_path / "checkpoint-2")):
        lines.clear()
        trainer = make(tmp_path, disable_tqdm=False, max_steps=4, save_strategy="steps", save_steps=2)
        trainer.train(resume_from_checkpoint=checkpoint)
    assert lines == [(0.75, None), (1.0, 0.0)]


def test_a_notebook_shows_the_data_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython", reason="the Trainer's bar of notebooks needs IPython")
    from transformers.utils import notebook

    shown: list[str] = []

    class Display:
        def __init__(self, html: Any, display_id: bool = True):
            self.update(html)

        def update(self, html: Any) -> None:
            shown.append(html.data)

    monkeypatch.setattr(notebook.disp, "display", Display)
    monkeypatch.setattr("transformers.trainer.DEFAULT_PROGRESS_CALLBACK", notebook.NotebookProgressCallback)
    options = {"disable_tqdm": False, "max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch"}
    make(tmp_path, eval_dataset=three_streams(), batch_size=lambda step, size: size + step, **options).train()
    last = shown[-1]
    assert "100% 2.00/2 epochs [" in last
    assert "coverage a 100%" in last
    assert "B Loss" in last  # the table of evaluations is the Trainer's
    value, most = last.split("value='")[1].split("'")[0], last.split("max='")[1].split("'")[0]
    assert float(value) == pytest.approx(float(most))
    assert any("50% 1.00/2 epochs" in html or "epochs [" in html for html in shown[:-1])
