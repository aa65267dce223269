from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.made_up_data import make_data
from benchmarks.quality.data import blocks, ciphered
from benchmarks.quality.family import DRAWN, drawn, names
from benchmarks.quality.policies import (
    BY_SIMILARITY,
    NUM_SAMPLES,
    REFERENCE_LOSSES,
    UNIFORM,
    competitors,
    make,
    settings_of,
    similar_shares,
)
from benchmarks.quality.report import BEST, NEAR, Judge, headroom_share, paired, share_to_reach, summarise
from benchmarks.quality.scenarios import SCENARIOS, Scenario
from benchmarks.quality.sentences import intents
from benchmarks.quality.short_runs import judged
from benchmarks.quality.small_rows import sentences as small_sentences
from benchmarks.quality.tables import report
from mixer import Objective
from mixer.ledger.ledger import Ledger
from mixer.policies.registry import built_in_policies
from mixer.tools.cli.entry import main as cli
from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.recipe import Recipe
from tasks.text_domains import ByteBlocks


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("work") / "data")


# ---- Recipes ----


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_a_recipe_on_parts_of_the_data(name: str, data_dir: Path) -> None:
    scenario = Scenario(name, is_quick=True)
    check_fields(Recipe, scenario.content)
    parts = scenario.read(data_dir)
    assert set(scenario.objective.names) <= parts.keys()
    assert all(list(own) == ["train", "validation", "test"] for own in parts.values())


