"""SFTTrainer on streams: what it makes of their data, by what it is trained, and what is computed beside."""

import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import Trainer
from trl import SFTTrainer

import mixer
from mixer import MixingSFTTrainer, Stream
from mixer.utils.errors import ErrorFacts, InvalidValueError
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import GradientRecorder, Tokens, weights_of
from tests.mixer.trainer.runs import as_drawn
from tests.mixer.trainer.trl.cases import chats, completions, model_of, sft, sft_arguments, texts, tokenizer, two_chats
from tests.ranks.warm import some
from tests.refusals import refused


def _question(row: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": row["question"] + " ", "completion": row["answer"]}


def test_rows_are_preprocessed_and_then_prepared(tmp_path: Path) -> None:
    rows = [{"question": "w1 and w1", "answer": "w2"}, {"question": "w2 and w1", "answer": "w3"}] * 4
    raw = datasets.Dataset.from_list(rows)
    ready = raw.map(_question, remove_columns=raw.column_names)
    found = []
    for stream, evaluated in ((Stream("sums", raw, preprocess=_question), raw), (Stream("sums", ready), ready)):
        trainer = sft(tmp_path / str(len(found)), [stream], own={"eval_dataset": {"sums": evaluated}}, max_steps=2)
        trainer.train()
        found.append((trainer.ledger.to_pandas()["loss"].tolist(), trainer.evaluate()["eval_sums_loss"]))
    assert found[0] == found[1]


def test_settings_of_streams_stay_and_memories_are_not_prepared(tmp_path: Path) -> None:
    streams = [
        Stream("chat", chats(20, 1), max_epochs=2),
        Stream("text", texts(20, 2)),
        Stream("memory", ReplayBuffer(8)),
    ]
    trainer = sft(tmp_path, streams, own={"mixing": ReplayRatio(0.25), "batch_size": 8}, max_steps=4)
    assert trainer.streams[0].max_epochs == 2
    assert trainer.streams[2] is streams[2]
    trainer.train()
    replayed = [entry["count/memory"] for entry in trainer.state.log_history if "loss" in entry]
    assert (replayed[0], replayed[-1]) == (0, 2)


def test_iterable_streams_are_prepared_too(tmp_path: Path) -> None:
    data = {"chat": chats(30, 1).to_iterable_dataset(), "text": texts(20, 2)}
    trainer = sft(tmp_path, data, own={"mixing": "Uniform", "epoch_size": 32})
    trainer.train()
    assert [entry["count/chat"] for entry in trainer.state.log_history if "loss" in entry] == [4] * 3


def test_data_that_are_ready_are_left_as_they_are(tmp_path: Path) -> None:
    ready = [sft(tmp_path, {"a": data}).streams[0].dataset for data in (chats(6, 1), texts(5, 2))]
    skip = {"dataset_kwargs": {"skip_prepare_dataset": True}}
    trainer = sft(tmp_path, {"a": ready[0], "b": ready[1]}, **skip)
    assert [stream.dataset for stream in trainer.streams] == ready
    trainer.train()
    masked = ready[1].remove_columns("labels").add_column("completion_mask", [[1, 1]] * 5)
    with pytest.raises(ValueError, match="The b dataset has mask columns but no 'labels'"):
        sft(tmp_path, {"a": ready[0], "b": masked}, **skip)


def test_evaluation_sets_by_name(tmp_path: Path) -> None:
    dev = {"chat": chats(5, 7), "answers": completions(4, 8)}
    data = {"chat": chats(9, 1), "answers": completions(9, 2)}
    trainer = sft(tmp_path, data, own={"eval_dataset": dev})
    metrics = trainer.evaluate()
    losses = [metrics["eval_chat_loss"], metrics["eval_answers_loss"]]
    assert metrics["eval_loss"] == pytest.approx(sum(losses) / 2)
    assert metrics["eval_worst_loss"] == max(losses)
    assert not [name for name in metrics if "num_tokens" in name]  # the run's, which no set has
    alone = {name: trainer.evaluate(rows) for name, rows in trainer.eval_dataset.items()}
    for metric in ("entropy", "mean_token_accuracy"):
        values = {name: found[f"eval_{metric}"] for name, found in alone.items()}
        assert values["chat"] != values["answers"]
        assert {name: metrics[f"eval_{name}_{metric}"] for name in values} == values
        assert metrics[f"eval_{metric}"] == pytest.approx(sum(values.values()) / 2)
        logged = next(entry for entry in trainer.state.log_history if f"eval_{metric}" in entry)
        assert logged["eval_worst_loss"] == metrics["eval_worst_loss"]  # the summary, not one of the sets
    assert trainer.eval_dataset["answers"]["labels"][0][0] == -100  # of completions alone, as in training
    assert trainer.streams[1].dataset["labels"][0][0] == -100
    assert trainer.evaluate(dev)["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6)


_IMAGES = datasets.Dataset.from_dict({"messages": [[{"role": "user", "content": "w1"}]], "images": [[]]})
_LONG = datasets.Dataset.from_dict({"prompt": ["w1 w2 w3 w4 w5"], "completion": [" w6"]})


@pytest.mark.parametrize(
    ("other", "changes", "option", "stream"),
    [
        (datasets.Dataset.from_dict({"body": ["w1"]}), {}, "columns", "odd"),
        (datasets.Dataset.from_dict({"text": [3, 4]}), {}, "columns", "odd"),
        (_LONG, {"max_length": 4}, "max_length", "odd"),
        (texts(3, 1), {"assistant_only_loss": True}, "assistant_only_loss", "odd"),
        (_IMAGES, {}, "processing_class", None),
        (Tokens(3, 1), {}, "dataset", "odd"),
    ],
)
def test_a_stream_that_does_not_go_is_named(tmp_path: Path, other: Any, changes: Any, option: str, stream: Any) -> None:
    with refused(option, ErrorFacts, stream=stream):
        sft(tmp_path, {"chat": chats(4, 1), "odd": other}, **changes)


def test_what_sft_trainer_drops_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = chats(4, 1)
    columns = {"persona": "w1", "weight": 0.5, "tools": None, "id": 1}
    dropping = datasets.Dataset.from_list([{**row, **columns} for row in plain])
    marks = [
        {"messages": [{**turn, "trainable": number < 3, "name": None} for turn in row["messages"]]}
        for number, row in enumerate(plain)
    ]
    sft(tmp_path, {"plain": plain, "dropping": dropping, "turns": datasets.Dataset.from_list(marks)})
    columns_lost, turns_lost = [text for text in caplog.messages if "SFTTrainer drops" in text]
    assert "'dropping': SFTTrainer drops the column 'persona' and the column 'weight', so" in columns_lost
    assert "'turns': SFTTrainer drops the key 'trainable' of turns, so" in turns_lost


def test_a_template_without_marks_is_refused_before_trl_does(tmp_path: Path) -> None:
    own = tokenizer()
    own.chat_template = "{% for message in messages %}{{ message.role }} {{ message.content }}{% endfor %}"
    args = sft_arguments(tmp_path, assistant_only_loss=True)
    with pytest.raises(InvalidValueError) as caught:
        MixingSFTTrainer(model_of("llama"), args, train_dataset={"chat": chats(4, 1)}, processing_class=own)
    assert (caught.value.option, caught.value.found) == ("assistant_only_loss", True)
    assert "Chat" in str(caught.value.hint)


def test_an_evaluation_set_that_does_not_go_is_named(tmp_path: Path) -> None:
    sets = {"chat": chats(3, 2), "odd": texts(3, 1).rename_column("text", "words")}
    with pytest.raises(KeyError, match="text") as caught:
        sft(tmp_path, two_chats(), own={"eval_dataset": sets})
    assert caught.value.__notes__ == ["While preparing the evaluation set 'odd'."]
    with refused("eval_dataset"):
        sft(tmp_path, two_chats(), own={"eval_dataset": {**sets, "odd": chats(3, 2).select([])}})


def test_without_trl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mixer.trainer.trl.sft", raising=False)
    monkeypatch.delitem(vars(mixer), "MixingSFTTrainer", raising=False)
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(ImportError, match=r"MixingSFTTrainer needs TRL.*pip install 'adaptive-mixer\[trl\]'"):
        _ = mixer.MixingSFTTrainer
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = mixer.Other


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def _smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)


def _dynamic(logits: Tensor, labels: Tensor) -> Tensor:
    losses = _cross_entropy(logits, labels)
    return losses * losses.detach().neg().exp()


def _doubled(logits: Tensor, labels: Tensor) -> Tensor:
    return 2.0 * _cross_entropy(logits, labels)


def _own_sum(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    if num_items_in_batch is None:
        return 2.0 * F.cross_entropy(logits, targets)
    return 2.0 * F.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch


def _three() -> dict[str, Any]:
    return {"chat": chats(7, 1), "answers": completions(5, 2), "text": texts(4, 3)}


def _many() -> dict[str, Any]:
    return {"a": chats(30, 1), "b": texts(20, 2)}


PACKED = {"packing": True, "max_length": 24}
# By case: data, the terms of a loss, whether micro-batches are of one stream each, and options.
CASES: dict[str, tuple[Any, Any, bool | None, dict[str, Any]]] = {
    "formats of their own": (_three, _cross_entropy, False, {}),
    "gpt2": (_three, _cross_entropy, False, {"model": "gpt2"}),
    "in one micro-batch": (_three, _cross_entropy, False, {"per_device_train_batch_size": 64}),
    "assistant turns alone": (two_chats, _cross_entropy, None, {"assistant_only_loss": True}),
    "dynamic": (_three, _dynamic, False, {"loss_type": "dft"}),  # read off the log-probabilities
    "smoothed": (_three, _smoothed, None, {"label_smoothing_factor": 0.1}),
    "own sum": (_three, _doubled, None, {"own": {"compute_loss_func": _own_sum}}),  # it is not what the rows show
    "end to end": (_three, _cross_entropy, None, {"padding_free": True, "max_length": None}),
    "packed": (_many, _cross_entropy, None, PACKED),
    "wrapped": (_many, _cross_entropy, None, {**PACKED, "packing_strategy": "wrapped"}),
    "experts": (_three, _cross_entropy, None, {"model": "mixtral"}),
}


def _totals(trainer: Any, model: Any, terms: Any) -> dict[str, tuple[Tensor, int]]:
    """By stream, the sum of the loss terms of its prepared data set and their number, document after document."""
    found = {}
    for stream in trainer.streams:
        total, count = torch.zeros((), dtype=torch.float64), 0
        for row in stream.dataset:
            ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
            lengths = row["seq_lengths"] if "seq_lengths" in row and trainer.padding_free else [len(ids)]
            for own, targets in zip(ids.split(lengths), labels.split(lengths), strict=True):
                counted = targets[1:] != -100
                if counted.any():
                    logits = model(input_ids=own[None]).logits[0, :-1]
                    total = total + terms(logits[counted], targets[1:][counted]).sum()
                    count += int(counted.sum())
        found[stream.name] = (total, count)
    return found


@pytest.mark.parametrize("name", some(CASES, CASES.keys() - {"gpt2", "in one micro-batch", "smoothed", "wrapped"}))
def test_a_step_of_all_samples(tmp_path: Path, name: str) -> None:
    data, terms, by_stream, options = CASES[name]
    options = {"per_device_train_batch_size": 3, **options}
    kind, recorder = options.pop("model", "llama"), GradientRecorder()
    dtype = torch.float32 if kind == "mixtral" else torch.float64  # experts know no other
    own = {"callbacks": [recorder], **options.pop("own", {})}
    trainer = sft(tmp_path, data(), model_of(kind, dtype), own, max_steps=1, **options)
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    trainer.train()
    bare, logged = model_of(kind, dtype).eval(), trainer.state.log_history[0]
    totals, num_samples = _totals(trainer, bare, terms), {own.name: len(own.dataset) for own in trainer.streams}
    for stream, (total, count) in totals.items():
        assert logged[f"count/{stream}"] == num_samples[stream]
        if name != "own sum":  # which is no stream's in the first step
            assert logged[f"loss/{stream}"] == pytest.approx(total.item() / count, rel=1e-6), stream
    assert by_stream in (None, trainer._parts.run.splitting.by_stream)
    assert trainer.state.epoch == 1.0  # which is of packed rows where they are packed
    if kind == "mixtral":  # an auxiliary loss is no stream's, and does not grow with the micro-batches
        assert logged["loss/other"] == pytest.approx(0.02 * logged["aux_loss"], rel=1e-4)
        return
    whole = sum(total for total, _ in totals.values())
    items = sum(count for _, count in totals.values())
    if kind == "gpt2":  # the Trainer does not know that it shifts labels, and counts the first ones too
        items += sum(labels[0] != -100 for stream in trainer.streams for labels in stream.dataset["labels"])
    assert logged["loss"] == pytest.approx(whole.item() / items, rel=1e-5)
    (whole / items).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in bare.parameters()])
    torch.testing.assert_close(recorder.gradients[0], expected, rtol=0, atol=1e-6)  # per_token sums are of float32


