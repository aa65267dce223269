"""`mixer recipe from`: configurations written after the documentation of their tools become recipes that build."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer.tools.cli.entry import main
from mixer.tools.recipe.coming_from.convert import convert
from tests.commands.recipes import Runs, placed, write_base_and_rows

Converts = Callable[..., tuple[int, str]]

CHAT = [
    {"messages": [{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": "yo"}]} for n in range(8)
]
SHARED = [
    {"category": "a", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": f"yo {n}"}]}
    for n in range(8)
]
ALPACA = [{"score": 0.5, "instruction": f"do {n}", "input": "", "output": "done"} for n in range(8)]
ASKED = [{"question": f"{n}?", "answer": "so"} for n in range(8)]
ROWS = {
    "chat": CHAT,
    "shared": SHARED,
    "alpaca": ALPACA,
    "asked": ASKED,
    "body": [{"body": "a text"}] * 8,
    "pairs": [{"instruction": "a?", "input": "", "chosen": "good", "rejected": "bad"}] * 8,
    "segments": [{"segments": [{"label": True, "text": "a"}]}],
}
INFO = {
    "alpaca": {"file_name": "alpaca.jsonl"},
    "asked": {"file_name": "asked.jsonl", "columns": {"prompt": "question", "response": "answer"}},
    "shared": {
        "file_name": "shared.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "tools": "functions", "images": "pictures"},
        "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "robot"},
    },
    "pairs": {"file_name": "pairs.jsonl", "ranking": True, "columns": {"chosen": "chosen", "rejected": "rejected"}},
    "body": {"file_name": "body.jsonl", "columns": {"prompt": "body"}},
    "placeless": {"script_url": "rows"},
    "odd": {"file_name": "body.jsonl", "formatting": "odd"},
}

AXOLOTL = """
base_model: BASE
model_type: AutoModelForCausalLM
load_in_8bit: false
strict: false
datasets:
  - path: DATA/chat.jsonl
    ds_type: json
    type: chat_template
    field_messages: messages
    message_property_mappings: {role: role, content: content}
    roles_to_train: [assistant]
    train_on_eos: last
  - {path: json, data_files: DATA/shared.jsonl, type: sharegpt, conversation: chatml}
  - {path: DATA/alpaca.jsonl, type: alpaca, shards: 2}
  - path: DATA/asked.jsonl
    type: {field_instruction: question, field_output: answer, format: "Q {instruction} A", no_input_format: "Q"}
  - {path: DATA/body.jsonl, type: completion, field: body, tint: 3}
  - {path: DATA/segments.jsonl, type: input_output}
dataset_prepared_path: last_run_prepared
val_set_size: 0.25
output_dir: OUT
adapter: lora
lora_model_dir:
lora_r: 4
lora_alpha: 8
lora_target_linear: true
sequence_len: 256
sample_packing: true
gradient_accumulation_steps: 2
micro_batch_size: 3
num_epochs: 2
optimizer: adamw_torch
lr_scheduler: rex
learning_rate: 2e-4
bf16: false
evals_per_epoch: 4
saves_per_epoch: 1
warmup_ratio: 0.1
special_tokens: {pad_token: <pad>, bos_token: <s>}
loss_watchdog_threshold: 5.0
"""
FACTORY = """
model_name_or_path: BASE
trust_remote_code: true
stage: sft
finetuning_type: lora
lora_rank: 4
lora_target: q_proj,v_proj
dataset: alpaca, asked,shared
dataset_dir: DATA
mix_strategy: interleave_over
interleave_probs: 0.5,0.3,0.2
template: llama3
cutoff_len: 256
packing: false
val_size: 0.25
eval_strategy: steps
eval_steps: 10
output_dir: OUT
overwrite_output_dir: true
per_device_train_batch_size: 3
num_train_epochs: 2.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
plot_loss: true
"""
SCRIPT = """
model_name_or_path: BASE
dtype: float32
datasets:
  - {path: json, data_files: DATA/chat.jsonl, fraction: 0.7, tint: 3}
  - {path: DATA/alpaca.jsonl, split: train, columns: [instruction, output], fraction: 0.3}
