"""Continual runs: all scores are there and right, and a killed run ends as one that was not, to the bit."""

import inspect
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from mixer.checkpoint.lock import LOCK_FILE
from mixer.ledger.ledger import Ledger
from mixer.loading.loaded_step import StepBatch
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method
from mixer.utils.errors import ErrorFacts
from mixer.utils.files import read_json, write_json
from replay import DERPlusPlus, ReplayBound, ReplayBuffer, ReplayRatio
from replay.storage import OnDisk
from tasks.continual.continual import ContinualRun
from tasks.continual.task_checkpoints import read_pace
from tasks.methods import ICaRL, OnlineEWC, TaskContext, TaskMethod, nearest_mean
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.mlp import MLPConfig, MLPForImageClassification
from tasks.score import Score, accuracy
from tasks.sequences import by_class, permuted
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tests.helpers import arguments, weights_of
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.refusals import refused
from tests.tasks.killed import whole_runs


class Anchor(Method):
    """Holds the weights near their mean over all steps of all tasks so far: without a memory of samples."""

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


def drawing(trainer: Any, task: Task) -> float:
    torch.rand(3)  # what scoring draws must not be missed by training
    return accuracy(trainer, task.evaluation)


def der() -> list[Method]:
    return [DERPlusPlus("memory", alpha=0.2, beta=0.5)]


MEMORIES: dict[str | None, Callable[[Path], ReplayBuffer | None]] = {
    None: lambda _: None,
    "reservoir": lambda _: ReplayBuffer(13),
    "herding": lambda _: ReplayBuffer(12, "Herding", is_online=False),
    "by hand": lambda _: ReplayBuffer(6, is_online=False),
    "disk": lambda folder: ReplayBuffer(13, storage=OnDisk(folder / "rows", rows_per_segment=4)),
}
ADAM = {"optim": "adamw_torch", "learning_rate": 0.01}
RUNS: dict[str, dict[str, Any]] = {
    "none, fresh": {},
    "none, kept": {"optimizer": "kept", "warmup_steps": 2},
    "reservoir, fresh": {"memory": "reservoir", **ADAM},
    "reservoir, kept": {"memory": "reservoir", "optimizer": "kept", **ADAM},
    "herding, kept": {"memory": "herding", "optimizer": "kept"},
    "disk, fresh": {"memory": "disk"},
    "payloads, kept": {"memory": "disk", "optimizer": "kept", "methods": der},
    "a method, fresh": {"methods": lambda: [Anchor()]},
    "no checkpoints": {"memory": "disk", "optimizer": "kept", "save_strategy": "no"},
    "growing, kept": {"memory": "reservoir", "optimizer": "kept", "head": "growing", "scenario": "class", **ADAM},
    "masked, payloads": {"memory": "disk", "optimizer": "kept", "methods": der, "scenario": "task", "num_labels": 6},
}
OWN = ("eval_dataset", *inspect.signature(ContinualRun).parameters)


