"""Continual runs with FSDP2 and DeepSpeed: the scores and weights of DDP, in one go and resumed within a task."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from mixer.trainer.checks.engines import engine_of
from tasks.continual.continual import ContinualRun
from tasks.methods import ERACE, LwF
from tasks.score import Score, accuracy, generated
from tasks.sequences import pick
from tasks.task import Task, TaskSequence
from tests.full.ranks.test_engines import ENGINES
from tests.helpers import arguments
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.ranks.engines import as_on_gpus, without_compiling
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, on_ranks
from tests.tasks.generation.test_answers import TOKENIZER, llama, samples
from tests.tasks.methods import language
from tests.tasks.test_continual import build, end_of

FRESH = {"optimizer": "fresh", "per_device_train_batch_size": 2}


def uneven(trainer: Any, task: Task) -> float:
    """One rank has a batch more than the other."""
    return accuracy(trainer, pick(task.evaluation, np.arange(37)), batch_size=18)


def replayed(folder: Path, instants: Instants | None = None, **options: Any) -> ContinualRun:
    return build(folder, "reservoir, kept", instants, score=Score(uneven, "accuracy"), **FRESH, **options)


def masked(folder: Path, **options: Any) -> ContinualRun:
    """Logits of a memory, and a head for each task."""
    return build(folder, "masked, payloads", **FRESH, **options)


def growing(folder: Path, **options: Any) -> ContinualRun:
    """Some gradients are so small that AdamW would make steps of their rounding."""
    options |= {"optim": "sgd", "learning_rate": 0.1, "score_steps": 3}
    return build(folder, "growing, kept", methods=[ERACE()], **FRESH, **options)


def adapted(folder: Path, **options: Any) -> ContinualRun:
    """Adapters alone are trained and saved."""
    args = arguments(folder, max_steps=3, optim="adamw_torch", learning_rate=1e-2, **options)
    return ContinualRun(language.adapted(), language.counting(), args, score="loss")


def answering(folder: Path, **options: Any) -> ContinualRun:
    """Ranks write answers of different lengths."""
    sequence = TaskSequence(tuple(Task(name, samples(), samples()) for name in ("first", "second")))
    collator = DataCollatorForSeq2Seq(TOKENIZER)
    score = generated("edit_similarity", max_new_tokens=6, batch_size=2)
    args = arguments(folder, max_steps=3, optim="adamw_torch", learning_rate=1e-2, **options)
    return ContinualRun(llama(), sequence, args, score=score, processing_class=TOKENIZER, data_collator=collator)


CASES = (replayed, masked, growing, adapted, answering)
RUNS: dict[str, Callable[..., ContinualRun]] = {run.__name__: run for run in CASES}
PARTS = {"fsdp-sharded": ("replayed",)}  # the others train all of them
NAMES = {"fsdp": "FSDP2", "fsdp-sharded": "FSDP2", "zero-2": "DeepSpeed ZeRO-2"}


def ended(engine: str, folder: Path) -> dict[str, Any]:
    """Trains each run with an engine, and the first once more, killed in the second task."""
    refusing = build(folder / engine / "refused", "none, fresh", methods=[LwF()], **ENGINES[engine]())
    results: dict[str, Any] = {"refused": message_of(refusing.check)}
    for name in PARTS.get(engine, RUNS):
        run = RUNS[name](folder / engine / name, **ENGINES[engine]())
        run.check()
        results["engine"] = engine_of(run._first_trainer).name
        run.run()
        results[name] = end_of(run)
    instants, place = Instants(kill_at=25), folder / engine / "resumed"
    with pytest.raises(Killed):
        replayed(place, instants, **ENGINES[engine]()).run()
    torch.distributed.barrier()
    resumed = replayed(place, model_seed=1, **ENGINES[engine]())
    resumed.run(resume=True)
    return {**results, "resumed": end_of(resumed), "killed": instants.names}


def on_gpus(engine: str, folder: Path) -> dict[str, Any]:
    if engine.startswith("zero"):
        without_compiling()
    with as_on_gpus():
        return ended(engine, folder)


@pytest.fixture(scope="module")
def by_engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """What each engine gives, in processes of its own."""
    found: dict[str, Results] = {}

    def of(engine: str) -> Results:
        if engine not in found:
            run = partial(ended if engine == "ddp" else on_gpus, engine)
            found[engine] = [rank[engine] for rank in on_ranks(tmp_path_factory.mktemp(engine), run)]
        return found[engine]

    return of


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine in NAMES for name in (*PARTS.get(engine, RUNS), "resumed")]
)
def test_an_engine_ends_as_ddp(by_engine: Callable[[str], Results], engine: str, name: str) -> None:
    if engine.startswith("zero"):
        pytest.importorskip("deepspeed")
    for found, expected in zip(by_engine(engine), by_engine("ddp"), strict=True):
        assert found["engine"] == NAMES[engine]
        assert found["killed"][-1] == expected["killed"][-1] == "step 6"
        own, other = found[name], expected[name.replace("resumed", "replayed")]
        for part in ("weights", "scores"):
            np.testing.assert_allclose(own[part], other[part], rtol=0, atol=1e-5)
        assert own.get("entries") == other.get("entries")


@pytest.mark.parametrize("engine", NAMES)
def test_a_method_that_copies_the_model_is_refused_early(by_engine: Callable[[str], Results], engine: str) -> None:
    if engine.startswith("zero"):
        pytest.importorskip("deepspeed")
    for found in by_engine(engine):
        assert found["refused"].startswith("InvalidValueError: methods: ['LwF'] copy or change the whole model")
    assert by_engine("ddp")[0]["refused"] == "no error"
