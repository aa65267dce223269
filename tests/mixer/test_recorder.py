from pathlib import Path

import pytest

from mixer import MixingTrainer, Uniform
from mixer.controller import Mixing
from mixer.recorder import Recorder
from tests.helpers import arguments, build_model, three_streams


class _ReadingLate(MixingTrainer):
    def _new_recorder(self, mixing: Mixing) -> Recorder:
        return Recorder(mixing, self.ledger, reads_at_once=False)


def _run(trainer_class: type[MixingTrainer], tmp_path: Path, num_steps: int) -> MixingTrainer:
    args = arguments(tmp_path / trainer_class.__name__, max_steps=num_steps, logging_steps=5)
    trainer = trainer_class(build_model("llama"), args, train_dataset=three_streams(), mixing=Uniform(), batch_size=6)
    trainer.train()
    return trainer


@pytest.mark.parametrize("num_steps", [3, 5, 70])
def test_losses_read_late_are_the_losses_read_at_once(tmp_path: Path, num_steps: int) -> None:
    late, at_once = _run(_ReadingLate, tmp_path, num_steps), _run(MixingTrainer, tmp_path, num_steps)
    assert late.ledger.to_pandas().equals(at_once.ledger.to_pandas())
    for mine, theirs in zip(late.state.log_history[:-1], at_once.state.log_history[:-1], strict=True):
        assert mine == theirs


def test_losses_wait_until_they_are_needed(tmp_path: Path) -> None:
    trainer = _ReadingLate(
        build_model("llama"), arguments(tmp_path, max_steps=9, logging_steps=9), None, three_streams()
    )
    waiting = []
    record = Recorder.record

    class Watching(Recorder):
        def record(self, update: object) -> None:
            record(self, update)
            waiting.append(len(self._waiting))

    trainer._new_recorder = lambda mixing: Watching(mixing, trainer.ledger, reads_at_once=False)
    trainer.train()
    assert waiting == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert trainer.ledger.to_pandas()["step"].nunique() == 9
