"""Recipes with a trainer of TRL: chats of several shapes become what TRL makes of the same rows written its own way."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from jsonargparse import ArgumentParser
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.training_args import OptimizerNames
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from mixer.tools.cli.command import build_recipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.recipe_files import filled_in
from tests.helpers import GradientRecorder, plain_options
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.mixer.tools.recipe.test_chat import MARKED
from tests.mixer.tools.recipe.test_parts import parser_of
from tests.ranks.warm import some
from tests.refusals import refused

Rows = list[dict[str, Any]]
OF_TRL = {"bf16": False, "gradient_checkpointing": False, "max_length": 256}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


# By shape: rows as data sets have them, and as TRL takes them.
CHATS: Rows = [
    {
        "messages": [
            *(_said("user", f"hi {n}"), _said("assistant", f"yes {n}!")),
            *(_said("user", "so?"), _said("assistant", "so" * n)),
        ],
        "id": n,
    }
    for n in range(1, 8)
]
SHARED: Rows = [
    {
        "conversations": [{"from": "human", "value": f"sum {n}"}, {"from": "gpt", "value": str(n)}],
        "system": "be brief",
        "tools": json.dumps([TOOL]),
    }
    for n in range(6)
]
ALPACA: Rows = [{"instruction": "name it", "input": "x" * n, "output": f"an x{n}"} for n in range(5)]
ANSWERS: Rows = [{"prompt": f"{n} and {n} is", "completion": f" {2 * n}"} for n in range(5)]
TAKEN: dict[str, tuple[Rows, Rows]] = {
    "chat": (CHATS, [{"messages": row["messages"]} for row in CHATS]),
    "shared": (
        SHARED,
        [
            {
                "messages": [_said("system", "be brief"), _said("user", f"sum {n}"), _said("assistant", str(n))],
                "tools": row["tools"],
            }
            for n, row in enumerate(SHARED)
        ],
    ),
    "alpaca": (
        ALPACA,
        [
            {
                "prompt": [_said("user", "name it" + (f"\n\n{row['input']}" if row["input"] else ""))],
                "completion": [_said("assistant", row["output"])],
            }
            for row in ALPACA
        ],
    ),
    "answers": (ANSWERS, ANSWERS),
}
TURNED = [
    {"prompt": [_said("user", row["prompt"])], "completion": [_said("assistant", row["completion"].strip())]}
    for row in ANSWERS
]
PAIRS: Rows = [{"prompt": f"{n}?", "chosen": f" good {n}", "rejected": " bad"} for n in range(5)]
# As UltraFeedback has them, and as LLaMA-Factory does.
WHOLE_PAIRS: Rows = [
    {**row, **{name: [_said("user", row["prompt"]), _said("assistant", row[name])] for name in ("chosen", "rejected")}}
    for row in PAIRS
]
SHARED_PAIRS: Rows = [
    {
        "conversations": [{"from": "human", "value": row["prompt"]}],
        **{name: {"from": "gpt", "value": row[name]} for name in ("chosen", "rejected")},
    }
    for row in PAIRS
]
TAKEN_PAIRS = [
    {"prompt": [_said("user", row["prompt"])], **{k: [_said("assistant", row[k])] for k in ("chosen", "rejected")}}
    for row in PAIRS
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a tokenizer."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = byte_level(chat_template=MARKED)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, vocab_size=len(tokenizer), num_key_value_heads=2, pad_token_id=3, eos_token_id=0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write(path: Path, rows: Rows) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": {"path": str(path)}}


def built(content: Mapping[str, Any], has_weights: bool = True) -> Any:
    kind, parser = parser_of(content.get("trainer"))
    return build_recipe(kind, parser, parser.parse_object(dict(content))).build_parts(has_weights).trainer


def recipe(folder: Path, base: Path, trainer: str, rows: Mapping[str, Rows], **training: Any) -> dict[str, Any]:
    options = {**OF_TRL, **plain_options(folder / "run"), **training}
    streams = {name: write(folder / f"{name}.jsonl", own) for name, own in rows.items()}
    return {"trainer": trainer, "model": {"name_or_path": str(base)}, "streams": streams, "training": options}


def alone(kind: Any, config: Any, base: Path, folder: Path, rows: Rows, **changes: Any) -> Any:
    """TRL's own trainer of the rows."""
    args = config(**{**OF_TRL, **plain_options(folder), **changes})
    own = datasets.Dataset.from_list(rows)
    tokenizer = byte_level(chat_template=MARKED)
    return kind(str(base), args=args, train_dataset=own, eval_dataset=own, processing_class=tokenizer)


