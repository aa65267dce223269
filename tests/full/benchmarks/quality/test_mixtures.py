import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from benchmarks.made_up_data import make_data
from benchmarks.quality import plan
from benchmarks.quality.cache import Run, write_whole
from benchmarks.quality.command import main
from benchmarks.quality.conflict import gradients_seen
from benchmarks.quality.followers import followers
from benchmarks.quality.grid import grid
from benchmarks.quality.listing import describe
from benchmarks.quality.mixtures import MIXTURES, Mixture
from benchmarks.quality.plan import collect, planned, run_all
from benchmarks.quality.policies import (
    ENTRIES,
    FIT,
    NO_COMPETITORS,
    PROXY,
    PROXY_FIXED,
    REFERENCE_LOSSES,
    UNIFORM,
    Entry,
    competitors,
    make,
    settings_of,
)
from benchmarks.quality.report import best_of_grid, paired, quality, spread_over_noise, summarise
from benchmarks.quality.runs import run_once
from benchmarks.quality.synthetic import STREAMS
from mixer.cli.entry import main as cli
from mixer.gradients.records import rows_of
from mixer.ledger import Ledger
from mixer.policies.registry import built_in_policies
from tests.mixer.measurements import measured

QUICK = Mixture("synthetic", is_quick=True)
UNIFORM_RUN = Run(QUICK, UNIFORM, "Uniform", {}, 1)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


# ---- Recipes ----


@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_mixture_is_a_recipe_that_the_command_trains(mixture: str, data_dir: Path, tmp_path: Path) -> None:
    small = Mixture(mixture, is_quick=True)
    parts, content = small.read(data_dir), small.content
    content["training"]["output_dir"] = str(tmp_path / "run")
    for stream in content["streams"].values():
        stream["arguments"] |= {"folder": str(data_dir)} if "folder" in stream["arguments"] else {}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content, sort_keys=False))
    cli(["train", str(recipe), "--mixing", "Proportional"])
    table = Ledger(tmp_path / "run" / "ledger").to_pandas()
    assert table["stream"].nunique() == len(parts)
    assert table["step"].nunique() == small.num_steps
    assert all(list(own) == ["train", "validation", "test"] for own in parts.values())


def test_no_sentence_is_trained_on_and_held_out(data_dir: Path) -> None:
    rows: dict[str, set[tuple[int, ...]]] = {"train": set(), "validation": set(), "test": set()}
    for own in Mixture("classification", is_quick=True).read(data_dir).values():
        for part, samples in own.items():
            rows[part] |= {tuple(samples[index]["input_ids"].tolist()) for index in range(len(samples))}  # type: ignore[arg-type]
    assert not rows["train"] & (rows["validation"] | rows["test"])
    assert not rows["validation"] & rows["test"]


# ---- Runs ----


def test_a_policy_that_follows_evaluations_gets_them(tmp_path: Path) -> None:
    entry = ENTRIES["LossChange, evaluation"]
    run = Run(QUICK, "evaluated", entry.class_name, settings_of(entry, QUICK.num_steps), 1)
    run_once(run, tmp_path, None)
    result = run.result(tmp_path)
    assert result is not None
    assert result["evaluation_seconds"] > 0.0
    weights = np.array(list(result["weights"].values()))
    assert not np.allclose(weights[:, 0], weights[:, -1])  # without evaluations they stay


def test_reference_losses_are_those_of_uniform_mixing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def spy(class_name: str, settings: Any, num_samples: int, reference_losses: Any = None) -> Any:
        given.update(reference_losses or {})
        assert num_samples == QUICK.num_steps * QUICK.batch
        return make(class_name, {} if REFERENCE_LOSSES in settings.values() else settings, num_samples)

    monkeypatch.setattr("benchmarks.quality.runs.make", spy)
    run = Run(QUICK, "target", "LossChange", {"loss": REFERENCE_LOSSES}, 1)
    run_once(run, tmp_path, None)
    result, uniform = run.result(tmp_path), UNIFORM_RUN.result(tmp_path)
    assert result is not None
    assert uniform is not None
    assert given == uniform["validation_losses"]
    assert result["reference_seconds"] == uniform["cpu_seconds"]


def test_a_run_that_fails_leaves_the_others_theirs(tmp_path: Path) -> None:
    bad = replace(UNIFORM_RUN, name="bad", class_name="LossChange", settings={"floor": 0.9})
    failed = run_all([bad, UNIFORM_RUN], tmp_path, None, 1)
    assert len(failed) == 1
    assert "floor" in failed[0]
    assert UNIFORM_RUN.result(tmp_path) is not None


# ---- Results that are kept ----


def test_the_best_of_the_grid_are_run_on_the_other_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "grid", lambda sizes: grid(sizes)[:5])
    runs = planned(QUICK, ["grid"], (1, 2, 3), None)
    assert [run.seed for run in runs] == [1] * 5
    assert followers(runs, (1, 2, 3), tmp_path) == []  # none is known yet
    for run, loss in zip(runs, (5.0, 1.0, 4.0, 2.0, 3.0), strict=True):
        kept = {"key": run.key(), "name": run.name, **result(validation=loss, test=-loss)}
        kept["validation_losses"] = dict.fromkeys(STREAMS, loss)
        write_whole(run.path(tmp_path), json.dumps(kept).encode())
    again = followers(runs, (1, 2, 3), tmp_path)
    assert [(run.name, run.seed) for run in again[:6]] == [(f"grid {n}", seed) for seed in (2, 3) for n in (2, 4, 5)]
    assert again[0].settings == runs[1].settings
    assert [(run.name, run.seed) for run in again[6:]] == [(FIT, seed) for seed in (1, 2, 3)]
    assert sum(again[6].settings["weights"]) == pytest.approx(1.0, abs=1e-5)


