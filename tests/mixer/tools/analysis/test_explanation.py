"""Explanations of runs that are resumed, set by hand, in tokens, with streams that come and go."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from transformers import TrainerCallback

import mixer
from mixer import Fixed, Floor, Hold, LossChange, MixingTrainer, Smoothed, Stream, TrustRegion, schedules
from mixer.ledger.table_files import write_part
from mixer.tools.analysis.explanation import explain
from mixer.tools.report.contents import read_report
from tests.helpers import On, Tokens
from tests.mixer.trainer.runs import make
from tests.refusals import refused as expected

SIZES = {"a": 40, "b": 23, "c": 9}
SAVED = {"save_strategy": "steps", "save_steps": 5}


def nest() -> mixer.Policy:
    inner = LossChange(num_warmup_observations=1, fast_decay=0.5)
    return Hold(TrustRegion(Smoothed(Floor(inner, 0.15), 0.5), max_log_change=0.1), 2)


def streams(**options: dict[str, Any]) -> list[Stream]:
    return [Stream(name, Tokens(size, size), **options.get(name, {})) for name, size in SIZES.items()]


def build(folder: Path, max_steps: int = 4, data: Any = None, **options: Any) -> MixingTrainer:
    own = {"train_dataset": streams() if data is None else data, "mixing": nest(), **options}
    return make(folder, max_steps=max_steps, **own)


class Live(TrainerCallback):
    """Keeps the decision and the terms of each level that a step begins with, as the policy gives them."""

    trainer: MixingTrainer

    def __init__(self) -> None:
        self.terms: dict[int, list[dict[str, Any]]] = {}
        self.decisions: dict[int, mixer.Decision] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        policy: Any = self.trainer.mixing.policy
        self.decisions[state.global_step + 1] = self.trainer.mixing.decision
        terms = []
        while policy is not None:
            terms.append({name: np.copy(term) for name, term in policy.explain().items()})
            policy = getattr(policy, "policy", None)
        self.terms[state.global_step + 1] = terms[::-1]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Live]:
    """A run of twelve steps, with a checkpoint at step 5, and what was seen of it while it went on."""
    folder, live = tmp_path_factory.mktemp("plain"), Live()
    live.trainer = build(folder, 12, callbacks=[live], **SAVED)
    live.trainer.train()
    return folder, live


@pytest.fixture
def plain(lived: tuple[Path, Live]) -> Path:
    return lived[0]


@pytest.fixture
def copied(tmp_path: Path, plain: Path) -> Path:
    """A copy of the run that can be damaged."""
    shutil.copytree(plain / "ledger", tmp_path / "run" / "ledger")
    return tmp_path / "run"


def keep_rows(run: Path, kept: Callable[[Any], Any]) -> None:
    for part in (run / "ledger").glob("*/*.parquet"):
        rows = pq.read_table(part)
        write_part(part, rows.filter(kept(rows["step"])))


def test_each_level_is_shown_as_the_policy_decided_it_and_the_last_one_ruled(lived: tuple[Path, Live]) -> None:
    folder, live = lived
    for step in range(1, 13):
        found = explain(folder, step)
        assert found.is_decided
        assert [level.name for level in found.levels] == ["LossChange", "Floor", "Smoothed", "TrustRegion", "Hold"]
        assert found.levels[1].decision.weights.min() >= 0.15 - 1e-12
        held = found.levels[-1].decision.weights
        np.testing.assert_allclose(held / held.sum(), found.weights["policy_weight"], atol=1e-12)
        counts = found.counts
        np.testing.assert_allclose(counts["asked"], found.weights["weight"] * found.total)
        np.testing.assert_allclose(counts["owed"], counts["asked"] + counts["carried"])
        np.testing.assert_allclose(counts["left"], counts["owed"] - counts["count"], atol=1e-12)
        assert counts["count"].sum() == found.total == found.size["total"]
        same = (step - 1) // 2 * 2 + 1  # Hold takes every second decision
        assert found.decided_at == same - 1
        for level, terms in zip(found.levels, live.terms.get(same, []), strict=same > 1):
            kept = {name: term for name, term in terms.items() if term.shape in ((), (3,))}
            assert level.terms.keys() == kept.keys()
            for name, term in kept.items():
                np.testing.assert_array_equal(level.terms[name], term)
        if same > 1:
            np.testing.assert_array_equal(held, live.decisions[same].weights)


def test_only_changes_are_recorded_and_nothing_of_a_static_policy(tmp_path: Path, plain: Path) -> None:
    assert mixer.Ledger(plain / "ledger").decisions()["step"].unique().tolist() == [0, 2, 4, 6, 8, 10, 12]

    class Failing(mixer.Uniform):
        is_static = False

        def explain(self) -> Any:
            raise RuntimeError("no terms")

    build(tmp_path, mixing=Floor(Failing(), 0.1)).train()
    assert mixer.Ledger(tmp_path / "ledger").decisions()["step"].unique().tolist() == [0]
    found = explain(tmp_path, 4)
    assert found.notes[0] == "The policy decided these weights before the first step and has kept them since."
    assert (found.is_decided, [(level.name, dict(level.terms)) for level in found.levels]) == (True, [("Floor", {})])
    build(tmp_path / "static", mixing=Fixed({"a": 2, "b": 1, "c": 1})).train()
    assert not (tmp_path / "static" / "ledger" / "decisions").exists()
    found = explain(tmp_path / "static", 3)
    assert (found.levels, found.decided_at, found.is_decided) == ([], None, False)
    assert found.notes[0] == "No decision is recorded: Fixed has kept the weights that it began the run with."


def test_weights_set_by_hand(tmp_path: Path) -> None:
    def set_weights(state: Any, **_: Any) -> None:
        if state.global_step in (4, 7):  # and gives them back
            trainer.mixing.set_weights({"a": 1, "b": 1, "c": 6} if state.global_step == 4 else None)

    trainer = build(tmp_path, max_steps=9, callbacks=[On(step_end=set_weights)])
    trainer.train()
    for step, is_by_hand in ((4, False), (5, True), (7, True), (8, False), (9, False)):
        found = explain(tmp_path, step)
        assert found.is_decided != is_by_hand
        beginning = "These weights are not those" if is_by_hand else "The policy decided these weights"
        assert found.notes[0].startswith(beginning)
        if is_by_hand:
            np.testing.assert_allclose(found.weights["policy_weight"], [0.125, 0.125, 0.75])
            assert found.levels[-1].decision.weights[2] < 0.6  # the policy's own decision


def test_drawn_counts_and_measured_gradients_are_told(tmp_path: Path) -> None:
    build(tmp_path, 4, drawing="multinomial", mixing=mixer.PiKE(interval_steps=2)).train()
    found = explain(tmp_path, 4)
    assert any("drawing: multinomial" in note for note in found.notes)
    assert found.measured_at == 2
    assert (found.observed["norm"] > 0.0).all()


def test_a_resumed_run_is_one_run_and_drops_the_decisions_after_the_checkpoint(tmp_path: Path, plain: Path) -> None:
    shutil.copytree(plain, tmp_path / "run")
    checkpoint = str(tmp_path / "run" / "checkpoint-5")
    short = build(tmp_path / "run", max_steps=6)
    short.train(resume_from_checkpoint=checkpoint)
    assert short.ledger.decisions()["step"].unique().tolist() == [0, 2, 4, 6]
    build(tmp_path / "run", max_steps=12).train(resume_from_checkpoint=checkpoint)
    assert mixer.Ledger(tmp_path / "run" / "ledger").decisions().equals(mixer.Ledger(plain / "ledger").decisions())
    found, whole = explain(tmp_path / "run", 12), explain(plain, 12)
    assert found.is_decided
    np.testing.assert_array_equal(found.levels[0].decision.weights, whole.levels[0].decision.weights)


def test_a_run_that_went_on_with_another_stream(tmp_path: Path) -> None:
    fields = {"mixing": LossChange(num_warmup_observations=1), "save_strategy": "steps", "save_steps": 3}
    build(tmp_path, 3, streams()[:2], **fields).train()
    build(tmp_path, 6, allow_inexact=True, **fields).train(resume_from_checkpoint=True)
    before, at, after = (explain(tmp_path, step) for step in (3, 4, 6))
    assert (before.is_decided, at.is_decided, after.is_decided) == (True, False, True)
    assert "the run was resumed inexactly" in at.notes[0]
    assert [list(found.levels[0].names) for found in (before, at, after)] == [["a", "b"], ["a", "b"], ["a", "b", "c"]]
    assert after.counts["count"].sum() == 8


def test_a_ledger_without_its_beginning_is_explained_as_recorded(copied: Path, plain: Path) -> None:
    keep_rows(copied, lambda steps: pc.greater(steps, 5))
    found, whole = explain(copied, 8), explain(plain, 8)
    assert found.notes[0] == "The policy decided these weights after step 6 and has kept them since."
    assert found.counts.equals(whole.counts)
    first = explain(copied, 6)
    assert first.notes[0].endswith("for this step: the table `decisions` of the ledger has none.")
    assert first.counts["carried"].isna().all()


def test_streams_that_come_and_go_and_shares_of_tokens(tmp_path: Path) -> None:
    data = streams(b={"enters_at": 0.4}, c={"leaves_at": 0.6})
    build(tmp_path, 12, data, mixing=Fixed({"a": 2, "b": 1, "c": 1}, unit="tokens")).train()
    early, late = explain(tmp_path, 3), explain(tmp_path, 12)
    assert early.weights["active"].tolist() == [True, False, True]
    assert late.weights["active"].tolist() == [True, True, False]
    assert any("Not active, their shares go to the others: c." in note for note in late.notes)
    assert not any("Moved further" in note for note in late.notes)
    of_samples = late.weights["policy_weight"] / late.weights["tokens_per_sample"] * late.weights["active"]
    np.testing.assert_allclose(of_samples / of_samples.sum(), late.weights["weight"])


def test_groups_are_named_where_they_moved_weights_and_the_size_is_told_too(tmp_path: Path) -> None:
    data = streams(a={"groups": {"kind": "x"}}, b={"groups": {"kind": "y"}}, c={"groups": {"kind": "y"}})
    schedule = schedules.Ramp(30, 1.0, initial=6, granularity=3, unit="progress", learning_rate="sqrt")
    given = {"groupings": [mixer.Grouping("kind", max_shares={"x": 0.2})], "budget": mixer.Budget(samples=150)}
    build(tmp_path, 6, data, mixing="Uniform", batch_size=schedule, **given).train()
    assert any("groupings ['kind']" in note for note in explain(tmp_path, 5).notes)
    found = explain(tmp_path, 5).size
    assert found["asked"] > found["before"]
    assert found["learning_rate_factor"] == pytest.approx((found["asked"] / 6) ** 0.5)


def test_sentences_and_the_report_say_what_changed_most_and_json_holds_all(
    plain: Path, printed: Callable[..., str]
) -> None:
    found = explain(plain, 9)
    # The policy's own decisions, after steps 6 and 8.
    own, before = (explain(plain, step).weights["policy_weight"] for step in (9, 8))
    moved = (own - before).abs().idxmax()
    assert found.sentence.startswith(f"{moved} {before[moved]:.1%} → {own[moved]:.1%} of the samples: ")
    np.testing.assert_array_equal(found.weights["before"], before)
    terms = found.levels[0].terms["progress"]
    rank = sorted(terms, reverse=True).index(terms["abc".index(moved)])
    assert f"the change of its loss is the {['largest of 3', '2nd largest of 3', 'least of 3'][rank]}" in found.sentence
    assert printed("explain", plain, "--step", 9).splitlines() == found.sentences()
    content = json.loads(printed("explain", plain, "--step", 9, "--json"))
    assert content["is_decided"]
    assert [row["stream"] for row in content["counts"]] == ["a", "b", "c"]
    assert content["levels"][0]["policy"] == "LossChange"
    last = explain(plain)  # of the last step
    assert last.step == 12
    assert dict(read_report([plain]).summary)["Last decision"] == [f"after step {last.decided_at}: {last.sentence}"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: note["run"]["streams"].pop(),
        lambda note: note.update(run="torn"),
        lambda note: note["run"]["mixing"].update(init_args=[1]),
    ],
)
def test_a_damaged_description_is_no_hindrance(copied: Path, plain: Path, damage: Callable[[Any], Any]) -> None:
    note = copied / "ledger" / "ledger.json"
    damage(described := json.loads(note.read_text()))
    note.write_text(json.dumps(described))
    found, whole = explain(copied, 6), explain(plain, 6)
    assert found.notes == whole.notes
    assert found.counts.equals(whole.counts)
    assert found.weights["weight"].tolist() == whole.weights["weight"].tolist()


def test_damaged_decisions_are_no_decisions(copied: Path, plain: Path) -> None:
    (part,) = (copied / "ledger" / "decisions").glob("*.parquet")
    rows = pq.read_table(part)
    place = rows.schema.get_field_index("values")
    for values in (None, [], [0.5], [np.nan] * 3, [0.1] * 40):
        column = pa.array([values] * rows.num_rows, rows.schema.field(place).type)
        write_part(part, rows.set_column(place, "values", column))
        found = explain(copied, 6)
        assert not found.is_decided
        assert found.counts.equals(explain(plain, 6).counts)


def test_missing_steps_are_refused(plain, copied) -> None:
    for step in (0, 13):
        with expected("step", found=step):
            explain(plain, step)
    keep_rows(copied, lambda steps: pc.is_in(steps, pa.array([1, 2, 3, 6, 8, 9])))
    with expected("step", found=5) as info:
        explain(copied, 5)
    assert "1 to 3, 6, 8 to 9" in info.value.expected
    shutil.rmtree(copied / "ledger" / "clock")
    with expected("run"):
        explain(copied, 5)


def test_the_objective_has_the_value_of_the_last_evaluation_that_was_known(tmp_path: Path) -> None:
    sets, every_two = {name: Tokens(8, 8) for name in "bc"}, {"eval_strategy": "steps", "eval_steps": 2}
    trainer = build(tmp_path, 5, objective=["b"], eval_dataset=sets, **every_two)
    trainer.train()
    logged = {
        entry["step"]: entry["eval_objective"] for entry in trainer.state.log_history if "eval_objective" in entry
    }
    found = [explain(tmp_path, step) for step in (1, 4)]
    assert [one.objective for one in found] == ["loss of b"] * 2
    assert math.isnan(found[0].objective_value)
    assert found[1].objective_value == pytest.approx(logged[2])
    assert f"Objective: loss of b: {logged[2]:.3f} after step 2." in found[1].sentences()
