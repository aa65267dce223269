"""A ledger that lacks rows which a checkpoint counts on."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger, MixingTrainer
from tests.helpers import Tokens
from tests.mixer.trainer.runs import make
from tests.refusals import refused

STREAMS = {"a": Tokens(20, 1), "b": Tokens(14, 2)}


def _trainer(folder: Path, max_steps: int, **options: Any) -> MixingTrainer:
    own = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 2, "mixing": "Uniform", "batch_size": 4}
    return make(folder, max_steps=max_steps, train_dataset=STREAMS, **own, **options)


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    trainer = _trainer(tmp_path, 4)
    trainer.ledger.finish = trainer.ledger.sync  # type: ignore[method-assign]
    trainer.train()
    return tmp_path


@pytest.mark.parametrize("table", ["clock", "streams"])
def test_a_run_that_goes_on_is_refused(broken_off: Path, table: str) -> None:
    tail = broken_off / "ledger" / table / "tail-000000.arrow"
    tail.write_bytes(tail.read_bytes()[:-300])
    whole = {"clock": 4, "streams": 8}[table]
    left = len(Ledger(broken_off / "ledger").read(table))
    assert left < whole
    with refused("allow_inexact") as caught:
        _trainer(broken_off, 6).train(resume_from_checkpoint=True)
    assert f"ledger/{table} lacks {whole - left} rows" in str(caught.value)


def test_it_goes_on_without_them_on_purpose(broken_off: Path) -> None:
    (broken_off / "ledger" / "clock" / "tail-000000.arrow").unlink()
    trainer = _trainer(broken_off, 6, allow_inexact=True)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.ledger.clock()["step"].tolist() == [5, 6]
    assert trainer.ledger.to_pandas()["step"].tolist() == [step for step in range(1, 7) for _ in range(2)]
    _trainer(broken_off, 8).train(resume_from_checkpoint=True)  # a later checkpoint counts on what there was then
