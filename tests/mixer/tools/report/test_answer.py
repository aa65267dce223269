"""What a report says first."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mixer.policies.objective import Objective
from mixer.tools.records.run import Run
from mixer.tools.report.answer import answer
from mixer.tools.report.comparing import configurations, shown_differences
from tests.mixer.tools.report.runs import calm_run


def ended(name: str, objective: Objective | None = None, seed: int | None = None, **losses: float) -> Run:
    """A run with its last validation losses; runs of the same first letter have the same description."""
    run = calm_run()
    described = {**run.description, "mixing": name[0], "data_seed": seed}
    run = run.but(name=name, objective=objective, description=described)
    for stream, loss in losses.items():
        run.evaluations[stream].loc[6, "loss"] = loss
    return run


def test_one_run_each_is_compared_by_the_objective_that_one_of_them_declared() -> None:
    objective = Objective({"math": 3.0, "code": 1.0})
    runs = [ended("uniform", math=2.0, code=4.0), ended("auto", objective, math=1.5, code=4.5)]
    found = answer(runs)
    assert found.sentences[:2] == [
        "The objective, average loss of math and code, ended 0.250 (10.0%) lower in auto than in uniform (one seed "
        "each).",
        "It ended at 2.250 in auto and 2.500 in uniform; lower is better.",
    ]
    assert found.comparison["run"].tolist() == ["auto", "uniform"]
    assert found.comparison.iloc[0][["value", "difference", "change"]].tolist() == pytest.approx([2.25, -0.25, -0.1])


def test_seeds_of_a_configuration_are_one_and_their_spread_decides() -> None:
    seeds = {f"{name}-{seed}": (name, seed) for name in ("plain", "auto") for seed in (1, 2, 3)}
    ends = {"plain": (2.00, 2.02, 2.04), "auto": (1.90, 1.92, 1.94)}
    runs = [ended(run, seed=seed, math=ends[name][seed - 1], code=3.0, chat=3.0) for run, (name, seed) in seeds.items()]
    assert [(one.name, len(one.runs)) for one in configurations(runs)] == [("plain", 3), ("auto", 3)]
    found = answer(runs)
    # The mean of three sets: a lead of 0.1 / 3, and a standard error of 0.02 / 3 · √(2 / 3), times t of 4 degrees.
    bound = 2.78 * 0.02 / 3 * np.sqrt(2 / 3)
    assert found.sentences[0].endswith(f"0.033 ± {bound:.3f} (1.2%) lower in auto than in plain (95 % over seeds).")
    assert "2.640 ± 0.007 in auto (3 seeds)" in found.sentences[1]
    rows = shown_differences(found.differences)
    assert [*rows[0].items()] == [
        *(("stream", "math"), ("measure", "validation loss")),
        *(("plain", "2.020 ± 0.020"), ("auto", "1.920 ± 0.020 (-0.100)")),
    ]
    assert rows[1]["measure"] == "share of samples"
    near = [ended(run, seed=seed, math=1.0 + seed - 0.1 * (name == "auto")) for run, (name, seed) in seeds.items()]
    assert "ended 0.033" in answer(near).sentences[0]
    assert "add seeds" in answer(near).sentences[0]


def test_runs_of_the_same_seed_are_not_taken_for_seeds_and_unequal_lengths_are_said() -> None:
    runs = [ended("a1", seed=0), ended("a2", seed=0)]
    assert [one.name for one in configurations(runs)] == ["a1", "a2"]
    shorter = runs[1].but(clock=runs[1].clock.iloc[:120])
    unlike = "Their training lengths differ: 7,680 samples in a1 and 3,840 samples in a2."
    assert unlike in answer([runs[0], shorter]).sentences
    blind = [run.but(evaluations={}) for run in runs]
    assert answer(blind).sentences[0].startswith("The runs were not evaluated.")
    assert "training loss" in set(answer(blind).differences["measure"])


def test_one_run_says_what_the_mixture_did_and_which_bounds_it_broke() -> None:
    objective = Objective(["math"], bounds={"code": 1.05, "chat": 1.05})
    run = ended("run", objective, math=2.5, code=5.5, chat=5.0)
    assert answer([run]).sentences == [
        "The objective, loss of math, code at most 1.05 times its first loss and chat at most 1.05 times its first "
        "loss, went from 5.000 to 2.500 (-50.0%).",
        "It was best at step 200, at 2.212: save_best_of_each keeps such weights.",
        "Of the samples math gave 33% (33% of the data), code gave 33% (33% of the data) and chat gave 33% (33% of the "
        "data).",
        "In run the loss of code ended at 1.1 times that of the first evaluation: above its bound of 1.05.",
    ]


@pytest.mark.parametrize(
    ("loss", "accuracy", "is_overconfident"), [(2.5, 0.8, True), (2.5, 0.6, False), (2.0, 0.8, False)]
)
def test_accuracy_stands_beside_an_objective_in_loss(loss: float, accuracy: float, is_overconfident: bool) -> None:
    run = ended("run", Objective(["math"]), math=loss)
    steps = run.evaluations["math"]["step"]
    values = np.linspace(0.5, 0.7, len(steps))
    values[-1] = accuracy
    run.metrics["math"] = pd.DataFrame({"step": steps, "metric": "accuracy", "value": values})
    [said] = [text for text in answer([run]).sentences if "accuracy" in text]
    assert f"from 50.0% to {accuracy:.1%}" in said
    assert ("too sure" in said) == is_overconfident
    assert not any("accuracy" in text for text in answer([ended("run", Objective(["math"]))]).sentences)


@pytest.mark.parametrize("objective", [None, Objective(["unknown"])])
def test_what_cannot_be_judged_says_so(objective: Objective | None) -> None:
    run = ended("run", objective, math=float("nan"))
    assert answer([run]).sentences[0].startswith("The last evaluation cannot be judged")
    assert answer([run, run.but(name="other")]).sentences[0].startswith("The last evaluation cannot be judged")
    assert answer([run.but(evaluations={})]).sentences[0] == "The run was not evaluated."


def with_shares(run: Run, **counts: int) -> Run:
    """Gives each step so many samples of each stream."""
    rows = {name: run.streams[name].assign(count=count) for name, count in counts.items()}
    return run.but(streams=rows)


def test_a_lead_has_a_reason_a_price_and_commands_that_come_next(tmp_path: Path) -> None:
    objective = Objective(["math"], bounds={"code": 1.2})
    plain = with_shares(ended("uniform", objective, 0, math=2.5, code=3.0, chat=3.0), math=10, code=10, chat=12)
    best = with_shares(ended("auto", objective, 0, math=2.0, code=3.3, chat=3.0), math=24, code=2, chat=6)
    runs = [run.but(folder=tmp_path / run.name) for run in (plain, best)]
    for run in runs:
        run.folder.mkdir()
        (run.folder / "recipe.yaml").touch()
        run.timings["probe_seconds"] = 0.1 if run.name == "auto" else 0.0
    found = answer(runs)
    # 10 of 32 samples, then 24; 10, then 2; 12, then 6.
    reason, price, took = found.sentences[3:]
    assert reason.endswith("math 31% → 75%, code 31% → 6% and chat 38% → 19%.")
    assert price.endswith("code (3.000 → 3.300, +0.300).")
    # 240 steps of 0.51 and 0.61 s.
    assert took == "auto took 2 min 26 s, uniform 2 min 2 s; 24.0 s went into measuring."
    assert found.has_price
    folder = tmp_path / "auto"
    assert [command for _, command in found.commands] == [
        f"mixer train {folder} --training.seed 1 --training.output_dir {folder}-seed-1",
        f"mixer train {tmp_path / 'uniform'} --training.seed 1 --training.output_dir {tmp_path / 'uniform'}-seed-1",
        # The first evaluations have a loss of 5; uniform ends at 3.
        f"mixer train {folder} --objective.bounds '{{\"code\": 0.6}}' --training.output_dir {folder}-bounded",
    ]
    for run in runs:
        (run.folder / "recipe.yaml").unlink()
    assert [command.partition(": ")[2] for _, command in answer(runs).commands] == [
        f"TrainingArguments(output_dir='{folder}-seed-1', seed=1)",
        f"TrainingArguments(output_dir='{tmp_path / 'uniform'}-seed-1', seed=1)",
        f"TrainingArguments(output_dir='{folder}-bounded'), Objective(['math'], bounds={{'code': 0.6}})",
    ]
    assert found.best_first == ["auto", "uniform"]
    assert [*shown_differences(found.differences, ["auto", "uniform"])[0].values()][2:] == ["2.000 (-0.500)", "2.500"]


def test_metrics_stand_beside_losses_and_a_price_is_in_the_measure_of_the_objective() -> None:
    objective = Objective(["math"], metric="accuracy", greater_is_better=True)
    runs = [ended("plain", objective, 0), ended("auto", objective, 0, code=9.0)]
    for run, values in zip(runs, ((0.5, 0.8, 0.7), (0.6, 0.7, 0.9)), strict=True):
        for stream, value in zip(("math", "code", "chat"), values, strict=True):
            run.metrics[stream] = pd.DataFrame({"step": [6], "metric": ["accuracy"], "value": [value]})
    found = answer(runs)
    assert "accuracy ended lower than with plain on code (0.800 → 0.700, -0.100)." in found.sentences[4]
    assert "chat" not in found.sentences[4]
    assert "nearly the same share" in found.sentences[3]
    rows = [[*row.values()][1:] for row in shown_differences(found.differences)[:3]]
    assert rows == [
        ["validation loss", "2.193", "2.193 (+0.000)"],
        ["accuracy", "0.500", "0.600 (+0.100)"],
        ["share of samples", "33.3%", "33.3% (+0.0%)"],
    ]


def test_a_set_that_ends_above_its_first_evaluation_is_a_price_of_one_run() -> None:
    run = ended("run", Objective(["math"]), math=2.0, code=5.5)
    found = answer([run])
    assert "higher than at the first evaluation on code (5.000 → 5.500, +10.0%)." in found.sentences[-1]
    assert "bounds={'code': 1.02}" in found.commands[0][1]
    assert found.has_price
    assert not answer([ended("run", Objective(["math"]), math=2.0)]).has_price