def test_the_weights_of_a_proxy_are_trained_on_and_cost_what_came_before(tmp_path: Path) -> None:
    runs = planned(QUICK, [UNIFORM, PROXY], (1, 2), None)
    assert run_all(runs, tmp_path, None, 1) == []
    then = followers(runs, (1, 2), tmp_path)
    assert [(run.name, run.class_name, run.seed) for run in then] == [(PROXY_FIXED, "Fixed", s) for s in (1, 2)]
    proxy = next(run for run in runs if run.name == PROXY and run.seed == 2).result(tmp_path)
    assert proxy is not None
    assert then[1].settings["weights"] == pytest.approx(list(proxy["averaged_weights"].values()), abs=1e-6)
    assert run_all(then, tmp_path, None, 1) == []
    results = collect(QUICK, tmp_path)
    row, seconds = summarise(results)[PROXY_FIXED], {n: results[n][1]["cpu_seconds"] for n in results}
    assert row["seeds"] == [1, 2]
    assert row["time_over_uniform"] > (seconds[PROXY] + 0.9 * seconds[PROXY_FIXED]) / max(
        results[UNIFORM][seed]["cpu_seconds"] for seed in (1, 2)
    )


# ---- Competitors ----


@pytest.mark.parametrize("mixture", MIXTURES)
def test_every_policy_that_is_there_competes(mixture: str) -> None:
    for own in (Mixture(mixture, is_quick=True), Mixture(mixture)):
        rows = {row[0]: row for row in describe(own.num_steps, own.entries)}
        assert [row for row in rows.values() if "cannot be made" in row[3]] == []
    classes = {entry.class_name for entry in competitors().values()}
    assert classes | set(NO_COMPETITORS) >= set(built_in_policies())


def test_a_policy_that_cannot_be_made_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ENTRIES, "odd", Entry("LossChange", {"strange": 1}))
    assert "cannot be made" in {row[0]: row[3] for row in describe(100)}["odd"]
    command = ["--quick", "--parallel", "1", "--seeds", "1", "--mixture", "synthetic", "--folder", str(tmp_path)]
    with pytest.raises(SystemExit, match="strange"):
        main([*command, "--policy", UNIFORM, "odd"])
    assert f"| `{UNIFORM}` | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", [[5, 5], [100, 10, 1], [40_000, 10_000, 20_000, 10_000], [7, 6, 5, 4, 3, 2]])
def test_the_grid_is_on_the_simplex_and_spread(sizes: list[int]) -> None:
    points = grid(np.array(sizes))
    assert len(points) == (21 if len(sizes) == 3 else 20)
    assert points.sum(axis=1) == pytest.approx(1.0)
    assert points.min() >= 0.25 / len(sizes) - 1e-12
    assert points.mean(axis=0) == pytest.approx([1 / len(sizes)] * len(sizes), abs=0.1)
    if len(set(sizes)) > 1:  # else those by size are all the same
        assert len(np.unique(points.round(9), axis=0)) == len(points)


# ---- Figures ----


def result(validation: float, test: float) -> dict[str, Any]:
    own = {"validation_losses": {"a": validation, "b": validation}, "test_losses": {"a": test, "b": test + 1.0}}
    times = {"cpu_seconds": 2.0, "reference_seconds": 0.0, "probe_seconds": 1.0, "seconds": 4.0}
    return {**own, **times, "shares": {"a": 0.5, "b": 0.5}}


def test_differences_are_by_seed() -> None:
    # Differences 1, 2, 3 on the common seeds: mean 2, deviation 1, 4.303 / √3 = 2.484.
    found = paired({1: 2.0, 2: 4.0, 3: 6.0, 9: 0.0}, {1: 1.0, 2: 2.0, 3: 3.0})
    assert found["mean"] == 2.0
    assert found["half_width"] == pytest.approx(4.303 / 3**0.5)
    assert found["num_seeds"] == 3
    assert paired({1: 2.0}, {1: 1.0}) == {"mean": 1.0, "half_width": float("inf"), "num_seeds": 1}
    assert np.isnan(paired({1: 2.0}, {2: 1.0})["mean"])


def test_the_grid_is_judged_by_validation_and_its_spread_by_test_losses() -> None:
    grid_results = {"grid 1": {1: result(3.0, 1.0)}, "grid 2": {1: result(1.0, 3.0)}, "grid 3": {1: result(2.0, 2.0)}}
    assert best_of_grid(grid_results, 2) == ["grid 2", "grid 3"]
    assert quality(grid_results["grid 1"][1], "validation") == {"average": 3.0, "worst": 3.0}
    spread = spread_over_noise({**grid_results, UNIFORM: {1: result(0.0, 1.0), 2: result(0.0, 1.2)}})
    assert spread["range"] == 2.0
    assert spread["ratio"] == pytest.approx(1.0 / (0.2 / 2**0.5))


def test_conflict_and_alignment_are_those_of_the_averages() -> None:
    statistics = measured(num_streams=3, seed=1)
    tables = []
    for step in (1, 2):
        columns = rows_of(step, ("a", "b", "c"), statistics)
        tables.append(
            pd.DataFrame({name: list(values) if np.ndim(values) else values for name, values in columns.items()})
        )
    seen = gradients_seen(pd.concat(tables))
    assert seen is not None
    assert seen["num_measurements"] == 2
    assert seen["conflict"] == pytest.approx(statistics.conflict)
    assert seen["alignment"] == pytest.approx(statistics.alignment)
    assert seen["least_cosine"] == pytest.approx(statistics.cosines.min())
    assert gradients_seen(pd.DataFrame()) is None
