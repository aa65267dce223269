"""A run with a memory that a signal ends between two log entries: the ledger says of the memory what it always does."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from mixer.distributed.signals import RunTerminated
from tests.replay.test_resuming import build


class Terminated(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_a_signal_ends_notes_its_memory_when_the_whole_run_does(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        whole = build(tmp_path / "whole", "references")
        whole.train()
        with pytest.raises(RunTerminated):
            build(tmp_path / "run", "references", [Terminated()]).train()
    finally:
        signal.signal(signal.SIGTERM, before)
    again = build(tmp_path / "run", "references")
    again.train(resume_from_checkpoint=True)
    logged = {entry["step"] for entry in whole.state.log_history if "loss" in entry}
    assert 3 not in logged, "else there is nothing to see"
    assert again.ledger.memories().equals(whole.ledger.memories())