OPTIONS: dict[str, dict[str, Any]] = {
    "whole turns": {},
    "assistant, packed": {"assistant_only_loss": True, "packing": True},
    "assistant, wrapped": {"assistant_only_loss": True, "packing": True, "packing_strategy": "wrapped"},
}


@pytest.mark.parametrize("name", some(OPTIONS, ("whole turns", "assistant, packed")))
def test_each_source_is_learned_as_by_sft_trainer_alone(name: str, tmp_path: Path, base: Path) -> None:
    options, recorder = OPTIONS[name], GradientRecorder()
    content = recipe(tmp_path, base, "sft", {name: rows for name, (rows, _) in TAKEN.items()}, max_steps=1, **options)
    trainer = built({**content, "batch_size": 4})
    trainer.add_callback(recorder)
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    trainer.train()
    logged, ledger = trainer.state.log_history[0], trainer.ledger.to_pandas().set_index("stream")
    gradient, items = torch.zeros(()), 0
    for stream in trainer.streams:
        rows = TURNED if options and stream.name == "answers" else TAKEN[stream.name][1]
        stock = alone(
            SFTTrainer, SFTConfig, base, tmp_path / stream.name, rows, per_device_eval_batch_size=64, **options
        )
        for column in ("input_ids", "labels"):
            assert list(stream.dataset[column]) == list(stock.train_dataset[column])
        assert logged[f"loss/{stream.name}"] == pytest.approx(stock.evaluate()["eval_loss"], abs=1e-6)
        assert ledger.loc[stream.name, "tokens"] == sum(map(len, stock.train_dataset["input_ids"]))
        batch = stock.data_collator(list(stock.train_dataset))
        learned = int((batch["labels"][:, 1:] != -100).sum())
        stock.model.zero_grad()
        (stock.compute_loss(stock.model, batch) * learned).backward()
        gradient, items = (
            gradient + torch.cat([one.grad.flatten() for one in stock.model.parameters()]),
            items + learned,
        )
    torch.testing.assert_close(recorder.gradients[0], gradient / items, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [PAIRS, WHOLE_PAIRS, SHARED_PAIRS])
def test_preferences_become_what_trl_takes(shape: Rows, tmp_path: Path, base: Path) -> None:
    taken = PAIRS if shape is PAIRS else TAKEN_PAIRS
    kinds: dict[str, Any] = {"dpo": (DPOTrainer, DPOConfig), "reward": (RewardTrainer, RewardConfig)}
    for name, (trainer, config) in kinds.items():
        ours = built(recipe(tmp_path, base, name, {"pairs": shape}))
        stock = alone(trainer, config, base, tmp_path / name, taken)
        for column in ("chosen_ids", "rejected_ids"):
            assert list(ours.streams[0].dataset[column]) == list(stock.train_dataset[column])


def test_adapters_and_a_template_by_path(tmp_path: Path, base: Path) -> None:
    (tmp_path / "own.jinja").write_text("{% for message in messages %}{{ message.content }}~{% endfor %}")
    content = recipe(tmp_path, base, "dpo", {"pairs": WHOLE_PAIRS}, max_steps=1)
    content["model"]["lora"] = {"r": 2, "target_modules": ["q_proj"]}
    trainer = built({**content, "chat_template": str(tmp_path / "own.jinja")})
    trainer.train()
    trainer.save_model()
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file()
    assert trainer.processing_class.decode(trainer.streams[0].dataset[1]["chosen_ids"]) == " good 1~"
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.6931472)  # the reference is the model


@pytest.mark.parametrize("has_weights", [True, False])
def test_the_reference_is_the_model_as_it_begins(has_weights: bool, tmp_path: Path, base: Path) -> None:
    trainer = built(recipe(tmp_path, base, "dpo", {"pairs": WHOLE_PAIRS}), has_weights)
    assert trainer.ref_model is not trainer.model
    assert all(parameter.is_meta is not has_weights for parameter in trainer.ref_model.parameters())