dataset_name: someone/data
streaming: false
test_split_size: 0.25
eval_strategy: steps
eval_steps: 10
learning_rate: 1e-4
max_length: 256
assistant_only_loss: false
bf16: false
gradient_checkpointing: false
use_peft: true
lora_r: 4
lora_target_modules: [q_proj]
output_dir: OUT
logging_dir: logs
"""
THEIRS = "model_name_or_path: a\n"  # LLaMA-Factory's and TRL's
ONLINE = THEIRS + "stage: sft\ndataset: d\ndataset_dir: ONLINE\n"
ROWS_OF = "base_model: a\ndatasets:\n  - {path: d}\n"
REST = {"ignored_columns": ["*"]}


def form(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": arguments}


def held(name: str, written: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A stream of a file, a quarter of which is held out."""
    data = {"path": f"DATA/{name}.jsonl", **fields.pop("data", {})}
    return {"data": data, **({} if written is None else {"format": written}), **fields, "validation": 0.25}


def sft(streams: dict[str, Any], lora: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The recipe of an adapter of rank 4."""
    model = {"name_or_path": "BASE", "config": {"dtype": "float32"}, "lora": {"r": 4, "lora_alpha": 8, **lora}}
    return {"trainer": "sft", "model": model, "streams": streams, **fields}


SHARED_CHATS = form("Chat", column="conversations", train_on="assistant", **REST)
FORMED = {"prompt": "Q {question} A", "completion": "{answer}", "train_on_prompt": False}
RENAMED = form("Dialogue", rename={"question": "instruction", "answer": "output"}, **REST)
PADDED = {"pretrained_model_name_or_path": "BASE", "pad_token": "<pad>"}
OF_AXOLOTL = {
    "chat": held("chat", form("Chat", column="messages", train_on="assistant", **REST)),
    "shared": held("shared", SHARED_CHATS),
    "alpaca": held("alpaca", form("Dialogue", **REST), rows_share=0.5),
    "asked": held("asked", form("Prompt", **FORMED)),
    "body": held("body", form("Text", column="body", pack=False)),
}
OF_FACTORY = {
    "alpaca": held("alpaca", form("Dialogue", **REST)),
    "asked": held("asked", RENAMED),
    "shared": held("shared", SHARED_CHATS),
}
OF_TRL = {"chat": held("chat"), "alpaca": held("alpaca", data={"split": "train", "columns": ["instruction", "output"]})}
# The configuration, the recipe but for its training, some of its training, and the names of the keys that are left:
# those without which something else may be learned, and others.
CASES: dict[str, tuple[str, dict[str, Any], str, set[str], set[str]]] = {
    "axolotl": (
        AXOLOTL,
        sft(
            OF_AXOLOTL,
            {"target_modules": "all-linear"},
            tokenizer={"factory": "transformers.AutoTokenizer.from_pretrained", "arguments": PADDED},
        ),
        "{per_device_train_batch_size: 3, gradient_accumulation_steps: 2, num_train_epochs: 2, max_length: 256, "
        "packing: true, learning_rate: 2.0e-4, warmup_steps: 0.1, bf16: false, eval_strategy: steps, eval_steps: 0.125,"
        "save_strategy: steps, save_steps: 0.5, optim: adamw_torch, lr_scheduler_type: cosine, output_dir: OUT, "
        "pad_token: null}",
        {
            *("lr_scheduler", "loss_watchdog_threshold", "datasets[0].train_on_eos", "datasets[1].conversation"),
            *("datasets[2].type", "datasets[3].type.no_input_format", "datasets[4].tint", "datasets[5]"),
            "special_tokens.bos_token",
        },
        {"strict", "lora_model_dir", "dataset_prepared_path"},
    ),
    "llamafactory": (
        FACTORY,
        sft(
            OF_FACTORY,
            {"lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]},
            mixing={"alpaca": 0.5, "asked": 0.3, "shared": 0.2},
        ),
        "{per_device_train_batch_size: 3, num_train_epochs: 2.0, max_length: 256, learning_rate: 5.0e-5, packing: "
        "false, eval_strategy: steps, eval_steps: 10, warmup_steps: 0.1, output_dir: OUT}",
        {*("template", "mix_strategy", "dataset_info.shared.columns.images"), "dataset_info.shared.tags.assistant_tag"},
        {"trust_remote_code", "overwrite_output_dir", "plot_loss"},
    ),
    "trl": (
        SCRIPT,
        sft(
            OF_TRL,
            {"lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["q_proj"]},
            mixing={"chat": 0.7, "alpaca": 0.3},
        ),
        "{max_length: 256, learning_rate: 1.0e-4, eval_strategy: steps, eval_steps: 10, output_dir: OUT}",
        {"datasets[0].tint"},
        {"dataset_name", "logging_dir", "trainer"},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    write_base_and_rows(folder, ROWS)
    (folder / "data" / "dataset_info.json").write_text(json.dumps(INFO))
    return folder


@pytest.fixture
def converted(capsys: pytest.CaptureFixture[str]) -> Converts:
    """Converts a configuration; gives the exit status and what is printed."""

    def of(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        try:
            main(["recipe", "from", *map(str, words)])
        except SystemExit as ended:
            return int(ended.code or 0), capsys.readouterr().out
        return 0, capsys.readouterr().out

    return of


@pytest.mark.parametrize("kind", CASES)
def test_a_configuration_becomes_a_recipe_that_builds(
    kind: str, folder: Path, tmp_path: Path, printed: Runs, converted: Converts
) -> None:
    text, expected, training, changing, harmless = CASES[kind]
    theirs, ours = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    theirs.write_text(placed(text, folder))
    status, shown = converted(theirs, "--output", ours, "--json")
    made = json.loads(shown)
    assert (status, made["kind"]) == (3, kind)
    assert set(made["changing"]) == changing
    assert set(made["not_carried"]) == changing | harmless
    recipe = yaml.safe_load(ours.read_text())
    assert recipe == made["recipe"]
    got = recipe.pop("training")
    assert recipe == json.loads(placed(json.dumps(expected), folder))
    wanted = yaml.safe_load(placed(training, folder))
    assert {name: got.get(name) for name in wanted} == wanted
    shown = printed("train", ours, "--dry_run", "--training.use_cpu", "true")
    learned = {"axolotl": ["⟦yo", "⟦so", "⟦a text"], "llamafactory": ["⟦done", "⟦so", "⟦yo"], "trl": ["⟦done"]}
    assert [words for words in learned[kind] if words not in shown] == []


STAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "preferences": (
        FACTORY.replace("sft", "dpo").replace("alpaca, asked,shared", "pairs"),
        "dpo",
        {"loss_type": ["sigmoid"]},
    ),
    "rewards": (FACTORY.replace("sft", "rm").replace("alpaca, asked,shared", "pairs"), "reward", {}),
    "texts": (
        FACTORY.replace("sft", "pt").replace("alpaca, asked,shared", "body").replace("packing: false\n", ""),
        "sft",
        {"packing": True, "packing_strategy": "wrapped"},
    ),
    "Axolotl's pairs": (
        "base_model: BASE\nrl: ipo\nrl_beta: 0.2\nchat_template: llama3\ndatasets:\n"
        "  - {path: DATA/pairs.jsonl, type: chat_template.default, field_messages: instruction}\n",
        "dpo",
        {"loss_type": ["ipo"], "beta": 0.2, "bf16": True},
    ),
    "Alpaca's words": (
        "base_model: BASE\nsaves_per_epoch: 1\ntrain_on_inputs: true\n"
        "datasets:\n  - {path: DATA/alpaca.jsonl, type: alpaca}\n",
        "sft",
        {"completion_only_loss": False, "num_train_epochs": 1.0, "max_length": 512, "save_strategy": "epoch"},
    ),
    "a single data set": (
        "model_name_or_path: BASE\ndataset_name: someone/data\ncenter_rewards_coefficient: 0.01\nload_in_4bit: true\n",
        "reward",
        {"center_rewards_coefficient": 0.01},
    ),
}


@pytest.mark.parametrize("case", STAGES)
def test_other_trainers(case: str, folder: Path, tmp_path: Path, converted: Converts) -> None:
    text, trainer, training = STAGES[case]
    text = text.replace("interleave_over", "concat").replace("interleave_probs: 0.5,0.3,0.2\n", "")
    (tmp_path / "theirs.yaml").write_text(placed(text, folder))
    recipe = yaml.safe_load(converted(tmp_path / "theirs.yaml")[1])
    assert recipe["trainer"] == trainer
    assert {name: recipe["training"].get(name) for name in training} == training
    assert "mixing" not in recipe
    assert ("### Instruction" in recipe.get("chat_template", "")) is (case == "Alpaca's words")
    quantization = recipe["model"].get("quantization", {})
    assert quantization.get("load_in_4bit", False) is (case == "a single data set")


# A configuration, a place in its recipe or in what is left, and what stands there: `...` for a reason.
KEYS: list[tuple[str, str, Any]] = [
    (ONLINE, "streams.d.data.path", "d"),
    (ONLINE + "max_samples: 9\n", "streams.d.data", {"path": "d", "split": "train[:9]"}),
    (ONLINE + "max_samples: 9\n", "left.max_samples", ...),
    (ONLINE + "max_samples: 9\neval_dataset: d\n", "evaluation.eval_d.data.split", "train[:9]"),
    (ONLINE + "max_samples: 9\nstreaming: true\n", "left.max_samples", ...),
    (ONLINE + "eval_dataset: d\n", "evaluation.eval_d.data.path", "d"),
    (ONLINE + "finetuning_type: full\nbf16: true\n", "model", {"name_or_path": "a", "config": {"dtype": "float32"}}),
    (ONLINE + "finetuning_type: freeze\n", "left.finetuning_type", ...),
    (ONLINE + "additional_target: embed, head\n", "model.lora.modules_to_save", ["embed", "head"]),
    (ONLINE + "quantization_bit: 3\n", "left.quantization_bit", ...),
    (ONLINE + "disable_gradient_checkpointing: true\n", "training.gradient_checkpointing", False),
    (ONLINE + "eval_strategy: steps\n", "left.eval_strategy", ...),
    (ONLINE + "mix_strategy: interleave_under\n", "mixing", "Uniform"),
    (ROWS_OF, "streams.d", {"data": {"path": "d"}}),
    (ROWS_OF.replace("d}", "d, type: alpaca}") + "chat_template: llama3\n", "left.datasets[0]/type", ...),
    (ROWS_OF.replace("d}", "d, weight: 0.5}"), "streams.d.rows_share", 0.5),
    (ROWS_OF + "chat_template_jinja: '{{ m }}'\n", "chat_template", "{{ m }}"),
    (ROWS_OF + "save_strategy: best\n", "training.save_strategy", "best"),
    (ROWS_OF + "group_by_length: true\n", "training.train_sampling_strategy", "group_by_length"),
    (ROWS_OF + "per_device_train_batch_size: 2\nmicro_batch_size: 3\n", "left.micro_batch_size", ...),
    (ROWS_OF + "per_device_train_batch_size: 2\nmicro_batch_size: 3\n", "training.per_device_train_batch_size", 2),
    (ROWS_OF.replace("d}", "json, data_files: {train: d.csv}, ds_type: json}"), "streams.d.data.path", "d.csv"),
    (ROWS_OF.replace("d}", "json, data_files: d.csv, ds_type: json}"), "left.datasets[0]/ds_type", ...),
    (ROWS_OF.replace("d}", "d, type: sharegpt, roles_to_train: [user]}"), "left.datasets[0]/roles_to_train", ...),
    (ROWS_OF.replace("d}", "d, type: {field_output: y}}"), "streams.d.format.init_args.rename", {"y": "output"}),
    (ROWS_OF + "  - {path: e}\nval_set_size: 8\n", "left.val_set_size", ...),
    (ROWS_OF + "val_set_size: 8\n", "streams.d.validation", 8),
    ("base_model: a\npretraining_dataset: [{path: d}]\nval_set_size: 0.1\n", "left.val_set_size", ...),
    (THEIRS + "datasets: [{path: d}]\n", "streams.d.data.path", "d"),
    (THEIRS + "datasets: [{path: d}]\ntest_split_size: 0.1\n", "left.test_split_size", ...),
    (THEIRS + "datasets: [{path: d}]\neval_strategy: steps\n", "left.eval_strategy", ...),
    (THEIRS + "dataset_name: d\neval_strategy: steps\n", "streams.d.data.validation_split", "test"),
    (THEIRS + "dataset_name: d\nlora_task_type: SEQ_CLS\n", "trainer", "reward"),
]


@pytest.mark.parametrize(("text", "place", "expected"), KEYS)
def test_a_key_stands_where_it_belongs_or_is_left_with_a_reason(
    text: str, place: str, expected: Any, tmp_path: Path
) -> None:
    (tmp_path / "theirs.yaml").write_text(text)
    made = convert(str(tmp_path / "theirs.yaml"))
    found: Any = {**made.recipe, "left": made.left}
    for name in place.split("."):
        found = found[name.replace("/", ".")]
    assert found == expected or (expected is ... and found)


WRONG: dict[str, tuple[str, list[str]]] = {
    "no mapping": ("- a\n- b\n", ["theirs.yaml", "mapping"]),
    "no tool": ("learning_rate: 1\n", ["theirs.yaml", "learning_rate", "--kind"]),
    "two tools": (AXOLOTL + "stage: sft\n", ["Axolotl's", "base_model", "LLaMA-Factory's stage", "--kind"]),
    "a key twice": ("base_model: a\nbase_model: b\n", ["'base_model'", "twice"]),
    "no trainer": ("base_model: a\nrl: grpo\n", ["rl must", "'grpo'"]),
    "no stage": ("stage: [kto]\n", ["stage must", "'kto'"]),
    "no data": ("base_model: a\n", ["datasets"]),
    "data of no format": ("base_model: a\ndatasets: [{path: b, type: input_output}]\n", ["datasets", "input_output"]),
    "no folder": ("model_name_or_path: a\nstage: sft\ndataset: b\ndataset_dir: nowhere\n", ["dataset_dir", "nowhere"]),
    "an unknown set": (FACTORY.replace("asked,", "other,"), ["dataset", "'other'"]),
    "rows of pairs": (FACTORY.replace("asked,", "pairs,"), ["dataset_info.pairs.ranking", "sft"]),
    "too few shares": (FACTORY.replace("0.5,0.3", "0.8"), ["interleave_probs", "3"]),
    "no number": (AXOLOTL.replace("micro_batch_size: 3", "micro_batch_size: many"), ["per_device_train_batch_size"]),
    "a share of one": (SCRIPT.replace("fraction: 0.3", ""), ["datasets.fraction"]),
    "a share of two files": (
        THEIRS + "datasets: [{path: json, data_files: [a, b], fraction: 1}]\n",
        ["datasets.fraction"],
    ),
    "no list": ("base_model: a\ndatasets: b\n", ["datasets must", "list"]),
    "an empty list": (THEIRS + "datasets: []\n", ["datasets must"]),
    "names in a list": ("base_model: a\ndatasets: [b]\n", ["datasets[0] must", "mapping"]),
    "data without a path": ("base_model: a\ndatasets: [{type: alpaca}]\n", ["datasets[0].path"]),
    "no data set": (THEIRS + "use_peft: true\n", ["dataset_name must"]),
    "no model": (ROWS_OF.replace("base_model: a", "base_model: 3"), ["base_model must", "3"]),
    "no adapter": (ROWS_OF + "adapter: relora\n", ["adapter must", "'relora'"]),
    "more than all rows": (ROWS_OF.replace("d}", "d, weight: 2}"), ["datasets[0].weight must", "2"]),
    "no share": (ROWS_OF + "val_set_size: many\n", ["val_set_size must", "'many'"]),
    "a set without a place": (FACTORY.replace("asked,", "placeless,"), ["dataset_info.placeless.file_name"]),
    "rows of no format": (FACTORY.replace("asked,", "odd,"), ["dataset_info.odd.formatting", "'odd'"]),
    "no loss": (
        THEIRS + "stage: dpo\ndataset: pairs\ndataset_dir: DATA\npref_loss: orpo\n",
        ["pref_loss must", "'orpo'"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_configuration_is_refused_by_name(case: str, folder: Path, tmp_path: Path, refused: Runs) -> None:
    text, named = WRONG[case]
    (tmp_path / "theirs.yaml").write_text(placed(text, folder))
    said = refused("recipe", "from", tmp_path / "theirs.yaml")
    assert [word for word in named if word not in said] == []


def test_the_tool_can_be_named(folder: Path, tmp_path: Path, converted: Converts) -> None:
    (tmp_path / "theirs.yaml").write_text(placed(SCRIPT + "stage: sft\n", folder))
    made = json.loads(converted(tmp_path / "theirs.yaml", "--kind", "trl", "--json")[1])
    assert made["kind"] == "trl"
    assert "stage" in made["not_carried"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (ROWS_OF + "strict: false\nlora_r: 4\nlora_model_dir:\n", 0),  # nothing, without an adapter, without a value
        (ROWS_OF + "nothing_knows_this: 3\n", 3),
        (ROWS_OF.replace("d}", "d, nothing_knows_this: 3}"), 3),
        (ROWS_OF.replace("d}", "d, type: input_output}") + "  - {path: e}\n", 3),
    ],
)
def test_the_status_says_whether_something_else_may_be_learned(
    text: str, status: int, tmp_path: Path, converted: Converts
) -> None:
    (tmp_path / "theirs.yaml").write_text(text)
    assert converted(tmp_path / "theirs.yaml")[0] == status


def test_shares_of_rows_are_kept(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(
        "base_model: a\ndatasets:\n  - {path: few}\n  - {path: many, weight: 0.1, shards: 5}\n"
    )
    streams = convert(str(tmp_path / "theirs.yaml")).recipe["streams"]
    assert "rows_share" not in streams["few"]
    assert 500 * streams["many"]["rows_share"] == 10