@pytest.mark.parametrize("name", ["outside", "classification", "frequency"])  # of each kind one
def test_the_command_trains_it(name: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(name, is_quick=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(scenario.content, sort_keys=False))
    monkeypatch.chdir(data_dir.parent)  # recipes say `folder: data`
    steps = ["--training.max_steps", "3", "--training.eval_steps", "3"]
    cli(["train", str(recipe), "--mixing", "MarginalValue", "--training.output_dir", str(tmp_path / "run"), *steps])
    ledger = Ledger(tmp_path / "run" / "ledger")
    assert set(ledger.to_pandas()["stream"]) == set(scenario.streams)


def test_no_sentence_is_trained_on_and_held_out(data_dir: Path) -> None:
    rows: dict[str, set[tuple[int, ...]]] = {"train": set(), "validation": set(), "test": set()}
    for own in Scenario("classification", is_quick=True).read(data_dir).values():
        for part, samples in own.items():
            rows[part] |= {tuple(samples[index]["input_ids"].tolist()) for index in range(len(samples))}  # type: ignore[arg-type]
    assert not rows["train"] & (rows["validation"] | rows["test"])
    assert not rows["validation"] & rows["test"]


def test_scenarios_of_the_family_are_drawn_by_seed_and_judge_on_others_than_they_tune_on(data_dir: Path) -> None:
    tuning, judging = names("tuning"), names("judging")
    assert len({*tuning, *judging, *names("encoder")}) == 64
    for name in (*tuning[:4], *judging[:4]):
        scenario = Scenario(name, is_quick=True)
        assert drawn(int(name.removeprefix(DRAWN))) == drawn(int(name.removeprefix(DRAWN)))
        assert set(scenario.objective.names) <= scenario.read(data_dir).keys()


def test_small_data_is_drawn_by_seed_and_its_parts_are_apart(data_dir: Path) -> None:
    tuning, judging = names("small_tuning"), names("small_judging")
    assert len({*tuning, *judging}) == 45
    read = 0
    for name in tuning:
        scenario = Scenario(name, is_quick=True)
        check_fields(Recipe, scenario.content)
        assert drawn(int(name.removeprefix(DRAWN))) == drawn(int(name.removeprefix(DRAWN)))
        forms = {stream["arguments"]["form"] for stream in scenario.content["streams"].values()}
        if "encoded" not in forms:  # which takes the encoder
            read += 1
            assert set(scenario.objective.names) <= scenario.read(data_dir).keys()
    assert read == 10


def test_small_sets_have_what_is_asked_of_their_classes(data_dir: Path) -> None:
    def labels(part: str = "train", **options: Any) -> Any:
        found: Any = small_sentences("mr", str(data_dir), **{"form": "words", "num_samples": 40, **options})[part]
        return found.read_columns(np.arange(len(found)))["labels"].numpy()

    assert np.bincount(labels(proportions=[0.75, 0.25], num_samples=20)).tolist() == [15, 5]
    assert np.bincount(labels(most=5)).tolist() == [5, 5]
    assert set(labels(among=(1, 2), first_class=6)) == {7}
    assert set(labels(form="numbers")) == {-1.0, 1.0}
    assert (labels(wrong=1.0) == 1 - labels()).all()
    assert (labels("test", wrong=1.0) == labels("test")).all()
    assert (labels("test", number=1) == labels("test", number=2)).all()


def test_wrong_labels_are_in_training_alone_and_parts_of_requests_are_apart(data_dir: Path) -> None:
    def rows(part: str = "train", **options: Any) -> list[tuple[tuple[int, ...], int]]:
        own: Any = intents(str(data_dir), 100, 8, **options)[part]
        columns = own.read_columns(np.arange(len(own)))
        return list(zip(map(tuple, columns["input_ids"].tolist()), columns["labels"].tolist(), strict=True))

    whole, first, careless = rows(most=6), rows(most=6, of=2), rows(most=6, number=1, of=2, wrong=1.0)
    assert sorted(text for text, _ in [*first, *careless]) == sorted(text for text, _ in whole)
    assert {*first} < {*whole}
    assert len({*careless} & {*whole}) <= 1  # one of 150 intents, of which there are four
    for part in ("validation", "test"):
        assert rows(part, wrong=1.0) == rows(part)
    thirds = [{label for _, label in rows("test", third=third)} for third in range(3)]
    assert sorted(label for third in thirds for label in third) == sorted({label for _, label in rows("test")})


def test_what_is_learned_of_a_text_is_wrong_where_its_letters_are_exchanged(data_dir: Path) -> None:
    source = {"name": "shakespeare", "folder": str(data_dir)}
    plain, other = (own["train"].blocks.numpy() for own in (blocks(**source), ciphered(source, 1)))  # type: ignore[attr-defined]
    is_letter = (plain >= ord("a")) & (plain <= ord("z"))
    assert (plain[~is_letter] == other[~is_letter]).all()
    pairs = {*zip(plain[is_letter].tolist(), other[is_letter].tolist(), strict=True)}
    assert len(pairs) == len({own for own, _ in pairs}) == len({own for _, own in pairs})
    assert (plain != other).any()


@pytest.mark.parametrize(
    ("verdict", "there", "found"),
    [
        ("gain", 6.0, "right"),
        ("gain", 0.2, "wrong"),
        ("nothing to gain", 6.0, "wrong"),
        ("not confirmed", 0.2, "right"),
        ("not explained", 6.0, "open"),
        ("gain", float("nan"), "open"),
    ],
)
def test_short_runs_are_right_if_they_say_what_the_grid_found(verdict: str, there: float, found: str) -> None:
    assert judged(verdict, there) == found


# ---- Competitors ----


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_policy_can_be_made_and_knows_the_targets(name: str) -> None:
    scenario, entries = Scenario(name), competitors()
    for entry in entries.values():
        losses, shares = dict.fromkeys(scenario.streams, 1.0), [1.0 for _ in scenario.streams]
        known = {NUM_SAMPLES: 1_000, REFERENCE_LOSSES: losses, BY_SIMILARITY: shares}
        make(entry.class_name, settings_of(entry, scenario), known)
    wrappers = {"Fixed", "Scheduled", "Function", "Floor", "Smoothed", "WarmUp", "Hold", "TrustRegion", "Safeguard"}
    wrappers |= {"OverfitGuard"}
    assert {entry.class_name for entry in entries.values()} | wrappers >= set(built_in_policies())
    targets = settings_of(entries["DoGE"], scenario).get("targets")
    assert targets == {"small_target": "objective", "outside": "objective", "texts": None}.get(name, targets)


def test_the_most_similar_source_shares_pairs_of_tokens_with_the_target() -> None:
    texts = {"abcd": b"abcd", "caca": b"caca", "eeee": b"eeee", "target": b"abca"}
    blocks = {name: ByteBlocks(np.frombuffer(text, np.uint8)[None].copy()) for name, text in texts.items()}
    parts = {name: {"train": own, "validation": own} for name, own in blocks.items()}
    scenario: Any = SimpleNamespace(streams=["abcd", "caca", "eeee"], objective=Objective({"target": 0.5, "eeee": 0.5}))
    # ab, bc, ca of the target, in log 2 each: abcd has two of them (2 / √3 = 1.2), caca one (log 3 of norm 1.3: 0.8).
    assert similar_shares(scenario, parts) == pytest.approx([1.0, 0.0, 1.0], abs=1e-6)


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
    assert "| s | `policy` | -5.0, -5.0 | -5.0 |" in report("Small models", {"s": found})  # each run, by seed


def test_the_worst_target_and_a_greater_metric_count_as_declared() -> None:
    own = {"test": {"a": {"loss": 1.0, "accuracy": 0.5}, "b": {"loss": 3.0, "accuracy": 0.9}}}
    assert Judge(Objective(["a", "b"], kind="worst")).value(own) == 3.0
    greater = Objective({"a": 0.25, "b": 0.75}, metric="accuracy", greater_is_better=True)
    assert Judge(greater).value(own) == pytest.approx(-0.8)