def test_columns_by_other_names(tmp_path: Path, base: Path) -> None:
    rows = [{"question": row["instruction"], "context": row["input"], "answer": row["output"]} for row in ALPACA]
    content = recipe(tmp_path, base, "sft", {"named": rows, "alpaca": ALPACA})
    names = {"question": "instruction", "context": "input", "answer": "output"}
    content["streams"]["named"]["format"] = {"class_path": "Dialogue", "init_args": {"rename": names}}
    named, alpaca = (list(stream.dataset["labels"]) for stream in built(content).streams)
    assert named == alpaca


def _put(name: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content[name].update(fields)


WEIGHTED = [{"messages": [_said("user", "a"), {**_said("assistant", "b"), "weight": 0}]}]
WRONG: dict[str, tuple[str, Rows, Callable[[dict[str, Any]], None], Sequence[str]]] = {
    "no shape": ("sft", [{"body": "a"}], lambda _: None, ["streams.odd", "'body'", "rename"]),
    "two shapes": ("sft", [{**CHATS[0], **ANSWERS[0]}], lambda _: None, ["streams.odd", "data.columns"]),
    "a pair under sft": ("sft", PAIRS, lambda _: None, ["streams.odd", "'chosen'"]),
    "no pair": ("dpo", ANSWERS, lambda _: None, ["streams.odd", "chosen"]),
    "texts and a shape": ("sft", [{**ALPACA[0], "text": "a"}], lambda _: None, ["streams.odd", "'text'", "Alpaca"]),
    "history": ("sft", [{**ALPACA[0], "history": [["a", "b"]]}], lambda _: None, ["streams.odd", "'history'"]),
    "a weight of 0": ("sft", WEIGHTED, lambda _: None, ["streams.odd", "row 0", "weight"]),
    "no value": ("sft", [*ALPACA, {**ALPACA[0], "output": None}], lambda _: None, ["streams.odd", "row 5", "'output'"]),
    "a format": ("reward", PAIRS, lambda c: c["streams"]["odd"].update(format="Chat"), ["streams.odd.format", "Chat"]),
    "another task": ("dpo", PAIRS, _put("model", task="masked-lm"), ["model.task"]),
    "texts alone": ("sft", [{"text": "a"}], _put("training", assistant_only_loss=True), ["streams.odd", "assistant"]),
    "no completion": ("sft", CHATS, _put("training", completion_only_loss=True), ["'odd'", "completion_only_loss"]),
    "quantized": ("sft", CHATS, _put("model", quantization={"load_in_4bit": True}), ["quantization", "bitsandbytes"]),
    "misspelt": ("sft", CHATS, _put("model", quantization={"load_in_4bits": 1}), ["quantization", "'load_in_4bit'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_named(case: str, tmp_path: Path, base: Path) -> None:
    trainer, rows, change, named = WRONG[case]
    content = recipe(tmp_path, base, trainer, {"odd": rows})
    change(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the words are below
        built(content)
    assert [word for word in named if word not in str(caught.value)] == []


def test_other_wrong_trainers_and_recipes_in_folders(tmp_path: Path) -> None:
    with refused("trainer", found="kto"):
        Recipe.for_trainer("kto")
    text = "trainer: dpo\nmodel: {name_or_path: a}\nstreams: {}\ntraining: {output_dir: b, beta: 0.2}\n"
    assert filled_in(text)["training", "beta"] == 0.2


def test_fields_that_another_parser_has_narrowed_take_texts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # As HfArgumentParser leaves them to classes that are made after it.
    own = Recipe.for_trainer("dpo").__dataclass_fields__["training"].type
    monkeypatch.setitem(own.__init__.__annotations__, "optim", OptimizerNames)
    Recipe.for_trainer.cache_clear()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe.for_trainer("dpo"), "recipe")
    training = {"optim": "sgd", "output_dir": "unused"}
    parsed = parser.parse_object({"recipe": {"model": {"name_or_path": "unused"}, "streams": {}, "training": training}})
    assert parsed.recipe.training.optim == "sgd"
