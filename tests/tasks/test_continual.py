"""Continual runs: all scores are there and right, and a killed run ends as one that was not, to the bit."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from mixer.ledger.ledger import Ledger
from mixer.loading.step import StepBatch
from mixer.trainer.checkpointing.lock import LOCK_FILE
from mixer.trainer.hooks import ForwardResult
from mixer.trainer.method import Method
from mixer.utils.files import read_json, write_json
from replay import DERPlusPlus, ReplayBuffer, ReplayRatio
from replay.storage import OnDisk
from tasks.continual.continual import ContinualRun
from tasks.continual.ends import read_pace
from tasks.metrics.metrics import all_metrics, learning_curve_area
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.mlp import MLPConfig, MLPForImageClassification
from tasks.score import Score, accuracy
from tasks.sequences import by_class, permuted
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tests.helpers import arguments, weights_of
from tests.mixer.trainer.checkpointing.test_resume import Instants, Killed

MEMORIES: dict[str, Callable[[Path], ReplayBuffer | None]] = {
    "none": lambda _: None,
    "reservoir": lambda _: ReplayBuffer(13),
    "in memory": lambda _: ReplayBuffer(13, storage="memory"),
    "herding": lambda _: ReplayBuffer(12, "Herding", is_online=False),
    "disk": lambda folder: ReplayBuffer(13, storage=OnDisk(folder / "rows", rows_per_segment=4)),
    "none, with a method": lambda _: None,
    "payloads": lambda folder: ReplayBuffer(13, storage=OnDisk(folder / "rows", rows_per_segment=4)),
}
RUNS: dict[str, dict[str, Any]] = {
    "none, fresh": {"memory": "none"},
    "none, kept": {"memory": "none", "optimizer": "kept"},
    "reservoir, fresh": {"memory": "reservoir", "optim": "adamw_torch", "learning_rate": 0.01},
    "reservoir, kept": {"memory": "reservoir", "optimizer": "kept", "optim": "adamw_torch", "learning_rate": 0.01},
    "in memory, kept": {"memory": "in memory", "optimizer": "kept"},
    "herding, kept": {"memory": "herding", "optimizer": "kept"},
    "disk, fresh": {"memory": "disk"},
    "payloads, kept": {"memory": "payloads", "optimizer": "kept"},
    "a method, fresh": {"memory": "none, with a method"},
    "no checkpoints": {"memory": "disk", "optimizer": "kept", "save_strategy": "no"},
}


MOMENTUM = {"lr": 0.1, "momentum": 0.9}
WHERE = ["before end 0", "score task_1", "step 2", "step 7", "score task_3", "before end 1", "after end 1", "step 6"]


@cache
def data(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return Arrays(random.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3)


def sequence() -> TaskSequence:
    return permuted(data(0), data(1), 3, seed=5)


def new_model(seed: int = 0, **changes: Any) -> MLPForImageClassification:
    torch.manual_seed(seed)
    return MLPForImageClassification(MLPConfig(6, [8], **{"num_labels": 3, **changes}))


class Anchor(Method):
    """Holds the weights near their mean over all steps of all tasks so far: without a memory of samples."""

    adds_term = True

    def __init__(self) -> None:
        self.sum, self.num_steps = torch.zeros(()), 0

    def prepare(self, model: nn.Module) -> None:
        self._model = model

    def term(self, trained: ForwardResult) -> torch.Tensor | None:
        weights = torch.cat([parameter.flatten() for parameter in self._model.parameters()])
        return 0.05 * (weights - self.sum / max(self.num_steps, 1)).square().sum()

    def close(self, batch: StepBatch) -> None:
        self.sum, self.num_steps = self.sum + weights_of(self._model), self.num_steps + 1

    def save(self, folder: Path) -> None:
        write_json(folder / "anchor.json", {"sum": self.sum.tolist(), "num_steps": self.num_steps})

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        state = read_json(folder / "anchor.json")
        self.sum, self.num_steps = torch.tensor(state["sum"]), state["num_steps"]


class Recorder(TrainerCallback):
    """Passes by an instant at each step, and keeps the learning rates."""

    def __init__(self, instants: Instants):
        self.instants, self.rates = instants, list[float]()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rates.append(kwargs["optimizer"].param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.instants.pass_by(f"step {state.global_step}")


def build(folder: Path, name: str = "reservoir, fresh", instants: Instants | None = None, **changes: Any) -> Any:
    instants = instants or Instants()
    options = {**RUNS[name], **changes}
    kind, scores = options.pop("memory"), {"score": options.pop("score")} if "score" in options else {}
    tasks, model = options.pop("sequence", None) or sequence(), options.pop("model", None) or new_model()
    own = {"optimizer": options.pop("optimizer", "fresh"), **scores}
    own |= {key: options.pop(key) for key in ("curve_steps", "head", "second_draw", "methods") if key in options}
    callbacks = options.pop("callbacks", [])
    defaults = {"max_steps": -1, "num_train_epochs": 1, "save_strategy": "steps", "save_steps": 4}
    defaults |= {"lr_scheduler_type": "linear", "per_device_train_batch_size": 4, "logging_steps": 5}
    if kind == "payloads":
        own.setdefault("methods", lambda: [DERPlusPlus("memory", alpha=0.2, beta=0.5)])
    elif kind == "none, with a method":
        own["methods"] = [Anchor()]
    momentum = {} if "optim" in options else {"optimizer_cls_and_kwargs": (torch.optim.SGD, dict(MOMENTUM))}
    run = ContinualRun(
        model,
        tasks,
        arguments(folder / "run", **{**defaults, **options}),
        memory=MEMORIES[kind](folder),
        batch_size=4,
        callbacks=[recorder := Recorder(instants), *callbacks],
        **momentum,
        **own,
    )
    run.recorder = recorder  # type: ignore[attr-defined]
    score_of, save_end = run._score_of, run._save_end

    def passing_score(trainer: Any, task: Task, when: str) -> Any:
        instants.pass_by(f"score {task.name}")
        return score_of(trainer, task, when)

    def passing_save(num_done: int) -> None:
        instants.pass_by(f"before end {num_done}")
        save_end(num_done)
        instants.pass_by(f"after end {num_done}")

    run._score_of, run._save_end = passing_score, passing_save  # type: ignore[method-assign]
    return run


def end_of(run: ContinualRun) -> dict[str, Any]:
    """Everything that has to be the same, in a form that `==` compares to the bit."""
    end: dict[str, Any] = {"weights": weights_of(run.model).tolist(), "scores": run.scores.scores.tolist()}
    if run.memory is not None:
        held = [run.memory[slot] for slot in range(len(run.memory))]
        end["entries"] = {name: column.tolist() for name, column in run.memory.entries.items()}
        end["held"] = [(sample["pixel_values"].tolist(), int(sample["labels"])) for sample in held]
        end["sources"] = run.memory.sources.names, run.memory.key, run.memory.num_offered
    if run._optimizer._state is not None:
        states = run._optimizer._state["state"].values()
        end["optimizer"] = [{key: torch.as_tensor(value).tolist() for key, value in s.items()} for s in states]
    return end


@cache
def whole(name: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Gives the end of a run that nobody killed, and its instants."""
    instants = Instants()
    run = build(folder / name, name, instants)
    run.run()
    return end_of(run), instants.names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def kill(folder: Path, name: str, instant: int, resume: bool = False) -> None:
    with pytest.raises(Killed):
        build(folder, name, Instants(instant)).run(resume=resume)


