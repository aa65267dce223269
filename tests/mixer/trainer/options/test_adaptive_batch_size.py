"""The drop-in for the published extension, where its script does not go."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn

from mixer import AdaptiveBatchSizeTrainer
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from replay.feeding.features import extract_features
from tests.helpers import On, arguments
from tests.refusals import refused


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.rows: list[int] = []

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if self.training:
            self.rows.append(len(x))
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


ROWS = datasets.Dataset.from_dict({"number": list(range(12)), "name": [f"row {number}" for number in range(12)]})


def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = torch.tensor([[float(row["number"])] for row in batch])
    return {"x": numbers, "labels": numbers[:, 0].long() % 2, "indices": numbers, "names": [r["name"] for r in batch]}


def made(folder: Path, scheduler: Any = None, kind: Any = AdaptiveBatchSizeTrainer, **changes: Any) -> Any:
    names = ("callbacks", "model", "train_dataset", "data_collator")
    own = {name: changes.pop(name) for name in names if name in changes}
    own = {"model": Plain(), "train_dataset": ROWS, "data_collator": collate, **own}
    args = {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 2, **changes}
    return kind(scheduler or (lambda step, size: size + 1), args=arguments(folder, **args), **own)


def train(*given: Any, **changes: Any) -> Any:
    trainer = made(*given, **changes)
    trainer.train()
    return trainer


def test_compute_loss_sees_all_that_the_collator_makes(tmp_path: Path) -> None:
    seen = set()

    class Mine(AdaptiveBatchSizeTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.update(inputs)
            inputs.pop("indices")
            return super().compute_loss(model, inputs, *args, **kwargs)

    assert train(tmp_path, None, Mine).model.rows == [2, 3, 4, 3]  # what a forward does not take is left out
    assert seen == {"x", "labels", "indices", "names"}


def test_a_collator_gets_all_columns_wherever_rows_are_read(tmp_path: Path) -> None:
    trainer = made(tmp_path)
    assert trainer.auxiliary_passes.collator([ROWS[0]])["names"] == ["row 0"]
    features = extract_features(trainer, ROWS)
    assert features.shape[0] == len(ROWS)
    bare = made(tmp_path / "bare", train_dataset=None)
    assert bare.evaluate(ROWS)["eval_loss"] == pytest.approx(trainer.evaluate(ROWS)["eval_loss"], abs=1.0)
    assert len(bare.predict(ROWS).predictions) == len(ROWS)


@pytest.mark.parametrize(
    ("size", "cap", "rows"), [(2, 3, [2, 3, 3, 1, 3]), (2, None, [2, 3, 4, 3]), (1, 1, [1] * 12), (100, None, [12])]
)
def test_a_forward_has_no_more_rows_than_its_cap(tmp_path: Path, size: int, cap: int | None, rows: list[int]) -> None:
    trainer = train(tmp_path, max_samples_per_micro_batch=cap, per_device_train_batch_size=size)
    assert trainer.model.rows == rows
    assert trainer.get_train_dataloader().configured_cap.max_samples == (cap or max(64, size))


def test_a_resumed_run_shows_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataloader_drop_last": True, "num_train_epochs": 3, "save_steps": 3}
    options["save_strategy"], begun = "steps", list[Any]()

    def note(state: Any, **_: Any) -> None:
        begun.append((state.train_coverage, state.num_seen_train_examples, state.num_train_examples))

    whole = train(tmp_path, callbacks=[On(train_begin=note)], **options)
    # 2, 3 and 4 samples, with 3 left for a batch of 5; then 5 and 6; then 7.
    logged = [(entry["train_coverage"], entry["epoch"]) for entry in whole.state.log_history if "loss" in entry]
    shares = [2, 5, 9, 5, 11, 7], [2, 5, 9, 14, 20, 27]
    assert logged == [(pytest.approx(seen / 12), pytest.approx(all_ / 12)) for seen, all_ in zip(*shares, strict=True)]
    resumed = made(tmp_path, callbacks=[On(train_begin=note)], **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert begun == [(0.0, 0, 12), (0.75, 9, 12)]
    assert resumed.state.log_history[:-1] == [pytest.approx(entry) for entry in whole.state.log_history[:-1]]


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("callbacks", Plain(), InvalidTypeError),
        ("max_samples_per_micro_batch", 0, InvalidValueError),
        ("max_samples_per_micro_batch", 2.5, InvalidTypeError),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, option: str, value: Any, error: type[Exception]) -> None:
    with refused(option, error):
        made(tmp_path, **{option: value})
