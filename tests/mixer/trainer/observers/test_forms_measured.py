"""Streams with heads of their own beside what measures, compares, cuts and resumes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer import Head, PiKE, Probing
from tests.helpers import weights_of
from tests.mixer.forms import (
    HEADS,
    NAMES,
    assert_by_hand,
    assert_logged,
    gradients_by_stream,
    logged,
    means_by_hand,
    multi_task,
    shares_by_hand,
    task_data,
    task_streams,
    trained,
    watched,
)

# ---- Gradients ----


def test_pcgrad_projects_the_streams_own_gradients(tmp_path: Path) -> None:
    """Of two streams in conflict, each loses its part along the other."""
    names = ["topic", "stars"]
    streams = task_streams(names, stars={"loss_weight": 2.0})
    trainer = trained(tmp_path, multi_task(), streams, conflict="pcgrad", args={"max_steps": 6})
    num_conflicts = 0
    steps = zip(trainer.recorder.gradients, trainer.batches, logged(trainer), strict=True)
    for gradient, (batch, model), entry in steps:
        means = means_by_hand(batch, model, names)
        shares = shares_by_hand(batch, means)
        one, other = gradients_by_stream(model, means, 2)
        one, other = shares[0] * one, 2.0 * shares[1] * other
        product = one @ other
        if product < 0:
            num_conflicts += 1
            one, other = one - product / (other @ other) * other, other - product / (one @ one) * one
        torch.testing.assert_close(gradient, one + other, rtol=1e-6, atol=1e-9)
        assert_logged(entry, batch, means, names)
    assert num_conflicts


EXACT: dict[str, Any] = {"mode": "exact", "exact_accumulate": True}


@pytest.mark.parametrize(
    ("options", "micro"),
    [(EXACT, 64), (EXACT, 2), ({**EXACT, "homogeneous": True}, 2), ({"mode": "sketch", "sketch_size": 10**4}, 2)],
)
def test_a_probe_finds_the_gradient_of_each_streams_mean_loss(
    tmp_path: Path, options: dict[str, Any], micro: int
) -> None:
    streams = task_streams(topic={"loss_weight": 3.0}, flags={"loss_weight": 0.5})
    trainer = trained(tmp_path, multi_task(), streams, micro, probe=Probing(1, **options), args={"max_steps": 1})
    batch, model = trainer.batches[0]
    means = means_by_hand(batch, model, NAMES)
    gradients = gradients_by_stream(model, means, 4).detach()
    found: Any = trainer._parts.probe.statistics
    expected = (gradients @ gradients.T).numpy()
    np.testing.assert_allclose(found.gram, expected, rtol=1e-5, atol=1e-6 * expected.max())
    assert found.counts.tolist() == batch.plan.counts.tolist()
    shares = np.array([shares_by_hand(batch, means)[k] for k in range(4)]) * [3.0, 1.0, 0.5, 1.0]
    np.testing.assert_allclose(found.shares, shares / shares.sum(), rtol=1e-6)


def test_an_exact_probe_of_one_micro_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"probe\.mode='exact' measures the gradient of one micro-batch on one rank, b"
    ):
        trained(tmp_path, multi_task(), task_streams(), probe=Probing(1, mode="exact"))


def test_pike_trains_on_heads(tmp_path: Path) -> None:
    trainer = trained(tmp_path, multi_task(), task_streams(), mixing=PiKE(interval_steps=1), batch_size=16)
    assert_by_hand(trainer)
    weights = np.array([batch.plan.weights for batch, _ in trainer.batches])
    assert (weights[0] == 0.25).all()
    assert np.abs(weights[-1] - 0.25).max() > 1e-4


# ---- Comparisons ----


def test_the_excess_is_that_over_the_reference_models_head(tmp_path: Path) -> None:
    reference, names = multi_task(), ["topic", "tags"]
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(0.9)
    options: dict[str, Any] = {"mixing": "DoReMi", "reference_model": reference}
    trainer = trained(tmp_path, multi_task(), task_streams(names), 3, 12, **options)
    for (batch, model), entry in zip(trainer.batches, logged(trainer), strict=True):
        assert_logged(entry, batch, means_by_hand(batch, model, names), names)
        for stream_id, name in enumerate(names):
            assert entry[f"excess_loss/{name}"] == pytest.approx(_excess(batch, model, reference, stream_id), rel=1e-5)


def _excess(batch: Any, model: nn.Module, reference: nn.Module, stream_id: int) -> float:
    """The mean over items of what the model loses more, where it does."""
    found = []
    for micro in batch.micro_batches:
        if int(micro.stream_ids[0]) == stream_id:
            inputs = {key: value for key, value in micro.inputs.items() if key != "labels"}
            labels = micro.inputs["labels"].reshape(-1)
            logits = [one(**inputs).logits.reshape(len(labels), -1) for one in (model, reference.eval())]
            own, other = (F.cross_entropy(values, labels, reduction="none", ignore_index=-100) for values in logits)
            found.append((own - other).clamp(min=0)[labels.ne(-100)])
    return torch.cat(found).mean().item()


def test_losses_after_the_step_are_those_of_the_heads(tmp_path: Path) -> None:
    trainer = trained(tmp_path, multi_task(), task_streams(), mixing="FAMO", batch_size=16)
    models = [model for _, model in trainer.batches[1:]] + [trainer.model]
    for (batch, _), after, entry in zip(trainer.batches, models, logged(trainer), strict=True):
        means = means_by_hand(batch, after, NAMES)
        for stream_id, name in enumerate(NAMES):
            assert entry[f"loss_after/{name}"] == pytest.approx(means[stream_id].item(), rel=1e-5)


# ---- Cutting and smoothing ----


@pytest.mark.parametrize("options", [{"max_tokens_per_micro_batch": 40}, {"args": {"auto_find_batch_size": True}}])
def test_other_micro_batches_have_the_same_gradient(tmp_path: Path, options: dict[str, Any]) -> None:
    args = {"train_sampling_strategy": "group_by_length", **options.pop("args", {})}
    assert_by_hand(trained(tmp_path, multi_task(), task_streams(), args=args, **options))


def test_a_step_that_does_not_fit_is_cut_anew(tmp_path: Path) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = multi_task()

        def forward(self, task: str, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
            if len(input_ids) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return self.inner(task, input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    small = trained(tmp_path, Small(), task_streams(), args={"auto_find_batch_size": True})
    plain = trained(tmp_path, multi_task(), task_streams())
    found, expected = (torch.stack(trainer.recorder.gradients) for trainer in (small, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_smoothing_is_that_of_each_head(tmp_path: Path) -> None:
    def smoothed(model: nn.Module, task: str, row: Any) -> Tensor:
        logits = model(task=task, **{key: row[key] for key in ("input_ids", "attention_mask")}).logits.reshape(-1, 3)
        labels = row["labels"].reshape(-1)
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.2, ignore_index=-100)

    names, args = ["topic", "tags"], {"label_smoothing_factor": 0.2}
    trainer = trained(tmp_path, multi_task(), task_streams(names), 2, args=args)
    assert_by_hand(trainer, names, tolerance=1e-6, loss_sum=smoothed)


# ---- Resuming and workers ----


def _mean_of_tokens(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits.reshape(-1, 3), labels.reshape(-1))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_run_goes_on_to_the_bit(tmp_path: Path, workers: int) -> None:
    args = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "optim": "adamw_torch"}
    args["dataloader_num_workers"] = workers
    ends = []
    for resume in (None, str(tmp_path / "checkpoint-3")):
        heads = {name: Head(**{**head.to_dict(), "dropout": 0.2}) for name, head in HEADS.items()}
        streams = task_streams(topic={"loss_weight": 2.0}, tags={"compute_loss_func": _mean_of_tokens})
        sets = {name: task_data(name, 4, 5) for name in NAMES}
        options: dict[str, Any] = {"mixing": "LossChange", "eval_dataset": sets, "args": args}
        trainer = watched(tmp_path, multi_task(heads, torch.float32), streams, 3, 16, **options)
        trainer.train(resume_from_checkpoint=resume)
        ends.append((weights_of(trainer.model), [entry["loss"] for entry in logged(trainer)]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
