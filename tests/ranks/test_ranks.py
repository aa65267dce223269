"""Two ranks train what one process trains, and end together where they cannot."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from mixer import Budget, Fixed, MixingTrainer, Uniform
from tests.helpers import MODEL_DATA, GradientRecorder, Tokens, build_model, three_streams, weights_of
from tests.losses import DECLARED, LOSSES, padded, ragged, small_model, whole_gradient
from tests.mixer.losses.test_rows_of_collators import marked_twice, streams, trained, without_marked
from tests.mixer.trainer import test_shares_of_labels as shares_of_labels
from tests.mixer.trainer.runs import make, train as train_three
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

FEW = ("llama", "gpt2", "bert-classifier")
CLASSES = "sequence-classification"


def train(folder: Path, model: Any, data: Any, size: int, steps: int, kind: Any = MixingTrainer, **rules: Any) -> Any:
    own = {"train_dataset": data, "callbacks": [recorder := GradientRecorder()], "max_steps": steps}
    trainer: Any = make(folder, model, kind, per_device_train_batch_size=size, **own, **rules)
    trainer.train()
    trainer.gradients = torch.stack(recorder.gradients)
    trainer.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer


def mixture(name: str, folder: Path, size: int = 2) -> dict[str, Any]:
    """Steps with unequal counts on the ranks, several micro-batches, and a rank without samples."""
    data = three_streams(MODEL_DATA[name])
    trainer = train(folder / name, build_model(name), data, size, 6, batch_size=9, mixing=Uniform())
    assert not trainer._parts.run.splitting.by_stream
    is_main = trainer.is_world_process_zero()
    found = (
        {"rows": trainer.ledger.to_pandas(), "totals": trainer.ledger.timings()["total"].tolist()} if is_main else {}
    )
    return {"gradients": trainer.gradients, "losses": trainer.losses, **found}


def num_forwards(folder: Path) -> int:
    forwards, model = [], build_model("llama")
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    train(folder / "forwards", model, three_streams(), 8, 2)
    return len(forwards)


class _DividesByItems(MixingTrainer):
    """Computes a loss of its own, divided by the items of all ranks, and leaves the number of ranks out."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return model(**inputs)["loss"] * len(inputs["labels"]) / num_items_in_batch


def own_loss(folder: Path) -> torch.Tensor:
    return train(
        folder, build_model("bert-classifier"), three_streams(CLASSES), 2, 1, _DividesByItems, batch_size=9
    ).gradients


def kinds_of_loss(folder: Path) -> dict[str, float]:
    """How far the gradients of losses are from those of the whole batch, whatever they are divided by."""
    rows, errors = ragged(13, 1), {}
    for name, (loss, is_exact) in LOSSES.items():
        options = {"batch_size": 13, "compute_loss_func": loss, "data_collator": padded}
        options["loss_reduction"] = DECLARED.get(name)
        found = train(folder, small_model(), {"a": rows[:5], "b": rows[5:]}, 2, 1, **options).gradients[0]
        exact = whole_gradient(loss, rows)
        if is_exact:
            errors[name] = float((found - exact).norm() / exact.norm())
    return errors


class _WeightsOnOneRank(TrainerCallback):
    mixing: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and args.process_index == 1:
            self.mixing.set_weights({"a": 1, "b": 5, "c": 1})


def disagreement(folder: Path) -> str:
    trainer = make(folder / "disagreement")
    _WeightsOnOneRank.mixing = trainer.mixing
    trainer.add_callback(_WeightsOnOneRank)
    return message_of(trainer.train)


class _Broken(Tokens):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 7:
            raise OSError("disk on fire")
        return super().__getitem__(index)


def broken_sample(folder: Path) -> str:
    streams = {"good": Tokens(20, 1), "bad": _Broken(12, 2)}
    return message_of(make(folder / "broken", max_steps=10, train_dataset=streams, batch_size=8).train)