def assert_same(end: dict[str, Any], expected: dict[str, Any]) -> None:
    different = [part for part in end if end[part] != expected[part]]
    assert not different, {part: (end[part], expected[part]) for part in different}


# ---- Killed at any instant ----


@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_at_many_instants_ends_as_one_that_was_not(name: str, folder: Path, tmp_path: Path) -> None:
    end, instants = whole(name, folder)
    first = list(RUNS).index(name)
    for number, place in list(enumerate(WHERE))[first % 3 :: 3]:  # each instant in every third run
        places = [instant for instant, found in enumerate(instants) if found == place]
        kill(tmp_path / str(number), name, places[number % len(places)])
        run = build(tmp_path / str(number), name, model=new_model(seed=number))
        run.run(resume=True)
        assert_same(end_of(run), end)
        written = ScoreMatrix.from_file(run.folder / "scores.json")
        assert written.scores.tolist() == end["scores"]


def test_a_run_killed_many_times_ends_as_one_that_was_not(folder: Path, tmp_path: Path) -> None:
    end, _ = whole("herding, kept", folder)
    for instant in (9, 17, 11, 3, 9):
        kill(tmp_path, "herding, kept", instant, resume=True)
    run = build(tmp_path, "herding, kept")
    run.run(resume=True)
    assert_same(end_of(run), end)


