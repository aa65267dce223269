"""Scores by lm-eval of tasks in YAML, as score and as held-out sets, against plain PyTorch and lm-eval's own call."""

import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, set_seed

from mixer.tools.recipe.streams import Factory
from mixer.utils.random_state import RandomState
from tasks import ContinualRun, lm_eval_score
from tasks.score import score_of
from tasks.task import Task, TaskSequence
from tasks.tools.recipe import ClassifierRecipe, ContinualRecipe
from tests.helpers import arguments
from tests.refusals import refused
from tests.tasks.generation.test_answers import TOKENIZER, llama, new_trainer, samples

QUESTIONS: dict[str, list[tuple[str, list[str], int]]] = {
    "small": [
        ("a b", ["yes", "no", "maybe"], 1),
        ("cd", ["x", "yz", "w"], 0),
        ("?", ["p", "q"], 0),
        ("", ["v", "k"], 1),
    ],
    "other": [("one", ["two", "three"], 0), ("two", ["three", "four"], 1), ("x" * 9, ["y", "z"], 1)],
}
YAML = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
fewshot_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}?"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def write_tasks(folder: Path) -> Path:
    for name, questions in QUESTIONS.items():
        rows = [dict(zip(("question", "choices", "answer"), question, strict=True)) for question in questions]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(YAML.format(name=name, rows=folder / f"{name}.jsonl"))
    return folder


@torch.no_grad()
def by_hand(model: Any, name: str) -> float:
    """The share of questions whose right answer the model finds more likely than the others."""

    def log_likelihood(prompt: str, answer: str) -> float:
        ids = TOKENIZER(prompt + answer, add_special_tokens=False, return_tensors="pt")["input_ids"]
        start = len(TOKENIZER(prompt, add_special_tokens=False)["input_ids"])
        logs = model.eval()(input_ids=ids).logits[0, :-1].log_softmax(dim=-1)
        return float(logs.gather(1, ids[0, 1:, None])[start - 1 :].sum())

    answers = [
        int(np.argmax([log_likelihood(f"{question}?", f" {choice}") for choice in choices])) == right
        for question, choices, right in QUESTIONS[name]
    ]
    return float(np.mean(answers))


@cache
def two_tasks() -> TaskSequence:
    return TaskSequence(tuple(Task(name, samples(), samples()) for name in ("first", "second")), "domain")


def test_it_is_the_score_and_held_out_of_a_run(folder: Path, tmp_path: Path) -> None:
    general = lm_eval_score("other", include_path=folder, batch_size=3)
    score = lm_eval_score({"first": "small", "second": "other"}, include_path=folder)
    options: dict[str, Any] = {"score": score, "held_out": {"general": general}, "processing_class": TOKENIZER}
    options["data_collator"] = DataCollatorForSeq2Seq(TOKENIZER)
    run = ContinualRun(llama(), two_tasks(), arguments(tmp_path, max_steps=2, learning_rate=0.1), **options)
    scores = run.run()
    names = ("small", "other")
    assert scores.scores[0].tolist() == [by_hand(llama(), name) for name in names]
    assert scores.scores[2].tolist() == [by_hand(run.model, name) for name in names]
    held_out = [by_hand(model, "other") for model in (llama(), run.model)]
    assert scores.held_out()["general"].iloc[[0, 2]].tolist() == held_out
    assert (scores.metric, general.metric) == ("acc", "acc on other")
    options["held_out"] = {"general": lm_eval_score("small", include_path=folder)}
    again = ContinualRun(llama(), two_tasks(), run.args, **options)
    with refused("held_out"):
        again.run(resume=True)


def test_examples_are_drawn_anew_and_nothing_else_changes(folder, tmp_path, monkeypatch) -> None:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    trainer = new_trainer(tmp_path, llama().train(), samples())
    options: dict[str, Any] = {"num_fewshot": 2, "limit": 3}
    score = lm_eval_score("small", "acc_norm,none", folder, **options)
    set_seed(5)
    before = RandomState.capture()
    found = [score.measure(trainer, two_tasks()[0]) for _ in range(3)]
    assert before.is_current()
    assert trainer.model.training
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # which takes seconds
    reader = HFLM(pretrained=llama(), tokenizer=TOKENIZER)
    whole = simple_evaluate(reader, tasks=["small"], task_manager=manager, bootstrap_iters=0, **options)
    assert found == [whole["results"]["small"]["acc_norm,none"]] * 3


def test_a_recipe_names_it(folder: Path) -> None:
    given = Factory("tasks.lm_eval_score", {"tasks": "small", "include_path": str(folder)})
    recipe = ContinualRecipe(ClassifierRecipe(), Factory("none"), arguments(folder), score=given)
    score: Any = recipe._score(None, [])
    assert score.metric == "acc on small"


def test_what_lm_eval_has_not_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = new_trainer(tmp_path, llama(), samples())
    score = lm_eval_score("small", "f1", folder)
    with refused("metric"):
        score.measure(trainer, two_tasks()[0])
    trainer.processing_class = None
    with refused("processing_class"):
        score.measure(trainer, two_tasks()[0])
    with refused("include_path"):
        lm_eval_score("small", include_path=folder / "missing")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **_: type("Empty", (), {"all_tasks": []}))
    with refused("tasks"):
        lm_eval_score("smal", include_path=folder)


def harness(folder: Path) -> float | None:
    """What a rank finds, for `tests/ranks`."""
    if importlib.util.find_spec("lm_eval") is None:
        return None
    own = folder / f"harness {os.environ.get('RANK')}"
    own.mkdir()
    score = lm_eval_score("small", include_path=write_tasks(own))
    value, why = score_of(score, new_trainer(folder, llama(), samples()), two_tasks()[0], "")
    assert why is None, why
    return value
