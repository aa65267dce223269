"""What tests of `mixer doremi` share."""

from pathlib import Path
from typing import Any

import pytest

from mixer import MixingTrainer
from mixer.cli.entry import main


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that were trained."""
    names: list[str] = []
    train = MixingTrainer.train

    def noted(self: MixingTrainer, *args: Any, **kwargs: Any) -> Any:
        names.append(Path(str(self.args.output_dir)).name)
        return train(self, *args, **kwargs)

    monkeypatch.setattr(MixingTrainer, "train", noted)
    return names


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["doremi", *arguments])
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.split())
