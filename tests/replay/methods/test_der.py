"""What dark experience replay keeps of samples, compares, and refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import DataCollatorWithFlattening

from mixer import MixingTrainer
from replay import InMemory, ReplayBuffer, ReplayRatio
from replay.methods import AGEM, DER, DERPlusPlus
from tests.helpers import MODEL_DATA, Tokens, arguments, build_model, weights_of
from tests.replay.methods.runs import Classifier, Points, make_trainer, spied


def _payloads(trainer: MixingTrainer) -> list[np.ndarray]:
    buffer = trainer.buffer
    return buffer.payloads(np.arange(len(buffer)), "logits")


def test_a_vector_is_kept_whole_and_of_tokens_thirty_two(tmp_path: Path) -> None:
    whole, _ = spied(tmp_path / "a", DER())
    assert {kept.shape for kept in _payloads(whole)} == {(3,)}
    two, _ = spied(tmp_path / "b", DER(top_k=2))
    assert {kept.shape for kept in _payloads(two)} == {(2, 2)}
    tokens = make_trainer(tmp_path / "c", [DER()], model=build_model("llama"), new=Tokens(30, 1))
    tokens.train()
    buffer = tokens.buffer
    for slot, kept in enumerate(_payloads(tokens)):
        assert kept.shape == (int((buffer[slot]["labels"][1:] != -100).sum()), 2, 32)
        assert kept.dtype == np.float32
        assert kept[:, 1].max() < 64
    few = make_trainer(
        tmp_path / "d", [DER()], model=build_model("bert-tokens"), new=Tokens(30, 1, MODEL_DATA["bert-tokens"])
    )
    few.train()
    assert {kept.shape[1:] for kept in _payloads(few)} == {(2, 3)}  # three classes are all there are


def test_logits_in_half_precision_are_kept_in_single(tmp_path: Path) -> None:
    data = Tokens(40, 1, "sequence-classification")
    trainer = make_trainer(tmp_path, [DER()], model=build_model("bert-classifier"), new=data, bf16=True)
    trainer.train()
    assert {kept.dtype for kept in _payloads(trainer)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", ["bert-regression", "bert-multi-label", "llama-classifier"])
def test_other_heads_run(tmp_path: Path, name: str) -> None:
    trainer = make_trainer(tmp_path, [DERPlusPlus()], model=build_model(name), new=Tokens(40, 1, MODEL_DATA[name]))
    trainer.train()
    terms = [entry["term/DERPlusPlus"] for entry in trainer.state.log_history if "term/DERPlusPlus" in entry]
    assert terms[0] == 0.0
    assert terms[-1] > 0.0


def test_the_term_that_is_logged_is_the_one_of_the_paper(tmp_path: Path) -> None:
    trainer, spy = spied(tmp_path, DER(alpha=0.7), max_steps=2)
    start, batch = Classifier(), spy.batches[1]["memory"]
    before = start(**batch)["logits"].detach()
    first = spy.batches[0]["new"]
    loss = start(**first)["loss"]
    loss.backward()
    with torch.no_grad():
        for parameter in start.parameters():
            parameter -= spy.rates[0] * parameter.grad
    expected = 0.7 * F.mse_loss(start(**batch)["logits"], before)
    entry = next(entry for entry in trainer.state.log_history if entry["step"] == 2)
    assert entry["term/DER"] == pytest.approx(expected.item(), rel=1e-5)


def test_logits_come_along_with_contents(tmp_path: Path) -> None:
    references, _ = spied(tmp_path / "a", DERPlusPlus())
    contents, _ = spied(tmp_path / "b", DERPlusPlus(), buffer=ReplayBuffer(12, storage=InMemory()))
    assert torch.equal(weights_of(references.model), weights_of(contents.model))


def test_a_memory_filled_by_hand_brings_its_logits(tmp_path: Path) -> None:
    old = Points(8, seed=2)
    logits = np.zeros((8, 3))
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", old, payloads={"logits": logits})
    trainer, _ = spied(tmp_path, DER(), buffer=buffer)
    assert len(trainer.buffer) == 8
    assert all(entry["term/DER"] > 0 for entry in trainer.state.log_history if "term/DER" in entry)


# ---- What is refused ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DER(alpha=-1.0), r"alpha must be 0.0 or more, got -1.0; 0.1 to 1 are usual"),
        (lambda: DER(top_k=0), r"top_k must be a whole number, 1 or more, got 0; 32"),
        (lambda: DERPlusPlus(beta=float("nan")), r"beta must be 0.0 or more, got nan; 0.5 to 1 are usual"),
    ],
)
def test_values_outside_their_range(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_memory_has_to_be_a_buffer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"DER\(memory='old'\): there is no stream 'old'"):
        make_trainer(tmp_path, [DER("old")])
    with pytest.raises(ValueError, match=r"DER: memory must name a replay buffer.*the buffers among .* \['memory'\]"):
        make_trainer(tmp_path, [DER("second")], second=True)


def test_the_second_draw_has_to_be_one_of_that_memory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"second must name a second draw of 'memory', but stream 'new' is a Points"):
        make_trainer(tmp_path, [DERPlusPlus(second="new")])
    other = ReplayBuffer(5)
    streams = {"new": Points(), "later": other, "second": other.second_draw()}
    with pytest.raises(ValueError, match=r"second must name a second draw of 'memory', but stream 'second'"):
        make_trainer(tmp_path, [DERPlusPlus(second="second")], new=streams)
    with pytest.raises(ValueError, match=r"Stream 'second' is a second draw of a buffer that is no stream of this run"):
        make_trainer(tmp_path, new={"new": Points(), "second": ReplayBuffer(5).second_draw()})


@pytest.mark.parametrize(
    ("method", "way_out"),
    [
        (DER(), r"DERPlusPlus\('memory', second=...\), or leave them out"),
        (DERPlusPlus(), r"Name the one of 'memory', as in second='again'"),
        (AGEM(), r"AGEM draws 'memory' once"),
    ],
)
def test_a_second_draw_that_nobody_names_is_refused(tmp_path: Path, method: Any, way_out: str) -> None:
    with pytest.raises(ValueError, match=rf"the streams \['second'\] are second draws of a buffer.*{way_out}"):
        make_trainer(tmp_path, [method], second=True)


def test_samples_of_another_buffer_are_replayed_as_samples_of_the_batch(tmp_path: Path) -> None:
    other = ReplayBuffer(20, is_online=False)
    other.remember("other", Points(20, seed=2))
    factors = []
    for stream in (other, Points(20, seed=2)):
        trainer = make_trainer(tmp_path, [DER()], new={"new": Points(), "old": stream})
        factors.append(trainer._parts.methods.all[-1].factors(None, np.array([6, 2, 4])).tolist())
    assert factors[0] == factors[1] == [1.5, 1.5, 0.0]


def test_the_same_method_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names must differ"):
        make_trainer(tmp_path, [AGEM(), AGEM()])


def test_a_memory_without_logits_is_refused_at_the_start(tmp_path: Path) -> None:
    buffer = ReplayBuffer(12)
    buffer.remember("old", Points(8, seed=2))
    trainer = make_trainer(tmp_path, [DER()], buffer=buffer)
    with pytest.raises(ValueError, match=r"came in without its 'logits'.*begin with an empty buffer"):
        trainer.train()


class _NoLogits(Classifier):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"loss": super().forward(x, labels)["loss"]}


def test_a_model_without_logits_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [DER()], model=_NoLogits())
    with pytest.raises(ValueError, match=r"DER compares logits, but the model's forward gives dict without any"):
        trainer.train()


class _Flat(Classifier):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = super().forward(x, labels)
        return {**output, "logits": output["logits"][:, 0]}


@pytest.mark.parametrize("top_k", [None, 1])
def test_a_number_for_each_sample_is_refused(tmp_path: Path, top_k: int | None) -> None:
    trainer = make_trainer(tmp_path, [DER(top_k=top_k)], model=_Flat())
    with pytest.raises(ValueError, match=r"DER compares a vector of logits .* of shape \[3\].*unsqueeze\(-1\)"):
        trainer.train()


def test_logits_of_another_shape_are_refused(tmp_path: Path) -> None:
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", Points(8, seed=2), payloads={"logits": np.zeros((8, 4))})
    with pytest.raises(ValueError, match=r"logits of shape \[4\] and has \[3\] now"):
        make_trainer(tmp_path, [DER()], buffer=buffer).train()


def test_packed_rows_are_refused(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"][:5].tolist()} for row in Tokens(20, 1).rows]
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path),
        DataCollatorWithFlattening(),
        {"new": rows, "memory": ReplayBuffer(9, storage="memory")},
        mixing=ReplayRatio(0.5),
        methods=[DER()],
    )
    with pytest.raises(ValueError, match="Use a data_collator that pads samples instead of packing"):
        trainer.train()
