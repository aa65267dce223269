"""`mixer train` under a scheduler that takes the machine away."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mixer.cli.entry import main
from mixer.ledger.folder import read_note
from mixer.trainer.checkpointing.files import list_checkpoints
from mixer.trainer.loop import MixingCallback

ROOT = Path(__file__).parents[2]


def test_a_signal_saves_the_run_and_it_simply_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close = MixingCallback.on_step_end
    handlers: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}

    def receive(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return close(self, args, state, control, **kwargs)

    options = {
        "output_dir": tmp_path / "run",
        "max_steps": 3,
        "save_strategy": "steps",
        "save_steps": 100,
        "report_to": "none",
    }
    written = [word for name, value in options.items() for word in (f"--training.{name}", str(value))]
    command = ["train", str(ROOT / "recipes" / "demo.yaml"), *written, "--resume", "auto"]
    with monkeypatch.context() as patch:
        patch.setattr(MixingCallback, "on_step_end", receive)
        with pytest.raises(SystemExit) as ended:
            main(command)
    assert ended.value.code == 143
    assert "mixer train: SIGTERM ended the run after step 2" in capsys.readouterr().err
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["checkpoint-2"]
    assert not (tmp_path / "run" / "model.safetensors").exists(), "it is not done"
    main(command)
    assert f"Resumes from {tmp_path / 'run' / 'checkpoint-2'}" in capsys.readouterr().err
    assert read_note(tmp_path / "run")["ended"] == "finished"
    assert (tmp_path / "run" / "model.safetensors").exists()
    for each, handler in before.items():
        signal.signal(each, handler)