class _InfiniteForToken(nn.Module):
    """A classifier whose loss is infinite for rows that hold the token 63."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        bad = (input_ids == 63).any(dim=1, keepdim=True)
        logits = torch.where(bad, output.logits * float("inf"), output.logits)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def nonfinite(folder: Path) -> list[Any]:
    """Whether a run that skips leaves the weights alone, and what one that raises says."""
    good, bad = Tokens(16, 1, CLASSES), Tokens(16, 2, CLASSES)
    for rows, replacement in ((good.rows, 1), (bad.rows, 63)):
        for row in rows:
            row["input_ids"] = torch.where(row["input_ids"] >= 63, 1, row["input_ids"])
            row["input_ids"][0] = replacement
    found: list[Any] = []
    for mode in ("skip", "raise"):
        before = weights_of(model := _InfiniteForToken())
        own = {"max_steps": 2, "weight_decay": 0.1, "batch_size": 6, "nonfinite": mode}
        trainer = make(folder / mode, model, train_dataset={"good": good, "bad": bad}, **own)
        found += [message_of(trainer.train), torch.equal(before, weights_of(model))]
    return found


def counted_by_labels(folder: Path, size: int = 3) -> dict[str, Any]:
    weights, budget = Fixed(shares_of_labels.WEIGHTS, unit="labels"), Budget(labels=300)
    options = {"mixing": weights, "budget": budget, "batch_size": 7, "per_device_train_batch_size": size}
    trainer = shares_of_labels.made(folder / "labels", max_steps=-1, **options)
    trainer.train()
    return trainer.mixing.state_dict()


def one_stream_each(folder: Path, size: int = 4) -> dict[str, Any]:
    options = {"max_steps": -1, "num_train_epochs": 2, "one_stream_per": "step", "per_device_train_batch_size": size}
    trainer = train_three(folder / "one stream", **options)
    return {"weights": weights_of(trainer.model), "seen": trainer.mixing.seen.tolist()}


# Collators that return another number of rows; perhaps one rank alone has such rows.
COLLATORS = {"fewer": without_marked, "more": marked_twice}


def other_rows(name: str, folder: Path) -> list[Any]:
    trainer, gradients = trained(folder / name, COLLATORS[name], "bert-tokens", max_steps=1, size=7)
    return [gradients[0], trainer.state.log_history[0]["loss"]]


results = launched(
    *(partial(mixture, name) for name in FEW),
    *(partial(other_rows, name) for name in COLLATORS),
    *(counted_by_labels, one_stream_each, num_forwards, own_loss, disagreement, broken_sample, nonfinite),
    rare=[*(partial(mixture, name) for name in MODEL_DATA if name not in FEW), kinds_of_loss],
)


@pytest.mark.parametrize("name", some(MODEL_DATA, FEW))
def test_gradients_and_ledger_of_two_ranks_are_those_of_one_process(name, results, tmp_path) -> None:
    single, both = mixture(name, tmp_path, 64), results[0][name]
    for result in results:
        assert result[name]["gradients"].abs().max() > 1e-3
        torch.testing.assert_close(result[name]["gradients"], single["gradients"], rtol=0, atol=1e-6)
    # Five steps of an epoch of 37 samples: four of 9, and one sample left for two ranks.
    assert single["totals"] == both["totals"] == [9, 9, 9, 9, 1, 9]
    pd.testing.assert_frame_equal(single["rows"].drop(columns="loss"), both["rows"].drop(columns="loss"))
    pd.testing.assert_series_equal(single["rows"]["loss"], both["rows"]["loss"], atol=1e-5, rtol=0)
    # The sum over the streams is the loss that is propagated back. The Trainer does not know that GPT-2's head shifts
    # its labels, and divides by the first of each row too.
    steps = both["rows"].assign(sum=both["rows"]["loss"].fillna(0.0) * both["rows"]["items"]).groupby("step")
    divided_by = steps["items"].sum() + (steps["count"].sum() if name == "gpt2" else 0)
    assert both["losses"] == pytest.approx((steps["sum"].sum() / divided_by).tolist(), abs=1e-6)


def test_two_steps_are_two_forwards_of_each_rank(results: Results) -> None:
    assert [result["num_forwards"] for result in results] == [2, 2]


def test_a_loss_that_leaves_out_the_number_of_ranks_is_scaled_right(results: Results, tmp_path: Path) -> None:
    single = train(tmp_path, build_model("bert-classifier"), three_streams(CLASSES), 64, 1, batch_size=9)
    torch.testing.assert_close(results[0]["own_loss"], single.gradients, rtol=0, atol=1e-6)


@pytest.mark.full
def test_losses_of_every_kind_have_the_gradient_of_the_whole_batch(results: Results) -> None:
    for result in results:
        assert len(result["kinds_of_loss"]) == sum(is_exact for _, is_exact in LOSSES.values())
        assert {name: error for name, error in result["kinds_of_loss"].items() if error > 2e-6} == {}


def test_ranks_that_disagree_end_in_an_error_on_all(results: Results) -> None:
    for result in results:
        assert result["disagreement"].startswith("DisagreementError")
        assert all(f"rank {rank}: step 3" in result["disagreement"] for rank in (0, 1))


def test_a_sample_that_fails_on_one_rank_ends_in_an_error_on_all(results: Results) -> None:
    messages = [result["broken_sample"] for result in results]
    assert all("Stream 'bad': sample 7 could not be loaded: OSError: disk on fire" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]


def test_a_loss_that_is_not_finite_skips_or_raises_on_all_ranks(results: Results) -> None:
    for result in results:
        assert result["nonfinite"][:2] == ["no error", True]
        assert result["nonfinite"][2].startswith("NonFiniteLossError: Step 1: the loss of ['bad']")


def test_labels_of_a_step_are_counted_as_on_one_process(results: Results, tmp_path: Path) -> None:
    alone = counted_by_labels(tmp_path, 7)
    assert [result["counted_by_labels"] for result in results] == [alone] * 2


def test_steps_of_one_stream_each_are_those_of_one_process(results: Results, tmp_path: Path) -> None:
    alone = one_stream_each(tmp_path, 8)
    assert torch.isfinite(alone["weights"]).all()
    for result in (result["one_stream_each"] for result in results):
        assert result["seen"] == alone["seen"]
        torch.testing.assert_close(result["weights"], alone["weights"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", COLLATORS)
def test_a_step_of_other_rows_than_were_drawn_is_that_of_one_process(results: Results, name: str) -> None:
    plain: Any = build_model("bert-tokens")
    loss = plain(**COLLATORS[name]([row for stream in streams("token-classification").values() for row in stream])).loss
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
    for gradient, logged in (result[name] for result in results):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
        assert logged == pytest.approx(loss.item(), rel=1e-5)
