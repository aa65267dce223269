"""Generated answers are those of one prompt at a time; see also tests/ranks. Scores of texts by hand."""

import functools
import math
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given, strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from mixer import MixingTrainer
from mixer.tools.recipe.data.formats import Prompt
from mixer.tools.recipe.data.formatting import formatted
from mixer.utils.errors import InvalidTypeError
from tasks.continual.scoring import Scoring
from tasks.generation import (
    TEXT_SCORES,
    edit_similarity,
    exact_match,
    generate_answers,
    json_lines_match,
    last_number_match,
    rouge_l,
    score_texts,
    token_f1,
)
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


TEXTS = st.lists(st.tuples(st.text("ab .", max_size=9), st.text("ab .", max_size=9)), min_size=1, max_size=4)


def longest_common(one: str, other: str) -> int:
    @functools.cache
    def of(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        return 1 + of(i + 1, j + 1) if one[i] == other[j] else max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@given(TEXTS)
def test_scores_lie_between_0_and_1_and_equal_texts_are_right(pairs: list[tuple[str, str]]) -> None:
    predictions, references = map(list, zip(*pairs, strict=True))
    for score in TEXT_SCORES.values():
        assert 0 <= score(predictions=predictions, references=references) <= 1
        assert score(predictions=predictions, references=predictions) == 1
    assert token_f1(predictions, references) >= rouge_l(predictions, references) >= 0
    similarity = [2 * longest_common(*pair) / len("".join(pair)) if "".join(pair) else 1 for pair in pairs]
    assert edit_similarity(predictions, references) == pytest.approx(sum(similarity) / len(pairs))


@pytest.mark.parametrize(
    ("text", "reference", "is_right"),
    [
        ("10 - 3 = 7, so she has 7.", "#### 7", True),
        ("It costs $1,250.50", "1250.5", True),
        ("between 10-12", "12", True),
        ("it fell to -3", "-3", True),
        ("it fell to -3", "3", False),
        ("seven", "7", False),
    ],
)
def test_the_last_number_is_the_answer(text: str, reference: str, is_right: bool) -> None:
    assert last_number_match([text], [reference]) == is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"name": "area", "arguments": {"b": [1, 2], "a": "x"}}\n{"name": "sum"}', True),
        ('{"name":"sum"}\n\n {"arguments": {"a":"x","b":[1,2]}, "name":"area"} \n', True),
        ('{"name": "area", "arguments": {"b": [2, 1], "a": "x"}}\n{"name": "sum"}', False),
        ('{"name": "sum"}', False),
        ('{"name": "sum"', False),
    ],
)
def test_calls_are_compared_as_json(text: str, is_right: bool) -> None:
    reference = '{"name": "area", "arguments": {"a": "x", "b": [1, 2]}}\n{"name": "sum"}\n'
    assert json_lines_match([text], [reference]) == is_right


def test_functions_in_the_manner_of_evaluate_are_scores() -> None:
    texts = ["a", "b"], ["a", "c"]
    assert score_texts(exact_match, "exact_match", *texts) == 0.5
    assert score_texts(lambda predictions, references: {"f1": 0.25, "rouge_l": 1}, "rouge_l", *texts) == 1.0
    assert score_texts(lambda *, predictions, references: {"f1": len(predictions)}, "any", *texts) == 2.0
    with refused("score"):
        score_texts(lambda predictions, references: {"a": 1, "b": 2}, "any", *texts)
    with refused("score", InvalidTypeError):
        score_texts(lambda predictions, references: "high", "any", *texts)
    assert math.isnan(exact_match([], []))
