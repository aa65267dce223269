"""Each stream is prepared as the only data set would be, after its preprocessing, and told of by its own name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from trl import SFTTrainer

import mixer
from mixer import MixingMixin, Stream
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens
from tests.mixer.trainer.trl.cases import chats, completions, model_of, sft, sft_arguments, texts, tokenizer, two_chats


def test_each_stream_becomes_what_sft_trainer_makes_of_it_alone(tmp_path: Path) -> None:
    data = {"chat": chats(6, 1), "answers": completions(5, 2), "text": texts(4, 3)}
    trainer = sft(tmp_path / "all", data, max_length=6)
    for stream in trainer.streams:
        args = sft_arguments(tmp_path / stream.name, max_length=6)
        alone = SFTTrainer(model_of(), args, train_dataset=data[stream.name], processing_class=tokenizer())
        for column in ("input_ids", "labels"):
            assert list(stream.dataset[column]) == list(alone.train_dataset[column])
    assert len(trainer.train_dataset) == sum(len(stream.dataset) for stream in trainer.streams)


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


def test_epochs_go_by_packed_rows(tmp_path: Path) -> None:
    data = {"a": chats(30, 1), "b": texts(20, 2)}
    trainer = sft(tmp_path, data, packing=True, max_length=48, num_train_epochs=1, max_steps=-1)
    rows = sum(len(stream.dataset) for stream in trainer.streams)
    assert rows < 25
    trainer.train()
    assert trainer.ledger.timings()["total"].sum() == rows


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
    assert trainer.eval_dataset["answers"]["labels"][0][0] == -100  # of completions alone, as in training
    assert trainer.streams[1].dataset["labels"][0][0] == -100
    assert trainer.evaluate(dev)["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6)


_IMAGES = datasets.Dataset.from_dict({"messages": [[{"role": "user", "content": "w1"}]], "images": [[]]})
_LONG = datasets.Dataset.from_dict({"prompt": ["w1 w2 w3 w4 w5"], "completion": [" w6"]})


@pytest.mark.parametrize(
    ("other", "changes", "message"),
    [
        (datasets.Dataset.from_dict({"body": ["w1"]}), {}, r"'odd' has the columns \['body'\].*Rename its columns"),
        (datasets.Dataset.from_dict({"text": [3, 4]}), {}, r"'odd': MixingSFTTrainer cannot prepare the columns"),
        (_LONG, {"max_length": 4}, r"'odd': MixingSFTTrainer has filtered out all of its 1 samples"),
        (texts(3, 1), {"assistant_only_loss": True}, r"'odd' is no conversation"),
        (_IMAGES, {}, r"\['odd'\] have images and \['chat'\] have none"),
        (Tokens(3, 1), {}, r"'odd': MixingSFTTrainer prepares.*got Tokens"),
    ],
)
def test_a_stream_that_does_not_go_is_named(tmp_path: Path, other: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        sft(tmp_path, {"chat": chats(4, 1), "odd": other}, **changes)


def test_an_evaluation_set_that_does_not_go_is_named(tmp_path: Path) -> None:
    sets = {"chat": chats(3, 2), "odd": texts(3, 1).rename_column("text", "words")}
    with pytest.raises(KeyError, match="text") as caught:
        sft(tmp_path, two_chats(), own={"eval_dataset": sets})
    assert caught.value.__notes__ == ["While preparing the evaluation set 'odd'."]
    with pytest.raises(ValueError, match="eval_dataset: the data set 'odd' is empty"):
        sft(tmp_path, two_chats(), own={"eval_dataset": {**sets, "odd": chats(3, 2).select([])}})


def test_an_evaluation_set_may_be_the_first_stream(tmp_path: Path) -> None:
    data = two_chats()
    trainer = sft(tmp_path, data, own={"eval_dataset": data["a"]})
    assert len(trainer.eval_dataset) == 20
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_class_of_the_user(tmp_path: Path) -> None:
    class Mixed(MixingMixin, SFTTrainer):
        pass

    trainer = Mixed(model_of(), sft_arguments(tmp_path), train_dataset=two_chats(), processing_class=tokenizer())
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.full
def test_trl_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, mixer; assert 'trl' not in sys.modules; mixer.MixingSFTTrainer; assert 'trl' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_trl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mixer.trainer.sft", raising=False)
    monkeypatch.delitem(vars(mixer), "MixingSFTTrainer", raising=False)
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(ImportError, match=r"MixingSFTTrainer needs TRL.*pip install 'adaptive-mixer\[trl\]'"):
        _ = mixer.MixingSFTTrainer
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = mixer.Other