def _both(tmp_path: Path, model_name: str, data: Any, **changes: Any) -> list[Trainer]:
    """Trains SFTTrainer on the samples in our order, and ours on one data set."""
    trainers: list[Trainer] = []
    for trainer_class in (SFTTrainer, MixingSFTTrainer):
        options = {"optim": "adamw_torch", "learning_rate": 1e-2, "max_grad_norm": 1.0, "max_steps": -1, **changes}
        args = sft_arguments(tmp_path / trainer_class.__name__, num_train_epochs=1, **options)
        own = {"train_dataset": data, "eval_dataset": data, "processing_class": tokenizer()}
        if trainer_class is SFTTrainer:
            args.train_sampling_strategy, own["train_dataset"] = "sequential", as_drawn(data)
        trainer = trainer_class(model_of(model_name), args, **own)
        trainer.train()
        trainers.append(trainer)
    return trainers


@pytest.mark.parametrize(
    ("model_name", "changes"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mixtral", {}),
        ("llama", {"loss_type": "dft"}),
        ("llama", {"padding_free": True, "max_length": None}),
        ("llama", {"assistant_only_loss": True}),
    ],
)
def test_one_data_set_trains_as_by_sft_trainer_to_the_bit(tmp_path, model_name, changes) -> None:
    stock, ours = _both(tmp_path, model_name, chats(21, 1), **changes)
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    keys = "loss grad_norm learning_rate epoch entropy mean_token_accuracy num_tokens"
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in keys.split():
            assert mine.get(key) == pytest.approx(theirs.get(key), abs=1e-6), key


@pytest.mark.parametrize("options", [{}, {"packing": True, "max_length": 24}])
def test_a_run_goes_on_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"max_steps": 6, "per_device_train_batch_size": 2, "optim": "adamw_torch", **options}
    options |= {"save_strategy": "steps", "save_steps": 3}
    data = {"chat": chats(30, 1), "answers": completions(25, 2), "text": texts(20, 3)}
    own = {"batch_size": 7, "mixing": "LossChange"}
    whole, parts = (sft(tmp_path / folder, data, "llama", own, **options) for folder in ("whole", "parts"))
    whole.train()
    parts.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(weights_of(whole.model), weights_of(parts.model))
    mine, theirs = (run.state.log_history[3:6] for run in (parts, whole))
    for key in ("loss", "loss/chat", "loss/answers", "weight/text", "count/text"):
        assert [entry[key] for entry in mine] == [entry[key] for entry in theirs]
