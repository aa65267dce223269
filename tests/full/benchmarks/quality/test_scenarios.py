import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.made_up_data import make_data
from benchmarks.quality.cache import Run, _kept, keep, modules_of
from benchmarks.quality.command import main
from benchmarks.quality.data import blocks, garbled, joined, slice_of
from benchmarks.quality.grid import grid
from benchmarks.quality.plan import FIRST_SEED, clocks, collect, followers, planned, run_all
from benchmarks.quality.policies import UNIFORM, competitors, make, settings_of
from benchmarks.quality.report import BEST, CLOCK, NEAR, Judge, headroom_share, paired, share_to_reach, summarise
from benchmarks.quality.runs import run_once
from benchmarks.quality.scenarios import SCENARIOS, Scenario
from mixer import Objective
from mixer.cli.entry import main as cli
from mixer.ledger import Ledger
from mixer.policies.registry import built_in_policies

QUICK = Scenario("outside", is_quick=True)
UNIFORM_RUN = Run(QUICK, UNIFORM, "Uniform", {}, FIRST_SEED)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("work") / "data")


# ---- Recipes ----


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_a_recipe_that_the_command_trains(
    name: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(name, is_quick=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(scenario.content, sort_keys=False))
    monkeypatch.chdir(data_dir.parent)  # recipes say `folder: data`
    options = [
        "--training.output_dir",
        str(tmp_path / "run"),
        "--training.max_steps",
        "3",
        "--training.eval_steps",
        "3",
    ]
    cli(["train", str(recipe), "--mixing", "MarginalValue", *options])
    ledger = Ledger(tmp_path / "run" / "ledger")
    assert set(ledger.to_pandas()["stream"]) == set(scenario.streams)
    parts = scenario.read(data_dir)
    assert set(scenario.objective.names) <= parts.keys()
    assert all(list(own) == ["train", "validation", "test"] for own in parts.values())


def test_the_larger_model_takes_the_place_of_the_recipes_own() -> None:
    large = Scenario("junk", "llama")
    num_parameters = sum(parameter.numel() for parameter in large.new_model(1).parameters())
    assert 0.9e6 < num_parameters < 1e6
    assert large.objective == Scenario("junk").objective
    assert not Scenario("bound").can_be_larger


def test_no_sentence_is_trained_on_and_held_out(data_dir: Path) -> None:
    rows: dict[str, set[tuple[int, ...]]] = {"train": set(), "validation": set(), "test": set()}
    for own in Scenario("classification", is_quick=True).read(data_dir).values():
        for part, samples in own.items():
            rows[part] |= {tuple(samples[index]["input_ids"].tolist()) for index in range(len(samples))}  # type: ignore[arg-type]
    assert not rows["train"] & (rows["validation"] | rows["test"])
    assert not rows["validation"] & rows["test"]


def test_sources_are_cut_sliced_joined_and_garbled(data_dir: Path) -> None:
    source = {"name": "reviews", "folder": str(data_dir), "num_samples": 30}
    whole = blocks(**source)["train"].blocks.numpy()  # type: ignore[arg-type, attr-defined]
    slices = [slice_of(source, number, 3)["train"].blocks.numpy() for number in range(3)]  # type: ignore[attr-defined]
    assert len(whole) == 30
    assert sorted(map(bytes, np.concatenate(slices))) == sorted(map(bytes, whole))
    assert len(joined([source, source])["train"]) == 60  # type: ignore[arg-type]
    mixed = garbled(source, 1, 0.5)["train"].blocks.numpy()  # type: ignore[attr-defined]
    changed = (mixed != whole).any(axis=1)
    assert 0 < changed.sum() < 30
    assert (np.sort(mixed, axis=1) == np.sort(whole, axis=1)).all()


# ---- Runs and results that are kept ----


def test_a_run_is_judged_by_its_objective_and_kept(data_dir: Path, tmp_path: Path) -> None:
    bad = replace(UNIFORM_RUN, name="bad", class_name="LossChange", settings={"floor": 0.9})
    failed = run_all([bad, UNIFORM_RUN], tmp_path, data_dir, 1, "today")
    assert len(failed) == 1
    assert "floor" in failed[0]
    path = UNIFORM_RUN.path(tmp_path)
    result, written = UNIFORM_RUN.result(tmp_path), path.stat().st_mtime_ns
    assert result is not None
    assert Judge(QUICK.objective).value(result) == result["test"]["reviews"]["loss"]
    places, values = result["course"]
    assert places == [step / 12 for step in range(1, 13)]
    assert values[-1] < values[0]
    assert run_all([UNIFORM_RUN], tmp_path, data_dir, 1) == []
    assert path.stat().st_mtime_ns == written
    assert collect(QUICK, tmp_path) == {UNIFORM: {FIRST_SEED: result}}
    later = replace(UNIFORM_RUN, name="MarginalValue", class_name="MarginalValue")
    assert [run.name for run in clocks([UNIFORM_RUN, later], tmp_path, "now")] == [f"{CLOCK}now"]
    assert clocks([UNIFORM_RUN], tmp_path, "now") == []


def test_reference_losses_are_those_of_uniform_mixing(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def spy(class_name: str, settings: Any, num_samples: int, reference_losses: Any = None) -> Any:
        given.update(reference_losses or {})
        return make(class_name, settings, num_samples, reference_losses)

    monkeypatch.setattr("benchmarks.quality.runs.make", spy)
    entry = competitors()["TargetLoss"]
    run = Run(QUICK, "TargetLoss", entry.class_name, settings_of(entry, QUICK), FIRST_SEED)
    run_once(run, tmp_path, data_dir)
    uniform = UNIFORM_RUN.result(tmp_path)
    assert uniform is not None
    assert given == {name: uniform["validation"][name]["loss"] for name in QUICK.streams}


def test_the_best_of_the_grid_are_run_on_the_seeds_of_the_policies(data_dir: Path, tmp_path: Path) -> None:
    seeds = (FIRST_SEED, FIRST_SEED + 1)
    runs = planned(QUICK, ["grid"], seeds, data_dir)
    own = [run for run in runs if not run.name.startswith(NEAR)]
    assert not {run.seed for run in own} & set(seeds)
    assert followers(QUICK, seeds, tmp_path) == []  # none is known yet
    for run, loss in zip(own, (4.0, 1.0, 3.0, 2.0), strict=False):
        run.write(tmp_path, {"validation": {"reviews": {"loss": loss}}})
    best = [own[number] for number in (1, 3, 2)]
    assert followers(QUICK, seeds, tmp_path) == [replace(run, seed=seed) for seed in seeds for run in best]


def test_results_that_were_put_into_the_repository_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.quality.cache._KEPT", tmp_path / "kept")
    UNIFORM_RUN.write(tmp_path, {"test": {"reviews": {"loss": 2.123456789}}})
    replace(UNIFORM_RUN, settings={"old": 1}).write(tmp_path, {})  # of a policy that was changed since
    clock = replace(UNIFORM_RUN, name=f"{CLOCK}now")  # the same run but for its name
    clock.write(tmp_path, {})
    assert collect(QUICK, tmp_path).keys() == {UNIFORM, clock.name}
    keep(QUICK, collect(QUICK, tmp_path)[UNIFORM].values())
    _kept.cache_clear()
    (line,) = (tmp_path / "kept" / "small" / "outside.jsonl").read_text().splitlines()
    result = UNIFORM_RUN.result(tmp_path / "empty")
    assert result == json.loads(line)
    assert result is not None
    assert result["test"] == {"reviews": {"loss": 2.12346}}
    assert collect(QUICK, tmp_path / "empty") == {UNIFORM: {FIRST_SEED: result}}
    assert run_all([UNIFORM_RUN], tmp_path / "empty", None, 1) == []
    _kept.cache_clear()


# ---- Competitors ----


def test_a_result_of_auto_depends_on_the_policy_inside_and_on_what_measures_for_it() -> None:
    modules = modules_of("auto")
    assert {"mixer.policies.safeguard", "mixer.policies.marginal_value"} < set(modules)
    assert "mixer.trainer.observers.targets" in modules
    assert modules_of("Uniform") == ["mixer.policies.shared.static", "mixer.policies.uniform"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_policy_can_be_made_and_knows_the_targets(name: str) -> None:
    scenario, entries = Scenario(name), competitors()
    for entry in entries.values():
        make(entry.class_name, settings_of(entry, scenario), 1_000, dict.fromkeys(scenario.streams, 1.0))
    wrappers = {"Fixed", "Scheduled", "Function", "Floor", "Smoothed", "WarmUp", "Hold", "TrustRegion", "Safeguard"}
    wrappers |= {"OverfitGuard"}
    assert {entry.class_name for entry in entries.values()} | wrappers >= set(built_in_policies())
    targets = settings_of(entries["DoGE"], scenario).get("targets")
    assert targets == {"small_target": "objective", "outside": "objective", "texts": None}.get(name, targets)


@pytest.mark.parametrize("sizes", [[5, 5], [100, 10, 1], [40_000, 10_000, 20_000, 150], [7, 6, 5, 4, 3, 2]])
def test_the_grid_is_spread_over_the_simplex_and_leaves_streams_out(sizes: list[int]) -> None:
    importance = [1.0] + [0.0] * (len(sizes) - 1)
    points = grid(np.array(sizes), importance, 16)
    assert len(points) == (15 if len(sizes) == 2 else 16)
    assert len(np.unique(points.round(4), axis=0)) == len(points)
    assert points.sum(axis=1) == pytest.approx(1.0)
    assert points.min() == (0.02 if len(sizes) == 2 else 0.0)
    if len(sizes) > 2:
        assert points[0] == pytest.approx(1.0 / len(sizes))
        assert points[1] == pytest.approx(importance)


# ---- Figures ----


def test_the_share_of_headroom_is_paired_by_seed() -> None:
    uniform, best = {1: 3.0, 2: 4.0, 3: 5.0}, {1: 2.0, 2: 3.0, 3: 4.0}
    half = headroom_share(uniform, {1: 2.5, 2: 3.5, 3: 4.5, 9: 0.0}, best)
    assert half == {"mean": 0.5, "half_width": 0.0}  # seeds differ, what is gained does not
    # Gains of 0.4, 0.5 and 0.6 of a headroom of 1: deviation 0.1.
    found = headroom_share(uniform, {1: 2.6, 2: 3.5, 3: 4.4}, best)
    assert found["mean"] == pytest.approx(0.5)
    assert found["half_width"] == pytest.approx(4.303 * 0.1 / 3**0.5)
    assert paired({1: 2.0}, {1: 1.0}) == {"mean": 1.0, "half_width": float("inf"), "num_seeds": 1}


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ([4.0, 3.0, 2.0, 1.0], 0.625),  # half way from the second place to the third
        ([2.0, 3.0, 2.5, 1.0], 0.25),  # the first place, whatever comes after
        ([4.0, 3.0, 2.9, 2.8], float("inf")),
        ([4.0, 3.0, 3.0, 2.5], 1.0),
    ],
)
def test_samples_to_uniforms_result_lie_between_the_places(values: list[float], share: float) -> None:
    assert share_to_reach([0.25, 0.5, 0.75, 1.0], values, 2.5) == share


def result(loss: float, course: Sequence[float], old: float = 1.0, validation: float | None = None) -> dict[str, Any]:
    of_part = {part: {"new": {"loss": loss}, "old": {"loss": old}} for part in ("validation", "test")}
    if validation is not None:
        of_part["validation"]["new"] = {"loss": validation}
    first = {part: {"old": {"loss": 1.0}} for part in of_part}
    times = {"cpu_seconds": 2.0, "reference_seconds": 1.0, "session": "now"}
    return {**of_part, "first": first, "course": [[0.5, 1.0], list(course)], "shares": {"new": 1.0}, **times}


def test_a_summary_compares_with_uniform_mixing_and_the_best_mixture_that_keeps_its_bound() -> None:
    seeds, objective = (1, 2), Objective({"new": 1.0}, bounds={"old": 1.05})
    results = {
        UNIFORM: {seed: result(2.0, [3.0, 2.0]) for seed in seeds},
        "policy": {seed: result(1.9, [2.0, 1.9], old=1.07) for seed in seeds},
        "grid a": {seed: result(1.8, [2.0, 1.8], validation=1.7) for seed in seeds},
        "grid b": {seed: result(1.0, [1.0, 1.0], old=1.2) for seed in seeds},
        "grid c": {seed: result(1.6, [2.0, 1.6], validation=1.75) for seed in seeds},
        f"{NEAR}1": {1: result(2.0, [])},
        f"{NEAR}2": {1: result(2.2, [])},
    }
    found = summarise(results, objective, seeds)
    assert found["best_fixed"] == "grid a"  # by validation, among those that keep the bound
    assert found["spread"] == pytest.approx(100.0 * 0.2 / 2**0.5 / 2.1)
    assert found["policies"].keys() == {UNIFORM, "policy", BEST}
    row = found["policies"]["policy"]
    assert row["over_uniform"]["mean"] == pytest.approx(-5.0)
    assert row["share"]["mean"] == pytest.approx(0.5)
    assert row["samples"] == 0.5
    assert row["excess"] == pytest.approx(2.0)
    assert row["time"] == 1.5


def test_the_worst_target_and_a_greater_metric_count_as_declared() -> None:
    own = {"test": {"a": {"loss": 1.0, "accuracy": 0.5}, "b": {"loss": 3.0, "accuracy": 0.9}}}
    assert Judge(Objective(["a", "b"], kind="worst")).value(own) == 3.0
    greater = Objective({"a": 0.25, "b": 0.75}, metric="accuracy", greater_is_better=True)
    assert Judge(greater).value(own) == pytest.approx(-0.8)


def test_the_command_prints_tables_of_what_it_ran_and_then_of_what_is_kept(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--quick", "--seeds", "1", "--folder", str(tmp_path), "--scenario", "small_target"]
    main([*where, "--data-dir", str(data_dir), "--policy", UNIFORM, "MarginalValue", "grid", "--parallel", "1"])
    printed = capsys.readouterr().out
    tables = printed[printed.index("###") :]
    assert "| small_target |" in tables
    assert "| `MarginalValue` |" in tables
    main([*where, "--report"])
    assert capsys.readouterr().out == tables
    with pytest.raises(SystemExit):
        main([*where, "--policy", "strange"])