def test_a_run_that_an_error_ended_keeps_others_out_when_it_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    run = build(tmp_path, "herding, kept", Instants(3))
    with pytest.raises(Killed):
        run.run()
    path, are_kept_out = run.folder / LOCK_FILE, []
    assert not path.exists()
    monkeypatch.setattr(run, "_train_task", lambda *_: are_kept_out.append(path.exists()))
    monkeypatch.setattr(run, "_save_end", lambda _: None)
    run.run()
    assert are_kept_out
    assert all(are_kept_out)
    assert not path.exists()


def test_a_finished_run_has_nothing_left_to_do(folder: Path) -> None:
    end, _ = whole("reservoir, kept", folder)
    instants = Instants()
    run = build(folder / "reservoir, kept", "reservoir, kept", instants)
    run.run(resume=True)
    assert instants.names == []
    assert_same(end_of(run), end)


@pytest.mark.parametrize("torn", ["model.safetensors", "complete.json", "memory/buffer.npz", "optimizer.pt", "."])
def test_a_task_whose_end_is_torn_is_gone_on_with_from_its_checkpoint(
    torn: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, instants = whole("reservoir, kept", folder)
    kill(tmp_path, "reservoir, kept", instants.index("after end 2"))
    last = tmp_path / "run" / "02-task_2" / "end"
    if torn == ".":
        shutil.rmtree(last)
    else:
        (last / torn).write_bytes((last / torn).read_bytes()[:-3])
    monkeypatch.setattr(
        "tasks.continual.ends.logger.warning", lambda text, *values: caplog.records.append(text % values)
    )
    again = Instants()
    run = build(tmp_path, "reservoir, kept", again)
    run.run(resume=True)
    assert_same(end_of(run), end)
    assert again.names[0] in ("step 9", "score task_1")
    assert "The run resumes before the end of task 2" in str(caplog.records)


def test_a_run_of_which_nothing_is_left_says_so(tmp_path: Path) -> None:
    kill(tmp_path, "none, fresh", 8)
    shutil.rmtree(tmp_path / "run" / "start")
    with pytest.raises(ValueError, match=r"start is damaged: the folder does not exist\. Take another"):
        build(tmp_path, "none, fresh").run(resume=True)


# ---- What is trained and scored ----


def test_all_rows_are_scored(folder: Path) -> None:
    end, _ = whole("reservoir, fresh", folder)
    scores = np.array(end["scores"])
    assert scores.shape == (4, 3)
    assert np.isfinite(scores).all()
    model = new_model()
    for number, task in enumerate(sequence()):
        inputs = torch.stack([sample["pixel_values"] for sample in (task.evaluation[k] for k in range(40))])
        right = model(inputs).logits.argmax(-1).numpy() == np.arange(40) % 3
        assert scores[0, number] == right.mean()


def test_scores_before_the_first_task_can_be_left_out(tmp_path: Path) -> None:
    instants = Instants()
    run = build(tmp_path, "none, fresh", instants)
    run._scores_before = False
    assert np.isnan(run.run().scores[0]).all()
    assert run.scores.recorded == [1, 2, 3]


@pytest.mark.parametrize("name", ["none, fresh", "none, kept", "reservoir, kept"])
def test_the_learning_rate_is_warmed_again_in_each_task(name: str, folder: Path) -> None:
    run = build(folder / f"rates of {name}", name, warmup_steps=2)
    run.run()
    rates = np.array(run.recorder.rates).reshape(3, 10)
    assert (rates == rates[0]).all()
    assert rates[0, 0] == 0.0
    assert rates[0].max() == run.args.learning_rate


def test_a_kept_optimizer_goes_on_and_a_fresh_one_does_not(folder: Path) -> None:
    steps = {}
    for name in ("reservoir, kept", "reservoir, fresh"):
        whole(name, folder)
        saved = torch.load(folder / name / "run" / "03-task_3" / "checkpoint-10" / "optimizer.pt")
        steps[name] = float(saved["state"][0]["step"])
    assert steps == {"reservoir, kept": 30.0, "reservoir, fresh": 10.0}


def test_as_many_samples_are_replayed_on_top_as_are_new(tmp_path: Path) -> None:
    run = build(tmp_path)
    run.run()
    ledger = Ledger(run.folder / "02-task_2" / "ledger").to_pandas()
    counts = ledger.pivot_table(index="step", columns="stream", values="count", aggfunc="sum")
    assert counts["task_2"].tolist() == [4] * 10
    assert counts["memory"].tolist() == [4] * 10


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_accuracy_is_that_among_the_classes_that_compete(scenario: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    images = Arrays(torch.randn(40, 6), torch.arange(40) % 4)
    tasks = by_class(images, images, 2, scenario=scenario)
    run = build(tmp_path, "none, fresh", sequence=tasks, model=new_model(num_labels=4))
    run.run()
    for number, classes in enumerate(([0, 1], [2, 3])):
        own = [sample for sample in (images[k] for k in range(40)) if int(sample["labels"]) in classes]
        logits = run.model(torch.stack([sample["pixel_values"] for sample in own])).logits
        if scenario == "task":
            predicted = [classes[int(row[classes].argmax())] for row in logits]
        else:
            predicted = logits.argmax(-1).tolist()
        expected = np.mean([label == int(sample["labels"]) for label, sample in zip(predicted, own, strict=True)])
        assert run.scores.scores[2, number] == expected


# ---- Heads ----


def classes_in_turn(scenario: Any) -> TaskSequence:
    images = Arrays(data().inputs, np.arange(40) % 6)
    return by_class(images, images, 2, scenario=scenario)


HEADS: dict[str, dict[str, Any]] = {
    "growing, kept": {"name": "reservoir, kept", "head": "growing", "scenario": "class", "num_labels": 2},
    "growing, fresh": {"name": "in memory, kept", "optimizer": "fresh", "head": "growing", "scenario": "class"},
    "masked": {"name": "reservoir, kept", "scenario": "task", "num_labels": 6},
    "masked, payloads": {"name": "payloads, kept", "scenario": "task", "num_labels": 6},
}


def build_headed(folder: Path, kind: str, instants: Instants | None = None, seed: int = 0, **changes: Any) -> Any:
    options = {**HEADS[kind], **changes}
    model = new_model(seed, num_labels=options.pop("num_labels", 2))
    tasks = classes_in_turn(options.pop("scenario"))
    return build(folder, options.pop("name"), instants, sequence=tasks, model=model, **options)


@pytest.mark.parametrize("kind", HEADS)
def test_a_killed_run_with_a_head_of_its_own_ends_as_one_that_was_not(kind: str, tmp_path: Path) -> None:
    run = build_headed(tmp_path / "whole", kind, instants := Instants())
    run.run()
    end = end_of(run)
    found = [number for number, name in enumerate(instants.names) if name in ("step 2", "step 3", "before end 2")]
    for number in found[1:]:
        with pytest.raises(Killed):
            build_headed(tmp_path / str(number), kind, Instants(number)).run()
        resumed = build_headed(tmp_path / str(number), kind, seed=7)
        resumed.run(resume=True)
        assert_same(end_of(resumed), end)


def test_a_growing_head_has_the_outputs_of_the_classes_seen_so_far(tmp_path: Path) -> None:
    sizes = []

    def score(trainer: Any, task: Task) -> float:
        sizes.append(trainer.model.head.out_features)
        return accuracy(trainer, task.evaluation)

    run = build(
        tmp_path, sequence=classes_in_turn("class"), model=new_model(num_labels=2), head="growing", score=Score(score)
    )
    matrix = run.run()
    assert sizes == [2] * 6 + [4] * 3 + [6] * 3  # three tasks before the first, and after each
    assert np.isfinite(matrix.scores).all()
    assert (matrix.scores[1, 1:] == 0).all()  # classes that have no output yet are never right
    assert run.model.config.num_labels == 6


def test_in_a_masked_head_a_task_leaves_the_outputs_of_others_alone(tmp_path: Path) -> None:
    for head, is_same in ((None, True), ("whole", False)):
        model = new_model(num_labels=6)
        run = build(tmp_path / str(head), "none, fresh", sequence=classes_in_turn("task")[:2], model=model, head=head)
        before = model.head.weight[4:].clone()
        run.run()
        assert bool((model.head.weight[4:] == before).all()) is is_same


def test_classes_without_an_output_and_logits_under_a_growing_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the model has 3 outputs, but the tasks have classes up to 5: set its"):
        build(tmp_path, sequence=classes_in_turn("class"))
    with pytest.raises(ValueError, match="a method keeps logits of earlier tasks"):
        build(tmp_path, "payloads, kept", sequence=classes_in_turn("class"), head="growing")
    with pytest.raises(ValueError, match="head must be one of"):
        build(tmp_path, head="shrinking")
    run = build(tmp_path, "none, fresh", sequence=classes_in_turn("task"), model=new_model(num_labels=6))
    run.run()
    again = build(tmp_path, "none, fresh", sequence=run.sequence, model=new_model(num_labels=6), head="whole")
    with pytest.raises(ValueError, match="its head is masked, not whole"):
        again.run(resume=True)


# ---- Learning curves, pace, second draws ----


def test_learning_curves_are_those_of_the_model_after_each_step_and_change_nothing(tmp_path: Path) -> None:
    plain = build(tmp_path / "plain")
    plain.run()

    def score(trainer: Any, task: Task) -> float:
        torch.rand(3)  # what scoring draws must not be missed by training
        return accuracy(trainer, task.evaluation)

    run = build(tmp_path / "curves", curve_steps=3, score=Score(score, "accuracy"))
    run.run()
    assert_same(end_of(run), end_of(plain))
    curves = run.scores.learning_curves(3)
    assert np.isfinite(curves).all()
    assert np.isnan(run.scores.learning_curves(4)[:, 4]).all()
    assert curves[0, 0] == run.scores.scores[0, 0]
    assert curves[1, 0] == run.scores.scores[1, 1]
    assert learning_curve_area(curves) == pytest.approx(curves.mean(), abs=1e-15)
    seen = []

    class Snapshots(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            model, task = kwargs["model"], run.sequence[1]
            images = torch.stack([task.evaluation[k]["pixel_values"] for k in range(40)])
            seen.append((model(images).logits.argmax(-1).numpy() == np.arange(40) % 3).mean())

    again = build(tmp_path / "again", callbacks=[Snapshots()])
    again.run()
    assert curves[1, 1:].tolist() == seen[10:13]


@pytest.mark.parametrize("place", ["step 2", "step 7", "before end 1"])
def test_learning_curves_of_a_killed_run_are_those_of_one_that_was_not(place: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"curve_steps": 6}
    whole_run = build(tmp_path / "whole", instants=(instants := Instants()), **options)
    expected = whole_run.run().learning_curves(6)
    places = [number for number, name in enumerate(instants.names) if name == place]
    for number in places:
        folder = tmp_path / str(number)
        with pytest.raises(Killed):
            build(folder, instants=Instants(number), **options).run()
        resumed = build(folder, model=new_model(seed=9), **options)
        assert resumed.run(resume=True).learning_curves(6).tolist() == expected.tolist()
        written = ScoreMatrix.from_file(folder / "run" / "scores.json")
        assert written.learning_curves(6).tolist() == expected.tolist()


def test_the_pace_counts_all_samples_of_the_tasks_that_were_trained(tmp_path: Path) -> None:
    run = build(tmp_path)
    run.run()
    pace = read_pace(run.folder, run.sequence.names)
    # 10 steps of 4 new samples and, but for the first of all, 4 of memory
    assert pace["num_samples"].to_dict() == {"task_1": 76, "task_2": 80, "task_3": 80}
    assert (pace[["seconds", "samples_per_second"]] > 0).all(axis=None)
    batches = Ledger(run.folder / "02-task_2" / "ledger").timings()
    rates = batches["total"] / (batches["load_seconds"] + batches["train_seconds"])
    assert pace["samples_per_second"]["task_2"] == np.median(rates)
    shutil.rmtree(run.folder / "02-task_2")
    assert read_pace(run.folder, run.sequence.names).index.tolist() == ["task_1", "task_3"]
    assert read_pace(tmp_path / "nothing", ["a"]).empty


def test_methods_take_part_without_a_memory(tmp_path: Path) -> None:
    anchor = Anchor()
    run = build(tmp_path / "list", methods=[anchor], memory="none")
    run.run()
    plain = build(tmp_path / "plain", memory="none")
    plain.run()
    assert anchor.num_steps == 30
    assert not torch.equal(weights_of(run.model), weights_of(plain.model))
    made: list[Anchor] = []

    def make() -> list[Method]:
        made.append(Anchor())
        return [made[-1]]

    build(tmp_path / "function", methods=make, memory="none").run()
    assert [one.num_steps for one in made if one.num_steps] == [10, 10, 10]


def test_a_method_that_needs_a_memory_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"DERPlusPlus\(memory='memory'\): there is no stream 'memory'"):
        build(tmp_path, methods=[DERPlusPlus()], memory="none").run()
    assert not (tmp_path / "run" / "continual.json").exists()


def test_a_second_draw_of_the_memory_is_a_stream_of_its_own(tmp_path: Path) -> None:
    methods: Any = lambda: [DERPlusPlus("memory", alpha=0.2, beta=0.5, second="again")]  # noqa: E731
    run = build(tmp_path, second_draw="again", methods=methods)
    run.run()
    ledger = Ledger(run.folder / "02-task_2" / "ledger").to_pandas()
    counts = ledger.pivot_table(index="step", columns="stream", values="count", aggfunc="sum")
    assert counts.to_dict("list") == {"task_2": [4] * 10, "memory": [4] * 10, "again": [4] * 10}


# ---- What goes wrong ----


def test_an_evaluation_that_fails_for_one_task_keeps_the_run_and_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("tasks.score.logger.warning", lambda text, *values: said.append(text % values))

    def score(trainer: Any, task: Task) -> float:
        if task.name == "task_2":
            raise OSError("disk on fire")
        return accuracy(trainer, task.evaluation)

    matrix = build(tmp_path, score=Score(score)).run()
    assert np.isnan(matrix.scores[:, 1]).all()
    assert np.isfinite(matrix.scores[:, [0, 2]]).all()
    assert matrix.failures == {(row, "task_2"): "OSError: disk on fire" for row in range(4)}
    assert "The evaluation of task 'task_2' after 0 tasks failed: OSError: disk on fire" in said
    written = ScoreMatrix.from_file(tmp_path / "run" / "scores.json")
    assert written.failures == matrix.failures


@pytest.mark.parametrize("given", [torch.tensor(0.25), np.float32(0.25), 0.25])
def test_a_score_may_be_any_number(given: Any, tmp_path: Path) -> None:
    matrix = build(tmp_path, score=Score(lambda trainer, task: given)).run()
    assert (matrix.scores == 0.25).all()


def test_what_is_no_number_is_a_failure_and_one_for_all_tasks_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    def score(trainer: Any, task: Task) -> Any:
        return "good" if task.name == "task_2" else 1

    matrix = build(tmp_path / "one", score=Score(score)).run()
    assert np.isnan(matrix.scores[:, 1]).all()
    assert matrix.failures[3, "task_2"] == "TypeError: the score must be a number, got 'good'"
    with pytest.raises(ValueError, match=r"no task could be scored before the first.*the score must be a number"):
        build(tmp_path / "all", score=Score(lambda trainer, task: None)).run()  # type: ignore[arg-type, return-value]


def test_losses_are_lower_the_better(tmp_path: Path) -> None:
    run = build(tmp_path, score="loss")
    matrix = run.run()
    assert (matrix.metric, matrix.higher_is_better) == ("loss", False)
    for number, task in enumerate(run.sequence):
        images = torch.stack([task.evaluation[k]["pixel_values"] for k in range(40)])
        expected = torch.nn.functional.cross_entropy(run.model(images).logits, torch.arange(40) % 3)
        assert matrix.scores[3, number] == pytest.approx(float(expected), abs=1e-6)
    scores, metrics = matrix.scores, all_metrics(matrix)
    assert metrics["backward_transfer"] == pytest.approx(
        np.mean([scores[1, 0] - scores[3, 0], scores[2, 1] - scores[3, 1]])
    )


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    args, tasks = arguments(tmp_path), sequence()
    with pytest.raises(ValueError, match="optimizer must be 'fresh' or 'kept', got 'both'"):
        ContinualRun(new_model(), tasks, args, optimizer="both")  # type: ignore[arg-type]
    for given in ({"second_draw": "again"}, {"mixing": "uniform"}):
        with pytest.raises(ValueError, match="memory is None: give a ReplayBuffer"):
            ContinualRun(new_model(), tasks, args, **given)  # type: ignore[arg-type]
    for name in ("memory", "task_2"):
        with pytest.raises(ValueError, match=f"second_draw must be a name that no other stream has, got '{name}'"):
            ContinualRun(new_model(), tasks, args, memory=ReplayBuffer(3), second_draw=name)
    with pytest.raises(ValueError, match="curve_steps must be a whole number, 0 or more"):
        ContinualRun(new_model(), tasks, args, curve_steps=-1)
    optimizer = torch.optim.SGD(new_model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizers are made for each task"):
        ContinualRun(new_model(), tasks, args, optimizers=(optimizer, None))
    called = TaskSequence((Task("memory", data(), data()),), "domain")
    with pytest.raises(ValueError, match=r"A task is called 'memory'.*rename it"):
        ContinualRun(new_model(), called, args)


def test_what_does_not_fit_leaves_no_run_behind(tmp_path: Path) -> None:
    args, tasks = arguments(tmp_path / "run"), sequence()
    for wrong, message in (
        ({"batch_size": 0}, "batch_size"),
        ({"batchsize": 3}, "batchsize"),
        ({"memory": ReplayBuffer(3), "mixing": ReplayRatio(0.5, {"nobody": 1.0})}, "nobody"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            ContinualRun(new_model(), tasks, args, **wrong).run()  # type: ignore[arg-type]
        assert not (tmp_path / "run" / "continual.json").exists()
    for wrong, message in (
        ({"memory": 5}, "memory must be a ReplayBuffer, got a int"),
        ({"memory": ReplayBuffer(3), "mixing": {"task_1": 1.0}}, "mixing must be a policy that fits every task"),
        ({"methods": DERPlusPlus()}, r"methods must be a list of methods, got a single DERPlusPlus"),
        ({"methods": DERPlusPlus}, r"methods must be a list of methods, got a single DERPlusPlus"),
        ({"methods": lambda: ["DER"]}, r"methods\[0\] must be a method, got 'DER'"),
        ({"trainer_class": dict}, "trainer_class must be MixingTrainer or a class derived from it"),
        ({"score": len}, "score must be 'accuracy', 'loss' or a Score, got builtin_function_or_method"),
        ({"curve_steps": 2.5}, "curve_steps must be a whole number"),
        ({"score": "recall"}, "score must be 'accuracy', 'loss' or a Score, got 'recall'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            ContinualRun(new_model(), tasks, args, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sequence must be a TaskSequence, got a list"):
        ContinualRun(new_model(), list(tasks), args)  # type: ignore[arg-type]


def test_a_memory_of_another_run_is_refused(tmp_path: Path) -> None:
    memory = ReplayBuffer(7)
    ContinualRun(new_model(), sequence(), arguments(tmp_path / "1", max_steps=2), memory=memory, batch_size=4).run()
    again = ContinualRun(new_model(), sequence(), arguments(tmp_path / "2", max_steps=2), memory=memory, batch_size=4)
    with pytest.raises(ValueError, match=r"memory holds samples of the tasks \['task_1', .*Give each run a new"):
        again.run()


def test_other_data_is_refused_and_other_settings_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("tasks.continual.ends.logger.warning", lambda text, *values: said.append(text % values))
    kill(tmp_path, "reservoir, kept", 9)
    with pytest.raises(ValueError, match="is another: its data is"):
        build(tmp_path, "reservoir, kept", sequence=permuted(data(0), data(1), 3, seed=6)).run(resume=True)
    with pytest.raises(ValueError, match="its score is accuracy, not loss"):
        build(tmp_path, "reservoir, kept", score="loss").run(resume=True)
    run = build(tmp_path, "reservoir, kept", learning_rate=0.5, max_steps=5)
    run.run(resume=True)
    assert "resumes with other settings than before: learning_rate" in said[0]
    assert run.recorder.rates[-5:] == pytest.approx([0.5 * left / 5 for left in (5, 4, 3, 2, 1)])


def test_leftovers_of_a_run_without_a_state_are_not_gone_on_with(folder: Path, tmp_path: Path) -> None:
    end, _ = whole("none, fresh", folder)
    build(tmp_path, "none, fresh", seed=8).run()
    (tmp_path / "run" / "continual.json").unlink()
    run = build(tmp_path, "none, fresh")
    run.run(resume=True)
    assert_same(end_of(run), end)


def test_a_folder_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    kill(tmp_path, "none, fresh", 4)
    with pytest.raises(ValueError, match=r"holds a continual run already: resume it \(resume=True\)"):
        build(tmp_path, "none, fresh").run()
    with pytest.raises(ValueError, match=r"its tasks is \['task_1', 'task_2', 'task_3'\], not \['task_1', 'task_2'\]"):
        build(tmp_path, "none, fresh", sequence=sequence()[:2]).run(resume=True)
    with pytest.raises(ValueError, match="its optimizer is fresh, not kept"):
        build(tmp_path, "none, kept").run(resume=True)
    with pytest.raises(ValueError, match="its has_memory is False, not True"):
        build(tmp_path, "reservoir, fresh").run(resume=True)
    state = tmp_path / "run" / "continual.json"
    assert json.loads(state.read_text())["num_done"] == 0
    state.write_text("{torn")
    with pytest.raises(ValueError, match=r"continual\.json is torn"):
        build(tmp_path, "none, fresh").run(resume=True)
