"""SFTTrainer on streams with and without images, by tiny models of vision and language."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from trl import SFTConfig, SFTTrainer

from mixer import MixingSFTTrainer, Stream
from mixer.mixture.permutation import Order
from mixer.trainer.checks.engines import Engine
from mixer.trainer.checks.trl_streams import check_images
from mixer.trainer.trl.preferences import MixingDPOConfig, MixingDPOTrainer
from mixer.utils.errors import ErrorFacts
from replay import ReplayBuffer, ReplayRatio
from tests.chats_of_images import KINDS, model_of, pictures, processor_of
from tests.helpers import GradientRecorder, mixing_trainer, weights_of
from tests.mixer.trainer.trl.cases import chats, pairs, sft_arguments, texts, tokenizer, trl_options
from tests.ranks.warm import some
from tests.refusals import refused

MIXED = {"mixing": {"text": 1, "seen": 3}, "batch_size": 8}


def two_streams() -> dict[str, datasets.Dataset]:
    return {"text": chats(12, 2), "seen": pictures(20, 1)}


def sft(folder: Path, kind: str, data: Any, own: Any = None, processor: Any = None, **changes: Any) -> Any:
    args = sft_arguments(folder, **{"per_device_train_batch_size": 4, "max_steps": 3, **changes})
    options = {"train_dataset": data, "processing_class": processor or processor_of(kind), **(own or {})}
    return mixing_trainer(MixingSFTTrainer, model_of(kind), args, **options)


def _in_parts(row: dict[str, Any]) -> dict[str, Any]:
    parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in row["messages"]]
    return {"messages": parts, "images": []}


def _drawn(num_steps: int) -> datasets.Dataset:
    """The samples of the steps, those of each in a row, written as SFTTrainer takes all of them."""
    seen, data = pictures(20, 1), two_streams()
    data["text"] = data["text"].map(_in_parts, features=seen.features)
    counts = {"text": 2, "seen": 6}
    order = {
        name: Order(len(rows), Stream(name, rows).order_key(42)).indices(0, num_steps * counts[name])
        for name, rows in data.items()
    }
    steps = [
        rows.select(order[name][step * counts[name] : (step + 1) * counts[name]])
        for step in range(num_steps)
        for name, rows in data.items()
    ]
    return datasets.concatenate_datasets(steps)


@pytest.mark.parametrize("kind", KINDS)
def test_they_train_as_by_sft_trainer_on_the_same_batches(tmp_path: Path, kind: str) -> None:
    recorders = GradientRecorder(), GradientRecorder()
    options = trl_options(tmp_path / "stock", max_steps=3, per_device_train_batch_size=8)
    args = SFTConfig(**options, train_sampling_strategy="sequential")
    own = {"args": args, "train_dataset": _drawn(3), "processing_class": processor_of(kind)}
    stock = SFTTrainer(model_of(kind), **own, callbacks=[recorders[0]])
    ours = sft(tmp_path / "ours", kind, two_streams(), {**MIXED, "callbacks": [recorders[1]]})
    for trainer in (stock, ours):
        trainer.train()
    for mine, theirs in zip(recorders[1].gradients, recorders[0].gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    logs = [[entry for entry in trainer.state.log_history if "loss" in entry] for trainer in (ours, stock)]
    for mine, theirs in zip(*logs, strict=True):
        assert [mine[key] for key in ("loss", "num_tokens")] == pytest.approx(
            [theirs[key] for key in ("loss", "num_tokens")], abs=1e-6
        )
    # Tokens are those of the attention mask, which image tokens are among.
    rows = ours.ledger.to_pandas()
    whole = stock.data_collator(list(_drawn(1)))
    tokens = whole["attention_mask"].sum(dim=1)
    assert rows["tokens"][:2].tolist() == [int(tokens[:2].sum()), int(tokens[2:].sum())]
    images = whole["input_ids"] == ours.processing_class.image_token_id
    assert images.sum() >= 6
    assert rows["items"][:2].sum() == tokens.sum() - len(tokens)  # TRL learns them as well


def _turns(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in zip(("user", "assistant"), contents, strict=False)]


def _asked(count: int, seed: int) -> datasets.Dataset:
    """Prompts with one image at most in the column `image`, and their completions."""
    rows = pictures(count, seed)
    made = [
        {
            "prompt": _turns("w1 w2"),
            "completion": [{"role": "assistant", "content": "w3 w4 w5"}],
            "image": None if number % 2 else row["images"][0],
        }
        for number, row in enumerate(rows)
    ]
    return datasets.Dataset.from_list(made)


def test_each_stream_decides_what_is_learned_and_rows_may_lack_their_image(tmp_path: Path) -> None:
    data = {"seen": pictures(4, 1), "asked": _asked(4, 2), "plain": _asked(4, 3).remove_columns("image")}
    data["text"] = chats(4, 4)
    dev = {name: rows.select([0, 1]) for name, rows in data.items()}
    trainer = sft(tmp_path, "llava", data, {"mixing": "Uniform", "eval_dataset": dev, "batch_size": 8}, max_steps=2)
    trainer.train()
    rows = trainer.ledger.to_pandas().groupby("stream")[["tokens", "items", "count"]].sum()
    assert rows["count"].tolist() == [4] * 4
    assert rows["items"]["asked"] == rows["items"]["plain"] == 4 * 4  # three words and the end
    assert rows["tokens"]["plain"] == 4 * 8
    assert rows["tokens"]["asked"] == rows["tokens"]["plain"] + 2 * 4  # of two images
    assert rows["items"]["seen"] == rows["tokens"]["seen"] - 4
    metrics = trainer.evaluate()
    for name, own in dev.items():
        batch = trainer.data_collator(list(own))
        assert ("pixel_values" in batch) == (name in ("seen", "asked"))
        with torch.no_grad():
            expected = trainer.model(**batch).loss
        assert metrics[f"eval_{name}_loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("kind", some(KINDS, ("qwen",)))
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "seed": 3}
    whole = sft(tmp_path, kind, two_streams(), MIXED, **options)
    whole.train()
    resumed = sft(tmp_path, kind, two_streams(), MIXED, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))
    assert whole.ledger.to_pandas().equals(resumed.ledger.to_pandas())


def test_a_buffer_replays_rows_with_images_and_without(tmp_path: Path) -> None:
    streams = [*(Stream(name, rows) for name, rows in two_streams().items()), Stream("memory", ReplayBuffer(8))]
    own = {"mixing": ReplayRatio(0.5), "batch_size": 8}
    trainer = sft(tmp_path, "qwen", streams, own, max_steps=4)
    trainer.train()
    rows = trainer.ledger.to_pandas()
    assert rows.query("stream == 'memory'")["count"].tolist()[1:] == [4, 4, 4]
    assert np.isfinite(rows.query("count > 0")["loss"]).all()


_SOME = pictures(4, 1)


@pytest.mark.parametrize(
    ("other", "changes", "option", "stream"),
    [
        (texts(3, 1), {}, "columns", "odd"),
        (datasets.Dataset.from_dict({"input_ids": [[3, 4]], "labels": [[3, 4]]}), {}, "columns", "odd"),
        (_asked(2, 1), {"assistant_only_loss": True}, "assistant_only_loss", "odd"),
        (chats(2, 1), {"completion_only_loss": True}, "completion_only_loss", "odd"),
    ],
)
def test_a_stream_that_does_not_go_with_images_is_named(tmp_path, other, changes, option, stream) -> None:
    with refused(option, ErrorFacts, stream=stream):
        sft(tmp_path, "llava", {"odd": other, "seen": _SOME}, **changes)


def test_images_need_a_processor(tmp_path: Path) -> None:
    with refused("processing_class"):
        sft(tmp_path, "llava", {"text": chats(2, 1), "seen": _SOME}, processor=tokenizer())


def test_preferences_have_images_in_all_streams_or_in_none(tmp_path: Path) -> None:
    options = {"processing_class": processor_of("llava"), "train_dataset": {"text": pairs(3, 1), "seen": _SOME}}
    with refused("train_dataset"):
        MixingDPOTrainer(model_of("llava"), args=MixingDPOConfig(**trl_options(tmp_path)), **options)


@pytest.mark.parametrize(
    ("finds", "reenters", "is_refused"),
    [(False, None, True), (None, True, True), (True, True, False), (None, None, False)],
)
def test_ranks_look_for_parameters_that_texts_do_not_use(finds: Any, reenters: Any, is_refused: bool) -> None:
    kwargs = None if reenters is None else {"use_reentrant": reenters}
    args = {"ddp_find_unused_parameters": finds, "gradient_checkpointing_kwargs": kwargs}
    text, seen = Stream("text", chats(2, 1)), Stream("seen", _SOME)
    trainer = object.__new__(MixingSFTTrainer)
    check_images([text, seen], trainer, SimpleNamespace(**args, world_size=1), None)
    check_images([seen], trainer, SimpleNamespace(**args, world_size=2), None)
    with refused("ddp_find_unused_parameters") if is_refused else nullcontext():
        check_images([text, seen], trainer, SimpleNamespace(**args, world_size=2), None)


@pytest.mark.parametrize(("engine", "option"), [("FSDP2", "fsdp"), ("DeepSpeed ZeRO-2", "deepspeed")])
def test_ranks_are_those_of_ddp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, option: str) -> None:
    monkeypatch.setattr("mixer.trainer.images.engine_of", lambda _: Engine(engine))
    with refused(option):
        sft(tmp_path, "llava", {"text": chats(2, 1), "seen": _SOME})


@pytest.mark.parametrize("option", ["packing", "padding_free"])
def test_rows_are_not_packed(tmp_path: Path, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=False"):
        sft(tmp_path, "llava", {"text": chats(2, 1), "seen": _SOME}, **{option: True})


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_that_cuts_images_is_refused(tmp_path: Path, kind: str) -> None:
    trainer = sft(tmp_path, kind, {"text": chats(4, 1), "seen": pictures(4, 1, num_images=3)}, max_length=4)
    with pytest.raises(ValueError, match="max_length") as caught:
        trainer.train()
    assert any("'seen'" in note for note in caught.value.__notes__)
