"""Targets that have the name of a stream: rows unlike its are told before the first step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import MarginalValue, Objective, Uniform
from mixer.measurements.hooks import namesakes
from mixer.measurements.hooks.namesakes import features, told_apart
from tests.helpers import Tokens
from tests.mixer.comparing import KIND, Tagger, build, streams

ROWS = Tokens(400, 1, KIND)


class Low(Tokens):
    """Rows of few tokens."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return {**row, "input_ids": row["input_ids"] % 8}


def warnings_of(folder: Path, caplog: Any, own: Any, policy: Any = None, target: str = "a") -> list[str]:
    sources = {**streams(), "a": torch.utils.data.Subset(ROWS, range(200))}
    sets = {**streams(), target: own}
    policy = MarginalValue(interval_steps=1) if policy is None else policy
    trainer = build(
        *(folder, policy, Tagger()),
        train_dataset=sources,
        eval_dataset=sets,
        objective=Objective([target], development_share=0.5),
        args={"max_steps": 1},
    )
    trainer.train()
    told = [entry.message for entry in caplog.records if entry.name == namesakes.__name__]
    assert trainer.state.global_step == 1
    return told


@pytest.mark.parametrize(
    ("own", "policy", "target", "number"),
    [
        (Low(100, 7, KIND), None, "a", 1),
        (torch.utils.data.Subset(ROWS, range(200, 300)), None, "a", 0),  # rows of the same kind
        (Low(100, 7, KIND), None, "outside", 0),
        (Low(100, 7, KIND), Uniform(), "a", 0),  # nothing goes by the target
        (Low(20, 7, KIND), None, "a", 0),  # too few development rows to tell
    ],
)
def test_rows_unlike_those_of_the_stream_are_told(tmp_path, caplog, own, policy, target, number) -> None:
    assert len(warnings_of(tmp_path, caplog, own, policy, target)) == number


def test_a_comparison_that_fails_is_told_and_the_run_trains(tmp_path, caplog, monkeypatch) -> None:
    def failing(_inputs: Any) -> Any:
        raise OSError("no such row")

    monkeypatch.setattr(namesakes, "features", failing)
    (told,) = warnings_of(tmp_path, caplog, Low(100, 7, KIND))
    assert "OSError: no such row" in told


def test_inputs_that_have_no_row_of_each_sample_are_left_out() -> None:
    ids = torch.arange(12).reshape(4, 3)
    parts = {"input_ids": ids, "pixel_values": torch.rand(7, 5), "cu_seq_lens": torch.arange(5), "none": ids[:0]}
    assert set(features(parts)) == {"input_ids"}
    packed = [features({"input_ids": torch.arange(8)[None], "cu_seq_lens": torch.tensor([0, 3, 8])})]
    assert told_apart(packed, packed) == 0.5
    assert features({"waveform": torch.rand(2, 50_000)})["waveform"].shape[1] < 5_000


def test_rows_are_told_apart_by_tokens_labels_and_features() -> None:
    random = torch.Generator().manual_seed(0)

    def rows(offset: int = 0, label: int = 0, shift: float = 0.0) -> list[dict[str, np.ndarray]]:
        ids = torch.randint(offset, offset + 50, (64, 12), generator=random)
        labels = (torch.rand(64, generator=random) < 0.5).long() + label
        hidden = torch.randn(64, 5, 3, generator=random) + shift
        parts = [{"input_ids": ids, "labels": labels, "hidden": hidden, "attention_mask": ids * 0 + offset}]
        return [features(part) for part in parts]

    base = rows()
    assert 0.3 < told_apart(base, rows()) < 0.7
    assert told_apart(base, rows(offset=50)) == 1.0
    assert told_apart(base, rows(label=2)) > 0.9
    assert told_apart(base, rows(shift=2.0)) > 0.9
    assert told_apart([], []) == told_apart([{}], [{}]) == 0.5
