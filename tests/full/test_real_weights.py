"""SmolLM2-135M-Instruct and all-MiniLM-L6-v2, which come as packages: loaded, trained as by TRL, resumed, inspected."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import yaml
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
from trl import SFTTrainer

from mixer import MixingSFTTrainer
from mixer.tools.cli.entry import main
from mixer.tools.recipe.data.formats.chat import Chat
from mixer.tools.recipe.gguf import convert_gguf
from tasks.sources import minilm, smollm2
from tests.helpers import GradientRecorder, weights_of
from tests.mixer.trainer.trl.cases import sft_arguments
from tests.ranks.launch import launch_nodes
from tests.refusals import refused

pytestmark = [pytest.mark.full, pytest.mark.weights]
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima"}


def _chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _sets() -> dict[str, datasets.Dataset]:
    capitals = [_chat(f"What is the capital of {land}?", f"It is {city}.") for land, city in CAPITALS.items()]
    sums = [_chat(f"What is {n} plus {n + 3}?", f"{n} + {n + 3} = {2 * n + 3}. " * (n % 3 + 1)) for n in range(6)]
    return {"capitals": datasets.Dataset.from_list(capitals), "sums": datasets.Dataset.from_list(sums)}


def _model(num_layers: int = 2) -> Any:
    """The first layers of the real model."""
    return AutoModelForCausalLM.from_pretrained(smollm2(), num_hidden_layers=num_layers)


def test_the_converted_model_answers() -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(smollm2()), AutoModelForCausalLM.from_pretrained(smollm2())
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=10, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert model.num_parameters() == 134_515_008
    assert model.dtype == torch.float32


def test_the_format_learns_the_assistants_turns_of_the_real_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    row = _chat("What is 2 plus 3?", "It is 5.")
    row["messages"] += _chat("And 2 plus 4?", "It is 6.")["messages"]
    (sample,) = Chat(max_length=128).encode([row], tokenizer, "causal-lm")
    shown = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    shown += "<|im_start|>user\nWhat is 2 plus 3?<|im_end|>\n<|im_start|>assistant\n"
    parts = [(shown, False), ("It is 5.<|im_end|>", True), ("\n<|im_start|>user\nAnd 2 plus 4?<|im_end|>\n", False)]
    parts += [("<|im_start|>assistant\n", False), ("It is 6.<|im_end|>", True), ("\n", False)]
    tokens = [(token, learns) for text, learns in parts for token in tokenizer.encode(text, add_special_tokens=False)]
    assert list(sample["input_ids"]) == [token for token, _ in tokens]
    learned = [token if learns else -100 for token, learns in tokens]
    labels = list(sample["labels"])
    newlines = [place for place, (label, own) in enumerate(zip(labels, learned, strict=True)) if label != own]
    assert all(tokenizer.decode([labels[place]]) == "\n" for place in newlines)  # ends of turns may be learned whole


@pytest.mark.parametrize("changes", [{}, {"bf16": True}, {"packing": True, "max_length": 96}])
def test_a_step_of_two_streams_is_trls_on_the_same_rows(tmp_path: Path, changes: dict[str, Any]) -> None:
    sets = _sets()
    options = {"max_steps": 1, "per_device_train_batch_size": 16, "max_length": 128, **changes}
    ours = _recorded(MixingSFTTrainer, tmp_path / "ours", sets, {"mixing": "Proportional"}, **options)
    rows = datasets.concatenate_datasets(list(sets.values()))
    theirs = _recorded(SFTTrainer, tmp_path / "theirs", rows, {}, **options, train_sampling_strategy="sequential")
    (mine, gradient), (other, expected) = ours, theirs
    close = {"rel": 1e-5} if "bf16" not in changes else {"rel": 1e-3}  # rows in another order round otherwise
    assert mine == pytest.approx(other, **close)
    distance = torch.linalg.vector_norm(gradient - expected) / torch.linalg.vector_norm(expected)
    assert distance < (1e-5 if "bf16" not in changes else 2e-2)


def _recorded(kind: Any, folder: Path, data: Any, own: dict[str, Any], **options: Any) -> tuple[float, torch.Tensor]:
    recorder, tokenizer = GradientRecorder(), AutoTokenizer.from_pretrained(smollm2())
    own = {**own, "processing_class": tokenizer, "callbacks": [recorder]}
    trainer = kind(_model(), sft_arguments(folder, **options), train_dataset=data, **own)
    if kind is MixingSFTTrainer:
        trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))  # all rows
    trainer.train()
    return trainer.state.log_history[0]["loss"], recorder.gradients[0]


def _recipe(folder: Path, **training: Any) -> str:
    for name, rows in _sets().items():
        rows.to_json(folder / f"{name}.jsonl")
    content = {
        "model": {"name_or_path": {"factory": "tasks.sources.smollm2"}, "config": {"num_hidden_layers": 2}},
        "trainer": "sft",
        "streams": {name: {"data": {"path": str(folder / f"{name}.jsonl")}} for name in ("capitals", "sums")},
        "mixing": {"capitals": 1, "sums": 1},
        "batch_size": 4,
        "training": {
            "output_dir": str(folder / "run"),
            "max_steps": 4,
            "per_device_train_batch_size": 2,
            "max_length": 96,
            "save_steps": 2,
            "logging_steps": 1,
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            **training,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def _losses(folder: Path) -> list[float]:
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def test_a_recipe_goes_on_to_the_bit_and_is_saved_as_ordinary_weights(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path)
    main(["train", recipe])
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-4")
    other = ["--training.output_dir", str(tmp_path / "other")]
    main(["train", recipe, *other, "--resume", str(tmp_path / "run" / "checkpoint-2")])
    resumed = AutoModelForCausalLM.from_pretrained(tmp_path / "other" / "checkpoint-4")
    assert torch.equal(weights_of(whole), weights_of(resumed))
    assert not torch.equal(weights_of(whole), weights_of(_model()))


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, save_steps=4)
    main(["train", recipe])
    launch_nodes(["mixer", "train", recipe, "--training.output_dir", str(tmp_path / "two")], ranks=2)
    assert _losses(tmp_path / "two") == pytest.approx(_losses(tmp_path / "run"), rel=1e-4)


def test_inspect_shows_the_losses_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", _recipe(tmp_path), "--losses", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {stream["name"] for stream in found["streams"]} == {"capitals", "sums"}


def test_minilm_embeds_sentences() -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(minilm()), AutoModel.from_pretrained(minilm())
    texts = ["A kitten sleeps on the sofa.", "A cat is lying on a couch.", "The bank raised interest rates."]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    similarity = means @ means.T
    assert similarity[0, 1] > 0.5 > 0.2 > similarity[0, 2]


def test_a_file_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF of nothing")
    with refused("gguf_file", found="other.gguf") as caught:
        convert_gguf(tmp_path, "other.gguf")
    assert "model.gguf" in str(caught.value)
    with refused("gguf_file", found="model.gguf"):
        convert_gguf(tmp_path, "model.gguf")