@cache
def data(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return Arrays(random.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3)


@cache
def sequence(seed: int = 5) -> TaskSequence:
    return permuted(data(0), data(1), 3, seed=seed)


def images() -> Arrays:
    return Arrays(data().inputs, np.arange(40) % 6)


@cache
def classes_in_turn(scenario: Any) -> TaskSequence:
    return by_class(images(), images(), 2, scenario=scenario)


def new_model(seed: int = 0, **changes: Any) -> MLPForImageClassification:
    torch.manual_seed(seed)
    return MLPForImageClassification(MLPConfig(6, [8], **{"num_labels": 3, **changes}))


class Recorder(TrainerCallback):
    def __init__(self, instants: Instants):
        self.instants, self.rates = instants, list[float]()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rates.append(kwargs["optimizer"].param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.instants.pass_by(f"step {state.global_step}")


def build(folder: Path, name: str = "reservoir, fresh", instants: Instants | None = None, **changes: Any) -> Any:
    """A run of three tasks, ten steps each, that passes by `instants`; `model_seed` makes another model."""
    instants, options = instants or Instants(), {**RUNS[name], **changes}
    scenario = options.pop("scenario", None)
    tasks = options.pop("sequence", None) or (classes_in_turn(scenario) if scenario else sequence())
    made = new_model(options.pop("model_seed", 0), num_labels=options.pop("num_labels", 2 if scenario else 3))
    model = options.pop("model", made)
    memory, callbacks = MEMORIES[options.pop("memory", None)](folder), options.pop("callbacks", [])
    own = {key: options.pop(key) for key in OWN if key in options}
    if name == "a method, fresh":
        own["methods"] = own["methods"]()  # which last for all tasks
    if "optim" not in options:
        own["optimizer_cls_and_kwargs"] = torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}
    defaults = {"max_steps": -1, "num_train_epochs": 1, "save_strategy": "steps", "save_steps": 4}
    defaults |= {"lr_scheduler_type": "linear", "per_device_train_batch_size": 4, "logging_steps": 5}
    args, recorder = arguments(folder / "run", **{**defaults, **options}), Recorder(instants)
    own.setdefault("batch_size", 4)
    run = ContinualRun(model, tasks, args, memory=memory, callbacks=[recorder, *callbacks], **own)
    run.recorder = recorder  # type: ignore[attr-defined]
    score_of, save_end = run.scoring.of_task, run._save_end

    def passing_score(trainer: Any, task: Task, when: str) -> Any:
        instants.pass_by(f"score {task.name}")
        return score_of(trainer, task, when)

    def passing_save(num_done: int) -> None:
        instants.pass_by(f"before end {num_done}")
        save_end(num_done)
        instants.pass_by(f"after end {num_done}")

    run.scoring.of_task, run._save_end = passing_score, passing_save  # type: ignore[method-assign]
    return run


def short(folder: Path, name: str = "none, fresh", **changes: Any) -> Any:
    """A run of two steps a task, without checkpoints."""
    return build(folder, name, **{"max_steps": 2, "save_strategy": "no", **changes})


def end_of(run: ContinualRun) -> dict[str, Any]:
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


Whole = Callable[[str], tuple[Any, list[str]]]
whole = whole_runs(build)


def kill(folder: Path, name: str, instant: int, resume: bool = False) -> None:
    with pytest.raises(Killed):
        build(folder, name, Instants(instant)).run(resume=resume)


def assert_same(end: dict[str, Any], expected: dict[str, Any]) -> None:
    different = [part for part in expected if end[part] != expected[part]]
    assert not different, {part: (end[part], expected[part]) for part in different}


def images_of(task: Task) -> torch.Tensor:
    return torch.stack([task.evaluation[k]["pixel_values"] for k in range(len(task.evaluation))])


KILLS = [
    pytest.param("none, kept", "score task_1", 0, marks=pytest.mark.full),
    ("reservoir, kept", "step 7", 1),
    pytest.param("herding, kept", "before end 1", 0, marks=pytest.mark.full),
    ("disk, fresh", "after end 1", 0),
    pytest.param("a method, fresh", "step 6", 2, marks=pytest.mark.full),
    pytest.param("no checkpoints", "step 2", 2, marks=pytest.mark.full),
    ("growing, kept", "step 2", 1),
    ("masked, payloads", "step 3", 1),
]


@pytest.mark.parametrize(("name", "place", "which"), KILLS)
def test_a_run_killed_anywhere_ends_as_one_that_was_not(name, place, which, whole, tmp_path) -> None:
    expected, instants = whole(name)
    kill(tmp_path, name, [number for number, found in enumerate(instants) if found == place][which])
    run = build(tmp_path, name, model_seed=7)
    run.run(resume=True)
    assert_same(end := end_of(run), end_of(expected))
    written = ScoreMatrix.from_file(run.folder / "scores.json")
    assert written.scores.tolist() == end["scores"]
    for scores in (run.scores, written):
        assert scores.course.to_pandas().equals(expected.scores.course.to_pandas())


def test_a_run_that_an_error_ended_keeps_others_out_when_it_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    run = build(tmp_path, "herding, kept", Instants(3))
    with pytest.raises(Killed):
        run.run()
    path, are_kept_out = run.folder / LOCK_FILE, []
    assert not path.exists()
    monkeypatch.setattr(run, "_train_task", lambda *_: are_kept_out.append(path.exists()))
    monkeypatch.setattr(run, "_save_end", lambda _: None)
    run.run()
    assert are_kept_out == [True] * 3
    assert not path.exists()


def test_a_finished_run_has_nothing_left_to_do(whole: Whole, tmp_path: Path) -> None:
    finished, _ = whole("reservoir, kept")
    shutil.copytree(finished.folder, tmp_path / "run")
    run = build(tmp_path, "reservoir, kept", instants := Instants())
    run.run(resume=True)
    assert instants.names == []
    assert_same(end_of(run), end_of(finished))


@pytest.mark.parametrize("torn", ["memory/buffer.npz", "."])
def test_a_task_whose_end_is_torn_is_gone_on_with_from_its_checkpoint(torn, whole, tmp_path, monkeypatch) -> None:
    expected, instants = whole("reservoir, kept")
    kill(tmp_path, "reservoir, kept", instants.index("after end 2"))
    last, said = tmp_path / "run" / "02-task_2" / "end", list[str]()
    if torn == ".":
        shutil.rmtree(last)
    else:
        (last / torn).write_bytes((last / torn).read_bytes()[:-3])
    monkeypatch.setattr(
        "tasks.continual.task_checkpoints.logger.warning", lambda text, *values: said.append(text % values)
    )
    run = build(tmp_path, "reservoir, kept", again := Instants())
    run.run(resume=True)
    assert_same(end_of(run), end_of(expected))
    assert again.names[0] in ("step 9", "score task_1")
    assert "The run resumes before the end of task 2" in said[0]


@pytest.mark.parametrize("name", ["reservoir, kept", "growing, kept", "masked, payloads"])
def test_all_tasks_are_scored_among_the_classes_that_compete(name: str, whole: Whole) -> None:
    run, _ = whole(name)
    assert run.scores.scores.shape == (4, 3)
    assert np.isfinite(run.scores.scores).all()
    if name == "growing, kept":  # classes that have no output yet are never right
        assert (run.scores.scores[1, 1:] == 0).all()
        assert run.model.config.num_labels == 6
    for number, task in enumerate(run.sequence):
        logits = run.model(images_of(task)).logits
        if name == "masked, payloads":
            others = sorted(set(range(6)) - set(task.classes))
            logits = logits.detach().index_fill(1, torch.tensor(others), -torch.inf)
        labels = np.array([int(task.evaluation[k]["labels"]) for k in range(len(task.evaluation))])
        assert run.scores.scores[3, number] == (logits.argmax(-1).numpy() == labels).mean()


@pytest.mark.parametrize("name", ["none, kept", "reservoir, kept"])
def test_each_task_has_the_whole_schedule_of_learning_rates(name: str, whole: Whole) -> None:
    run, _ = whole(name)
    rates = np.array(run.recorder.rates).reshape(3, 10)
    assert (rates == rates[0]).all()
    assert rates[0].argmax() == RUNS[name].get("warmup_steps", 0)
    assert rates[0].max() == run.args.learning_rate


def test_a_kept_optimizer_goes_on_and_a_fresh_one_does_not(whole: Whole) -> None:
    for name, steps in (("reservoir, kept", 30.0), ("reservoir, fresh", 10.0)):
        saved = torch.load(whole(name)[0].folder / "03-task_3" / "checkpoint-10" / "optimizer.pt")
        assert float(saved["state"][0]["step"]) == steps


def test_as_many_samples_are_replayed_on_top_as_are_new_in_each_draw(tmp_path: Path) -> None:
    methods = [DERPlusPlus("memory", alpha=0.2, beta=0.5, second="again")]
    run = short(tmp_path, "reservoir, fresh", second_draw="again", methods=methods, scores_before=False)
    assert run.run().recorded == [1, 2, 3]
    ledger = Ledger(run.folder / "02-task_2" / "ledger").to_pandas()
    counts = ledger.pivot_table(index="step", columns="stream", values="count", aggfunc="sum")
    assert counts.to_dict("list") == {"task_2": [4] * 2, "memory": [4] * 2, "again": [4] * 2}


def test_the_pace_counts_all_samples_of_the_tasks_that_were_trained(whole: Whole) -> None:
    run, _ = whole("reservoir, fresh")
    pace = read_pace(run.folder, run.sequence.names)
    # 10 steps of 4 new samples and, but for the first of all, 4 of memory
    assert pace["num_samples"].to_dict() == {"task_1": 76, "task_2": 80, "task_3": 80}
    assert (pace[["seconds", "samples_per_second"]] > 0).all(axis=None)


def test_a_limit_of_checkpoints_leaves_none_of_finished_tasks(tmp_path: Path) -> None:
    sizes = {}
    for limit in (None, 1):
        run = short(tmp_path / str(limit), save_steps=1, save_strategy="steps", save_total_limit=limit)
        run.run()
        folders = [run.folder / f"{number:02}-task_{number}" for number in (1, 2, 3)]
        found = [sorted(path.name for path in folder.glob("checkpoint-*")) for folder in folders]
        assert found == [[] if limit else ["checkpoint-1", "checkpoint-2"]] * 3
        sizes[limit] = read_pace(run.folder, run.sequence.names)["disk_bytes"].tolist()
        for folder, size in zip(folders, sizes[limit], strict=True):
            files = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
            assert sum(files.values()) == pytest.approx(size, abs=5_000)  # what was written since
        again = short(tmp_path / str(limit), save_steps=1, save_strategy="steps", save_total_limit=limit)
        again.run(resume=True)
        assert weights_of(again.model).tolist() == weights_of(run.model).tolist()
    assert all(size > limited + 5_000 for size, limited in zip(sizes[None], sizes[1], strict=True))


def test_methods_of_a_list_last_and_those_of_a_function_are_new_for_each_task(whole: Whole, tmp_path: Path) -> None:
    lasting, _ = whole("a method, fresh")
    assert [method.num_steps for method in lasting.rehearsal.new_methods()] == [30]
    assert not torch.equal(weights_of(lasting.model), weights_of(whole("none, fresh")[0].model))
    made: list[Anchor] = []

    def make() -> list[Method]:
        made.append(Anchor())
        return [made[-1]]

    run = short(tmp_path, methods=make, score="loss")
    losses = run.run()
    assert [method.num_steps for method in made if method.num_steps] == [2, 2, 2]
    assert (losses.metric, losses.higher_is_better) == ("loss", False)
    for number, task in enumerate(run.sequence):
        expected = nn.functional.cross_entropy(run.model(images_of(task)).logits, torch.arange(40) % 3)
        assert losses.scores[3, number] == pytest.approx(expected.item(), abs=1e-6)


def test_scores_of_few_steps_and_held_out_sets_stand_beside_the_matrix(whole: Whole, tmp_path: Path) -> None:
    changes = {"score_steps": 4, "held_out": {"general": data(9)}, "score": Score(drawing, "accuracy")}
    run = build(tmp_path / "whole", instants=(instants := Instants()), **changes)
    matrix = run.run()
    assert end_of(run) == end_of(whole("reservoir, fresh")[0])
    course = matrix.course.to_pandas()
    assert [*course.index] == [(task, step) for task in (1, 2, 3) for step in (0, 4, 8)]
    assert course.notna().sum(axis=1).tolist() == [1] * 3 + [2] * 3 + [3] * 3  # the tasks seen so far
    assert course["task_1"][2, 0] == matrix.scores[1, 0]
    assert matrix.held_out()["general"].notna().all()
    shown = str(matrix)
    assert all(name in shown for name in ("before", "after task_3", "general"))
    in_second = [number for number, name in enumerate(instants.names) if name == "step 6"][1]
    with pytest.raises(Killed):
        build(tmp_path, instants=Instants(in_second), **changes).run()
    resumed = build(tmp_path, model_seed=7, **changes)
    resumed.run(resume=True)
    pd.testing.assert_frame_equal(resumed.scores.course.to_pandas(), course)
    pd.testing.assert_frame_equal(ScoreMatrix.from_file(resumed.folder / "scores.json").held_out(), matrix.held_out())


def test_tasks_of_one_evaluation_set_are_scored_once_and_in_between_on_few_samples(tmp_path: Path) -> None:
    calls: list[Any] = []

    def counted(trainer: Any, task: Task) -> float:
        calls.append(task.evaluation)
        return accuracy(trainer, task.evaluation)

    tasks = TaskSequence(tuple(Task(name, data(seed), data(9)) for seed, name in enumerate("abc")), "domain")
    score = Score(counted, "accuracy", depends_on=lambda task: id(task.evaluation))
    own = {"own": Score(lambda trainer, task: float(len(task.name)), "length")}
    run = build(tmp_path, "none, fresh", sequence=tasks, score=score, held_out=own, score_steps=5, score_samples=7)
    matrix = run.run()
    course = matrix.course.to_pandas()
    assert [len(samples) for samples in calls] == [40, *[7, 7, 7, 40] * 3]  # before, at steps 0, 5 and 10, at the end
    assert (matrix.scores == matrix.scores[:, :1]).all()
    assert (course.loc[3].to_numpy() == course.loc[3].to_numpy()[:, :1]).all()
    few = calls[-2]
    assert few is calls[1]  # the same samples each time
    assert matrix.scores[3, 0] == accuracy_by_hand(run.model, data(9))
    assert course.loc[(3, 10), "a"] == accuracy_by_hand(run.model, few)
    assert matrix.held_out()["own"].tolist() == [3.0] * 4


def accuracy_by_hand(model: Any, samples: Any) -> float:
    rows = [samples[index] for index in range(len(samples))]
    logits = model(torch.stack([row["pixel_values"] for row in rows])).logits
    return float((logits.argmax(-1) == torch.tensor([int(row["labels"]) for row in rows])).double().mean())


def test_a_run_is_overwritten_when_asked_and_else_refused(whole: Whole, tmp_path: Path) -> None:
    build(tmp_path, "none, fresh", max_steps=1).run()
    with refused("output_dir"):
        build(tmp_path, "none, fresh").run()
    with refused("overwrite"):
        build(tmp_path, "none, fresh").run(resume=True, overwrite=True)
    run = build(tmp_path, "none, fresh")
    run.run(overwrite=True)
    assert end_of(run) == end_of(whole("none, fresh")[0])
    with refused("overwrite"):
        run.run(overwrite=True)
    assert run.run(resume=True) is run.scores  # what was there is untouched


class Told(TaskMethod):
    """Records what it is told of tasks, and the weights then."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        super().begin_task(task, model)
        self.tasks.append(("begin", task.number, task.name, task.classes, task.seen, weights_of(model).tolist()))

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        self.tasks.append(("end", task.number, task.name, task.classes, task.seen, weights_of(model).tolist()))


def test_methods_are_told_of_tasks_and_of_the_model_before_them_after_a_kill_too(tmp_path: Path) -> None:
    whole, resumed = Told(), Told()
    changes = {"scenario": "class", "max_steps": 3, "save_steps": 1, "num_labels": 6}
    build(tmp_path / "whole", "reservoir, fresh", instants := Instants(), methods=[whole], **changes).run()
    assert [entry[:5] for entry in whole.tasks] == [
        (when, number, f"task_{number + 1}", (2 * number, 2 * number + 1), tuple(range(2 * number + 2)))
        for number in range(3)
        for when in ("begin", "end")
    ]
    in_second = [number for number, name in enumerate(instants.names) if name == "step 3"][1]
    with pytest.raises(Killed):
        build(tmp_path, instants=Instants(in_second), methods=[Told()], **changes).run()
    assert (tmp_path / "run" / "02-task_2" / "checkpoint-2").exists()
    build(tmp_path, methods=[resumed], model_seed=7, **changes).run(resume=True)
    assert resumed.tasks == whole.tasks[2:]


def test_an_evaluation_that_fails_keeps_the_run_and_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("tasks.score.logger.warning", lambda text, *values: said.append(text % values))

    def score(trainer: Any, task: Task) -> float:
        if task.name == "task_2":
            raise OSError("disk on fire")
        return accuracy(trainer, task.evaluation)

    matrix = short(tmp_path / "one", score=Score(score)).run()
    assert np.isnan(matrix.scores[:, 1]).all()
    assert np.isfinite(matrix.scores[:, [0, 2]]).all()
    assert matrix.failures == {(row, "task_2"): "OSError: disk on fire" for row in range(4)}
    assert "The evaluation of task 'task_2' after 0 tasks failed: OSError: disk on fire" in said
    assert ScoreMatrix.from_file(tmp_path / "one" / "run" / "scores.json").failures == matrix.failures
    with refused("score"):
        short(tmp_path / "all", score=Score(lambda trainer, task: None)).run()  # type: ignore[arg-type, return-value]
    with refused("held_out"):
        short(tmp_path / "held out", held_out={"general": [{"other": 1}]}).run()


USED = ReplayBuffer(3)
USED.remember("task_1", data())
NO_OPTIMIZER = (torch.optim.SGD([torch.zeros(1)], lr=0.1), None)
NAMED_SO = TaskSequence((Task("memory", data(), data()),), "domain")
GROWING = {"sequence": classes_in_turn("class"), "head": "growing"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "both"}, "optimizer"),
    ({"second_draw": "again"}, "memory"),
    ({"memory": ReplayBuffer(3), "second_draw": "task_2"}, "second_draw"),
    ({"memory": ReplayBuffer(3), "mixing": {"task_1": 1.0}}, "mixing"),
    ({"score_steps": 0}, "score_steps"),
    ({"score_samples": 3}, "score_samples"),
    ({"held_out": {"task_1": data()}}, "held_out"),
    ({"optimizers": NO_OPTIMIZER}, "optimizers"),
    ({"memory": ReplayBuffer(3), "sequence": NAMED_SO}, "sequence"),
    ({"memory": ReplayBuffer(3), "mixing": ReplayBound()}, "eval_dataset"),
    ({"memory": ReplayBuffer(2), "mixing": ReplayBound()}, "memory"),
    ({"memory": ReplayBuffer(9, "LossAware"), "mixing": ReplayBound()}, "memory"),
    ({"sequence": classes_in_turn("class")}, "num_labels"),
    ({**GROWING, "memory": ReplayBuffer(3), "methods": der()}, "head"),
    ({"methods": lambda: [OnlineEWC()]}, "methods"),
    ({"methods": [ICaRL()]}, "memory"),
    ({"memory": ReplayBuffer(9), "mixing": ReplayBound(), "methods": der()}, "methods"),
    ({"memory": 3}, "memory"),
    ({"trainer_class": Trainer}, "trainer_class"),
    ({"held_out": {"general": []}}, "held_out['general']"),
    ({"held_out": data()}, "held_out"),
    ({"held_out": {"general": (data(), data())}}, "held_out['general']"),
    ({"score": nearest_mean(ReplayBuffer(3, "Ring"))}, "score"),
    ({"held_out": {"general": Score(accuracy, names=frozenset({"other"}))}}, "held_out['general']"),
    ({"scores_before": "no"}, "scores_before"),
    ({"memory": USED}, "memory"),
]


@pytest.mark.parametrize(("options", "option"), REFUSED)
def test_what_does_not_fit_is_refused_and_leaves_nothing(options: dict[str, Any], option: str, tmp_path: Path) -> None:
    with refused(option, ErrorFacts):
        ContinualRun(new_model(), **{"sequence": sequence(), "args": arguments(tmp_path / "run"), **options}).run()
    assert not (tmp_path / "run" / "continual.json").exists()


@pytest.mark.parametrize(
    ("mixing", "new", "replayed"), [("Uniform", 12, 12), ([3, 1], 18, 6), (lambda step, weights: [0.25, 0.75], 6, 18)]
)
def test_mixing_is_given_as_to_the_trainer(mixing: Any, new: int, replayed: int, tmp_path: Path) -> None:
    memory = ReplayBuffer(6, seed=1)
    ContinualRun(new_model(), sequence(), arguments(tmp_path), memory=memory, mixing=mixing, scores_before=False).run()
    counts = Ledger(tmp_path / "02-task_2" / "ledger").to_pandas().groupby("stream")["count"].sum()
    assert counts.to_dict() == {"task_2": new, "memory": replayed}  # three steps of eight


def test_other_runs_are_refused_and_other_settings_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "tasks.continual.task_checkpoints.logger.warning", lambda text, *values: said.append(text % values)
    )
    kill(tmp_path, "reservoir, kept", 9)
    with refused("output_dir"):
        build(tmp_path, "reservoir, kept").begin()
    for option, name, options in (
        ("data", "reservoir, kept", {"sequence": sequence(6)}),
        ("held_out", "reservoir, kept", {"held_out": {"general": data()}}),
        ("methods", "reservoir, kept", {"methods": [Anchor()]}),
        ("mixing", "reservoir, kept", {"mixing": ReplayRatio(0.5)}),
        ("tasks", "reservoir, kept", {"sequence": sequence()[:2]}),
        ("score", "reservoir, kept", {"score": "loss"}),
        ("optimizer", "reservoir, fresh", {}),
    ):
        with refused(option):
            build(tmp_path, name, **options).begin(resume=True)
    run = build(tmp_path, "reservoir, kept", learning_rate=0.5, max_steps=5)
    run.run(resume=True)
    assert "resumes with other settings than before: learning_rate" in said[0]
    assert run.recorder.rates[-5:] == pytest.approx([0.5 * left / 5 for left in (5, 4, 3, 2, 1)])


def test_a_run_of_which_nothing_is_left_says_so(tmp_path: Path) -> None:
    kill(tmp_path, "none, fresh", 8)
    state = tmp_path / "run" / "continual.json"
    assert json.loads(state.read_text())["num_done"] == 0
    shutil.rmtree(tmp_path / "run" / "start")
    with refused("resume"):
        build(tmp_path, "none, fresh").begin(resume=True)
    state.write_text("{torn")
    with pytest.raises(ValueError, match=r"continual\.json is torn"):
        build(tmp_path, "none, fresh").begin(resume=True)
