"""Aggregated gradients on two ranks: what one rank does, to rounding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mixer import MixingTrainer, schedules
from mixer.gradients.conflict import Aggregator
from tests.helpers import build_model, mixing_trainer, three_streams, weights_of
from tests.mixer.aggregated import Classifier, TwoSides, logged, make_trainer
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

CASES: dict[str, dict[str, Any]] = {
    "pcgrad": {},
    "upgrad": {"max_grad_norm": 0.1},
    # Fewer samples than streams: ranks without one of a stream, and streams that are absent.
    "upgrad of few": {"batch_size": 3, "max_steps": 8},
    "upgrad on two sides": {"model": TwoSides, "ddp_find_unused_parameters": True},
    "upgrad in buckets": {"ddp_bucket_cap_mb": 1, "optim": "adamw_torch", "learning_rate": 0.05},
}


def run(folder: Path, name: str, **changes: Any) -> MixingTrainer:
    """Trains a case; on one rank or several it is the same run."""
    trainer = make_trainer(folder, name.split()[0], **{**CASES[name], **changes})
    trainer.train()
    return trainer


def found_in(trainer: MixingTrainer) -> dict[str, torch.Tensor]:
    return {"weights": weights_of(trainer.model), "grad_norm": torch.tensor(logged(trainer, "grad_norm"))}


def same(name: str, folder: Path) -> Any:
    return found_in(run(folder / name, name))


@contextmanager
def on_rank_1(weigh: Callable[..., Any]) -> Iterator[None]:
    """There, weights are found otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        if dist.is_initialized() and dist.get_rank() == 1:
            patch.setattr(Aggregator, "weigh", weigh)
        yield


def other_devices(folder: Path) -> torch.Tensor:
    """Rank 1 multiplies a little differently, as another device may: all go by what rank 0 finds."""
    original = Aggregator.weigh
    with on_rank_1(lambda self, gramian, *rest: original(self, gramian * 1.001, *rest) + 1e-3):
        return weights_of(run(folder / "other", "pcgrad").model)


def failure(folder: Path) -> str:

    def failing(*arguments: Any) -> Any:
        raise ValueError("no way out")

    with on_rank_1(failing):
        return message_of(make_trainer(folder / "failing", "upgrad").train)


class _Sparse(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)


class _Ignoring(Classifier):
    _ddp_params_and_buffers_to_ignore = ("body.bias",)


REFUSED = {
    "tokens": "conflict=pcgrad: with max_tokens_per_micro_batch ranks may end a step with different streams",
    "sparse": "conflict=UPGrad needs a separate gradient per stream, which is not possible here: module.table",
    "ignored": "which is not possible here: DDP does not average 1 of its parameters",
    "each_batch": "conflict=UPGrad averages the gradient of each stream once, but sync_each_batch=True",
    "noise": "batch_size=NoiseScale compares the gradients of the ranks",
}


def refusals(folder: Path) -> dict[str, str]:
    def message(**changes: Any) -> str:
        return message_of(lambda: make_trainer(folder / "refused", "upgrad", **changes).train())

    args, data = make_trainer(folder / "refused").args, three_streams()
    by_tokens = partial(
        mixing_trainer, MixingTrainer, build_model("llama"), args, None, data, max_tokens_per_micro_batch=40
    )
    each_batch = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return {
        "tokens": message_of(lambda: by_tokens(conflict="pcgrad")),
        "sparse": message(model=_Sparse),
        "ignored": message(model=_Ignoring),
        "each_batch": message(accelerator_config=each_batch),
        "noise": message(batch_size=schedules.NoiseScale()),
    }


pytest.importorskip("torchjd")


FEW = ("pcgrad", "upgrad of few")
results = launched(
    *(*(partial(same, name) for name in FEW), failure),
    rare=[*(partial(same, name) for name in CASES if name not in FEW), other_devices, refusals],
)


@pytest.mark.parametrize("name", some(CASES, FEW))
def test_two_ranks_do_what_one_does(name: str, results: Results, tmp_path: Path) -> None:
    expected = found_in(run(tmp_path, name))
    first, second = (result[name] for result in results)
    assert torch.equal(first["weights"], second["weights"])
    for key, values in expected.items():
        rtol = 0 if key == "weights" else 1e-5
        torch.testing.assert_close(first[key], values, rtol=rtol, atol=1e-11, msg=key)


def test_a_rank_that_finds_no_weights_ends_all(results: Results) -> None:
    assert results[1]["failure"] == "ValueError: no way out"
    assert results[0]["failure"].startswith("RemoteError: rank 1 failed: ValueError: no way out")


@pytest.mark.full
def test_ranks_whose_devices_multiply_differently_stay_together(results: Results) -> None:
    assert all(torch.equal(result["other_devices"], results[0]["pcgrad"]["weights"]) for result in results)


@pytest.mark.full
def test_what_is_refused(results: Results) -> None:
    for result in results:
        for case, message in REFUSED.items():
            assert message in result["refusals"][case]
