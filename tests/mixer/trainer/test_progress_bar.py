"""The progress bar on a terminal, in a notebook, and where there is neither."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import ProgressCallback

from mixer import MixingTrainer
from mixer.ledger.progress.bar import MixtureProgress
from mixer.ledger.progress.line import coverage_text
from tests.helpers import Tokens, three_streams
from tests.mixer.trainer.runs import make


def train(folder: Path) -> None:
    options = {"disable_tqdm": False, "max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch"}
    data = {"a": Tokens(20, 1), "{b}": Tokens(11, 2)}
    options |= {"train_dataset": data, "eval_dataset": data, "batch_size": lambda step, size: 4 + step // 4}
    make(folder, per_device_train_batch_size=4, logging_steps=5, **options).train()


@pytest.mark.parametrize("columns", [50, 110])
def test_a_terminal_shows_the_clock_in_a_line(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 15, columns, 0, 0))
    with os.fdopen(side, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        train(tmp_path)
        monkeypatch.undo()
        written = b""
        while select.select([own], [], [], 0)[0]:
            written += os.read(own, 1 << 20)
    os.close(own)
    bars = [part for part in written.decode().replace("\n", "\r").split("\r") if "epochs [" in part]
    assert bars[-1].startswith("100%|")
    assert all(len(bar) <= columns for bar in bars)
    if columns > 100:
        assert "3.00/3 epochs [00:" in bars[-1]
        assert "<00:00] batch " in bars[-1]
        assert bars[-1].strip().endswith("coverage a 100% {b} 100%")


def _bars(trainer: MixingTrainer) -> list[type]:
    callbacks = trainer.callback_handler.callbacks
    return [type(callback) for callback in callbacks if isinstance(callback, ProgressCallback)]


def test_the_trainers_own_bar_is_replaced_and_a_users_own_stays_and_counts_steps(tmp_path: Path) -> None:
    seen = []

    class Own(ProgressCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            super().on_step_end(*args, **kwargs)
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


def test_a_notebook_shows_the_data_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython", reason="the Trainer's bar of notebooks needs IPython")
    from transformers.utils import notebook

    shown: list[str] = []

    def display(html: Any, **_: Any) -> Any:
        shown.append(html.data)
        return SimpleNamespace(update=display)

    monkeypatch.setattr(notebook.disp, "display", display)
    monkeypatch.setattr("transformers.trainer.DEFAULT_PROGRESS_CALLBACK", notebook.NotebookProgressCallback)
    options = {"disable_tqdm": False, "max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch"}
    held = {**three_streams(), "<img src=x>": three_streams()["a"]}
    make(tmp_path, eval_dataset=held, batch_size=lambda step, size: size + step, **options).train()
    last = shown[-1]
    assert "100% 2.00/2 epochs [" in last
    assert "coverage a 100%" in last
    assert "B Loss" in last  # the table of evaluations is the Trainer's
    assert "<img" not in last.lower()
    table = last.partition("<pre>")[2].partition("</pre>")[0].splitlines()
    assert table[0].split() == ["stream", "share", "loss", "samples", "eval", "loss"]
    assert [line.split()[0] for line in table[1:]] == ["a", "b", "c", "&lt;img"]
