"""Generated answers are those of the model one prompt at a time, and change nothing of it; see also `tests/ranks`."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from mixer import MixingTrainer
from mixer.tools.recipe.data.formats import Prompt
from mixer.tools.recipe.data.formatting import formatted
from tasks.continual.scoring import Scoring
from tasks.generation import generate_answers
from tasks.score import generated
from tasks.task import Task, TaskSequence
from tests.helpers import arguments
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.refusals import refused
from tests.tasks.test_continual import data, new_model

TOKENIZER = byte_level()
ROWS = {"q": ["a", "bcd", "ef gh", "i", "jk", "lm", "n"], "a": ["x", "yy", "z", "x", "y", "z", "xyz"]}


def samples(task: str = "causal-lm") -> Any:
    return formatted(datasets.Dataset.from_dict(ROWS), Prompt("{q}?", "{a}"), TOKENIZER, task)


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(TOKENIZER), num_key_value_heads=2, initializer_range=0.5, **sizes)
    return LlamaForCausalLM(config)


def t5() -> Any:
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(TOKENIZER), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    config.decoder_start_token_id = config.pad_token_id = TOKENIZER.pad_token_id
    return T5ForConditionalGeneration(config)


def new_trainer(folder: Path, model: Any, dataset: Any) -> MixingTrainer:
    return MixingTrainer(model, arguments(folder), train_dataset={"a": dataset}, processing_class=TOKENIZER)


def one_by_one(model: Any, dataset: Any, num_tokens: int) -> list[str]:
    """Greedy answers without a cache, padding or `generate`."""
    texts = []
    for sample in dataset:
        is_prompt = [label == -100 for label in sample["labels"]]
        ids = [token for token, is_own in zip(sample["input_ids"], is_prompt, strict=True) if is_own]
        for _ in range(num_tokens):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == TOKENIZER.eos_token_id:
                break
        texts.append(TOKENIZER.decode(ids[sum(is_prompt) :], skip_special_tokens=True))
    return texts


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_answers_are_those_of_single_prompts_and_references_what_is_learned(tmp_path: Path, batch_size: int) -> None:
    trainer = new_trainer(tmp_path, llama(), samples())
    found = generate_answers(trainer, samples(), 6, batch_size)
    assert found.references == ROWS["a"]
    assert found.predictions == one_by_one(trainer.model, samples(), 6)
    assert len(set(found.predictions)) > 3


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    trainer: Any = new_trainer(tmp_path, llama(), samples())
    trainer.model.train()
    trainer.model.model.norm.eval()
    modes = [module.training for module in trainer.model.modules()]
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    random, settings = torch.get_rng_state(), trainer.model.generation_config.to_dict()
    generate_answers(trainer, samples(), 3)
    with refused("score"):
        generate_answers(trainer, [{"input_ids": [1, 2], "labels": [1, 2]}], 3)
    assert [module.training for module in trainer.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert trainer.model.generation_config.to_dict() == settings
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_an_encoder_decoder_reads_all_of_its_input(tmp_path: Path) -> None:
    rows = samples("seq2seq-lm")
    trainer = new_trainer(tmp_path, t5(), rows)
    found = generate_answers(trainer, rows, 4, 3)
    assert found.references == ROWS["a"]
    assert found.predictions == generate_answers(trainer, rows, 4, 1).predictions


def test_each_task_has_its_score(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path, llama(), samples())
    first, second, third = (Task(name, samples(), samples()) for name in ("first", "second", "third"))

    def num_texts(predictions: list[str], references: list[str]) -> dict[str, float]:
        return {"num_texts": len(predictions), "other": 0.0}

    score = generated({"first": "exact_match", "second": num_texts}, max_new_tokens=2)
    assert (score.metric, score.higher_is_better) == ("answer score", True)
    assert (score.measure(trainer, first), score.measure(trainer, second)) == (0.0, 7.0)
    unnamed = {"first": lambda **texts: 1.0, "second": lambda **texts: 2.0}  # which have one name
    assert [generated(unnamed).measure(trainer, task) for task in (first, second)] == [1.0, 2.0]
    with refused("score"):
        Scoring(score, TaskSequence((first, second, third), "domain"), None, None)
    with refused("score"):
        generated({})
    with refused("score"):
        generated("bleu")
    with refused("score"):
        generated(3)  # type: ignore[arg-type]


def test_what_cannot_answer_is_refused(tmp_path: Path) -> None:
    rows = samples()
    without = MixingTrainer(llama(), arguments(tmp_path), train_dataset={"a": rows})
    with refused("processing_class"):
        generate_answers(without, rows)
    classifier = new_trainer(tmp_path, new_model(), data())
    with refused("model"):
        generate_answers(classifier, rows)


def answers(folder: Path) -> dict[str, Any]:
    """What a rank finds, for `tests/ranks`; the number of samples is odd."""
    trainer = new_trainer(folder, llama(), samples())
    found = generate_answers(trainer, samples(), 6, 2)
    return {"predictions": found.predictions, "references": found.references}
