"""`mixer recipe from` on tools that are read by tables: files with the keys of public configurations become recipes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mixer.tools.recipe.coming_from.convert import convert
from mixer.tools.recipe.coming_from.reading import read
from tests.commands.recipes import Runs, placed, write_base_and_rows
from tests.refusals import refused as raises

CONFIGURATIONS = Path(__file__).parent / "configurations"
CHAT = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"yo {n}"}]} for n in range(8)
]
BODY = [{"text": f"a text of number {n}"} for n in range(20)]
ASKED = [{"question": f"{n}?", "answer": f"so {n}"} for n in range(40)]
ROWS = {"chat": CHAT, "more_chat": CHAT, "body": BODY, "prose": BODY, "asked": ASKED, "pairs": ASKED}
BLEND = {"data_path": [0.5, "a", 1, "b"], "seq_length": 8, "train_iters": 2}
BRIDGE: dict[str, Any] = {"dataset": {"blend": [["a"], None], "sequence_length": "${model.size}"}, "model": {"size": 8}}
BRIDGE["place"] = {"run": "here"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    write_base_and_rows(folder, ROWS)
    for name, num_tokens in (("web", 1600), ("code", 3200)):
        write_token_file(folder / "data" / f"{name}_text_document", num_tokens)
    return folder


def write_token_file(path: Path, num_tokens: int) -> None:
    """Writes one document of tokens as Megatron-LM lays them out: 2 bytes a token, and an index."""
    np.arange(num_tokens, dtype=np.uint16).__mod__(90).tofile(path.with_suffix(".bin"))
    header = b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + bytes([8])
    index = header + np.array([1, 2], "<u8").tobytes() + np.array([num_tokens], "<i4").tobytes()
    path.with_suffix(".idx").write_bytes(index + np.array([0, 0, 1], "<i8").tobytes())


# What stands where in the recipe, and what is left: what may change what is learned, and some of the rest.
COSINE = {"training.lr_scheduler_type": "cosine_with_min_lr"}
MESSAGES = {
    "format": {
        "class_path": "Chat",
        "init_args": {"column": "messages", "train_on": "assistant", "ignored_columns": ["*"]},
    }
}
TOKENS = {
    "streams.web.factory": "mixer.TokenFile",
    "streams.web.arguments": {"path": "DATA/web_text_document.bin", "sequence_length": 16},
    "streams.code.arguments": {"path": "DATA/code_text_document.bin", "sequence_length": 16},
}
CASES: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "swift.yaml": (
        {
            "trainer": "sft",
            "model": {
                "name_or_path": "BASE",
                "config": {"dtype": "float32"},
                "lora": {"r": 4, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": "all-linear"},
            },
            "streams.chat.data": {"path": "DATA/chat.jsonl", "split": "train[:6]"},
            "streams.more_chat": {"data": {"path": "DATA/more_chat.jsonl"}, **MESSAGES, "validation": 0.25},
            "mixing": {"chat": 0.25, "more_chat": 0.75},
            "training.learning_rate": 2e-4,
            "training.warmup_steps": 0.05,
            "training.lr_scheduler_type": "cosine",
            "training.bf16": False,
            "training.eval_strategy": "steps",
        },
        {"dataset", "rows", "system", "model_author", "model_name"},
        {"trainer", "stopping_strategy", "deepspeed"},
    ),
    "megatron.sh": (
        {
            **TOKENS,
            **COSINE,
            "model.name_or_path": "BASE",
            "streams.web.validation": 0.01,
            "mixing": {"web": 0.7, "code": 0.3},
            "batch_size": 8,
            "budget": {"samples": 640},
            "training.per_device_train_batch_size": 2,
            "training.lr_scheduler_kwargs": {"min_lr": 1e-5},
            "training.warmup_steps": 0.1,
            "training.adam_beta2": 0.95,
            "training.output_dir": "OUT",
        },
        {"split", "model", "num_layers", "hidden_size", "rotary_base", "disable_bias_linear", "load"},
        {"nproc_per_node", "overlap_grad_reduce", "sequence_parallel", "distributed_timeout_minutes", "eval_iters"},
    ),
    "nemo.yaml": (
        {
            **TOKENS,
            **COSINE,
            "model.name_or_path": "MODEL",
            "streams.code.validation": 0.05,
            "mixing": {"web": 0.5, "code": 0.5},
            "batch_size": 4,
            "training.max_steps": 50,
            "training.adam_beta1": 0.9,
            "training.adam_beta2": 0.98,
            "training.lr_scheduler_kwargs": {"min_lr": 2e-5},
            "training.max_grad_norm": 0.5,
        },
        {
            *("model", "model.num_layers", "model.hidden_dropout", "model.max_position_embeddings"),
            *("model.optim.sched.constant_steps", "model.data.splits_string"),
        },
        {"trainer.devices", "model.tokenizer.library", "restore_from_path"},
    ),
    "automodel.yaml": (
        {
            **TOKENS,
            **COSINE,
            "model": {"name_or_path": "BASE"},
            "mixing": {"web": 70.0, "code": 30.0},
            "streams.web.validation": 0.1,
            "batch_size": 4,
            "training.seed": 11,
            "training.optim": "adamw_torch",
            "training.eval_steps": 25,
        },
        {"dataset.split", "model._target_", "domain_mixture.domains"},
        {"distributed.tp_size", "validation_dataset_web.paths", "recipe"},
    ),
    "torchtitan.toml": (
        {
            "tokenizer": "BASE",
            "streams.c4_test.data": {"path": "DATA/body.jsonl"},
            "streams.c4_test.format": {"class_path": "Text", "init_args": {"max_length": 16}},
            "training.max_steps": 100,
            "training.learning_rate": 3e-4,
            "training.adam_beta2": 0.95,
            "training.bf16": True,
            "training.save_strategy": "no",
        },
        {"model", "validation.enable"},
        {"job.description", "parallelism.tensor_parallel_degree", "model.flavor"},
    ),
    "torchtitan.json": (
        {
            "streams.mine.data": {"path": "DATA/prose.jsonl"},
            "mixing": {"c4_test": 3.0, "mine": 1.0},
            "training.max_steps": 30,
            "training.warmup_steps": 200,
        },
        {"model", "dataloader.seed"},
        set(),
    ),
    "card.md": (
        {
            "trainer": "sentence-transformer",
            "model": {"name_or_path": "BASE"},
            "streams.asked.data": {"path": "DATA/asked.jsonl"},
            "streams.pairs.data": {"path": "DATA/pairs.jsonl"},
            "mixing": "Uniform",
            "loss": "MultipleNegativesRankingLoss",
            "training.batch_sampler": "no_duplicates",
            "training.learning_rate": 2e-5,
            "training.warmup_steps": 0.1,
        },
        {"multi_dataset_batch_sampler", "loss"},
        set(),
    ),
    "arguments.json": (
        {
            "model": {"name_or_path": "BASE"},
            "streams": {"asked": {"data": {"path": "DATA/asked.jsonl"}}},
            "training.prompts": {"question": "query: "},
            "training.max_steps": 3,
        },
        {"tint", "loss"},
        {"trainer"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_keys_are_carried_over_or_named(name: str, folder: Path, tmp_path: Path, printed: Runs) -> None:
    places, changing, harmless = CASES[name]
    path = tmp_path / name
    path.write_text(placed((CONFIGURATIONS / name).read_text(), folder))
    made = convert(str(path))
    wanted = json.loads(placed(json.dumps(places), folder))
    assert {place: at(made.recipe, place) for place in wanted} == wanted
    assert set(made.changing) == changing
    assert harmless <= made.left.harmless
    if made.recipe.get("trainer") == "sentence-transformer":  # tests/full/sentences trains these
        return
    recipe = {**made.recipe, "model": {**made.recipe["model"], "name_or_path": str(folder / "base")}}
    recipe["training"] |= {"use_cpu": True, "bf16": False}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    shown = printed("train", tmp_path / "recipe.yaml", "--dry_run")
    assert all(stream in shown for stream in recipe["streams"])


def at(recipe: Any, place: str) -> Any:
    for name in place.split("."):
        recipe = recipe.get(name.replace("/", "."))
    return recipe


# A tool, its configuration, a place in the recipe or in what is left, and what stands there: `...` for a reason.
KEYS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("megatron", {**BLEND, "data_path": "1 a 3 b"}, "mixing", {"a": 1.0, "b": 3.0}),
    ("megatron", {**BLEND, "data_path": ["x/a", "y/a"]}, "mixing", None),
    ("megatron", {**BLEND, "data_path": ["x/a", "y/a"]}, "streams.a_2.arguments.path", "y/a.bin"),
    ("megatron", {**BLEND, "valid_data_path": "v"}, "evaluation.eval_v.arguments.path", "v.bin"),
    ("megatron", {**BLEND, "min_lr": 1e-5}, "left.min_lr", ...),
    ("megatron", {**BLEND, "lr_decay_style": "WSD"}, "left.lr_decay_style", ...),
    ("megatron", {"ARGS": {"--data-path": "a", "--seq-length": 8}}, "streams.a.arguments.sequence_length", 8),
    ("nemo", {"dataset": {"blend": [["a", "b"], [1, 2]], "seq_length": 8}}, "mixing", {"a": 1.0, "b": 2.0}),
    ("nemo", {"dataset": {"blend": [["a", "b"], None], "seq_length": 8}}, "mixing", None),
    ("nemo", {**BRIDGE, "tokenizer": {"tokenizer_model": "t"}}, "model.name_or_path", "t"),
    ("nemo", {**BRIDGE, "checkpoint": {"save": "${place.run}/out"}}, "training.output_dir", "here/out"),
    ("nemo", {**BRIDGE, "scheduler": {"lr_decay_style": "WSD"}}, "left.scheduler/lr_decay_style", ...),
    ("torchtitan", {"training": {"dataset": "c4", "seq_len": 8}}, "streams.c4.data.streaming", True),
    ("torchtitan", {"training": {"dataset": "c4", "seq_len": 8}}, "model.name_or_path", "MODEL"),
    ("swift", {"model": "m", "dataset": "d:s#9", "streaming": True}, "streams.d.max_samples", 9),
    ("swift", {"model": "m", "dataset": "d:s"}, "streams.d.data.name", "s"),
    ("swift", {"model": "m", "dataset": "d"}, "batch_size", 16),
    ("swift", {"model": "m", "dataset": "d"}, "left.use_hf", ...),
    ("swift", {"model": "m", "dataset": "d", "train_type": "full"}, "training.learning_rate", 1e-5),
    ("swift", {"model": "m", "dataset": "d", "rlhf_type": "dpo"}, "trainer", "dpo"),
    ("swift", {"model": "m", "dataset": "d", "rlhf_type": "dpo"}, "left.rows", ...),
    ("swift", {"model": "m", "dataset": "d", "loss_scale": "all"}, "streams.d.format.init_args.train_on", "all"),
    ("swift", {"model": "m", "dataset": "d", "val_dataset": "e"}, "evaluation.eval_e.data.path", "e"),
    ("swift", {"model": "m", "dataset": "d", "quant_bits": 4}, "model.quantization.load_in_4bit", True),
    ("swift", {"model": "m", "dataset": "d", "columns": {"q": "query"}}, "streams.d.format.class_path", "Dialogue"),
    ("sentence-transformers", {"batch_sampler": "no_duplicates"}, "left.datasets", ...),
    ("sentence-transformers", {"batch_sampler": "no_duplicates"}, "left.model", ...),
]


@pytest.mark.parametrize(("kind", "content", "place", "expected"), KEYS)
def test_a_key_stands_where_it_belongs_or_is_left_with_a_reason(
    kind: str, content: dict[str, Any], place: str, expected: Any, tmp_path: Path
) -> None:
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(content))
    made = convert(str(tmp_path / "theirs.yaml"), kind)
    found = at({**made.recipe, "left": made.left}, place)
    assert found == expected or (expected is ... and found)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("megatron", {"seq_length": 8}, "data_path"),
    ("megatron", {"data_path": [0.5, "a", "b"], "seq_length": 8}, "data_path"),
    ("megatron", {"data_path": "a"}, "seq_length"),
    ("torchtitan", {"training": {"dataset": "mine", "seq_len": 8}}, "training.dataset"),
    ("swift", {"model": "m", "dataset": "d", "rlhf_type": "grpo"}, "rlhf_type"),
    ("swift", {"model": "m", "dataset": "d", "tuner_type": "adalora"}, "tuner_type"),
    ("swift", {"model": "m", "dataset": ["d", "e"], "interleave_prob": 1}, "interleave_prob"),
]


@pytest.mark.parametrize(("kind", "content", "option"), WRONG)
def test_what_cannot_be_read_is_refused_by_name(
    kind: str, content: dict[str, Any], option: str, tmp_path: Path
) -> None:
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(content))
    with raises(option):
        convert(str(tmp_path / "theirs.yaml"), kind)


def test_blends_stand_in_files(tmp_path: Path) -> None:
    (tmp_path / "blend.txt").write_text("0.3 a 0.7 b\n")
    (tmp_path / "blend.json").write_text(json.dumps({"train": ["1", "c", "2", "d"], "valid": ["1", "c"]}))
    for key, name, mixing in (
        ("data_args_path", "blend.txt", {"a": 0.3, "b": 0.7}),
        ("per_split_data_args_path", "blend.json", {"c": 1.0, "d": 2.0}),
    ):
        (tmp_path / "theirs.yaml").write_text(yaml.safe_dump({key: name, "seq_length": 8}))
        assert convert(str(tmp_path / "theirs.yaml")).recipe["mixing"] == mixing


def test_scripts_are_read_by_their_arguments(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "# --lr 5\nA=(x 'y z'  # why\n)\nA+=(w)\nexport B=${1:-two}\nswift sft --dataset \"${A[@]}\" 'c#3' \\\n"
        '  --model $B/$C --flag --columns \'{"a": "b"}\' --lr=1e-4 "--beta 2" > log 2>&1\necho --done\n'
    )
    assert dict(read(str(script))) == {
        "dataset": ["x", "y z", "w", "c#3"],
        "model": "two/$C",
        "flag": True,
        "columns": {"a": "b"},
        "lr": "1e-4",
        "beta": 2,
        "done": True,
    }
    script.write_text("swift sft --lr 1\nswift sft --lr 2\n")
    assert dict(read(str(script))) == {"lr": 2, "lr, given before": 1}


def test_programs_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config_registry.py").write_text("def small(): ...\n")
    with raises(str(tmp_path / "config_registry.py")):
        convert(str(tmp_path / "config_registry.py"))
