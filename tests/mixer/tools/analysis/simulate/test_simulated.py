"""Sums and warnings of a simulated run."""

import json
import math
from pathlib import Path

import datasets
import numpy as np
import pytest

from mixer import Budget
from mixer.schedules import Ramp
from mixer.tools.analysis.simulate import Simulated, simulate, tokens as counting
from mixer.tools.analysis.simulate.screen import screen
from mixer.tools.console import print_json
from mixer.tools.recipe.streams import StreamRecipe
from tests.helpers import Tokens, shown
from tests.mixer.tools.analysis.simulate.runs import HERE, recipe, stream, three


def test_steps_have_their_real_samples_and_large_streams_of_a_short_budget_are_no_problem(tmp_path: Path) -> None:
    streams = {"a": stream(200, 1), "b": stream(200, 2)}
    short = simulate(recipe(tmp_path, streams, mixing="Uniform", budget=Budget(samples=28), epoch_size=7, batch_size=4))
    assert short.counts.sum(axis=1).tolist() == [4, 3] * 4  # epochs of 7
    assert [part.mean_batch_size for part in short.mixture(0.5)] == [3.5, 3.5]
    assert "4 → 3 (3 to 4)" in shown(screen(short, 0.5), width=160)
    assert short.warnings == []  # 7 % of each


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    streams = three(b={"max_epochs": 1.0}, c={"enters_at": 0.5}) | {"d": stream(100, 4, enters_at=0.98)}
    given = {"mixing": "Uniform", "budget": Budget(samples=480), "epoch_size": 480}
    return simulate(recipe(tmp_path_factory.mktemp("capped"), streams, **given))


def test_each_stream_is_summed_up_warned_of_and_shown(capped: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    by_name = {one.name: one for one in capped.streams}
    assert capped.samples == 480 == sum(one.samples for one in capped.streams)
    np.testing.assert_array_equal(capped.counts.sum(axis=0), [one.samples for one in capped.streams])
    b, c = by_name["b"], by_name["c"]
    assert (b.samples, b.coverage, b.passes, b.runs_out) == (23, 1.0, 1.0, True)
    assert b.last_step == np.flatnonzero(capped.counts[:, 1])[-1] + 1
    assert b.last_progress == pytest.approx(8 * b.last_step / 480)
    assert (c.first_step, c.first_progress, c.runs_out) == (31, 0.5, False)
    tokens = sum(int(row["attention_mask"].sum()) for row in Tokens(40, 40).rows)
    assert by_name["a"].tokens == pytest.approx(by_name["a"].samples / 40 * tokens, rel=0.02)
    said = "\n".join(capped.warnings)
    assert f"a is repeated {capped.streams[0].passes:.1f} times, more than 4." in said
    assert "b runs out in step" in said
    assert "Only 2.00% of the samples of d are seen, far less than of the whole mixture." in said
    assert "budget" not in said
    print_json(capped.summary(0.25))
    content = json.loads(capsys.readouterr().out)
    assert content["streams"][0]["samples"] == capped.streams[0].samples
    assert content["mixture"][0]["shares"].keys() == set("abcd")
    assert sum(content["mixture"][0]["shares"].values()) == pytest.approx(1.0)
    assert content["mixture"][0]["mean_batch_size"] == 8.0


def test_a_budget_that_is_not_reached_and_a_stream_without_a_sample(tmp_path: Path) -> None:
    streams = three(a={"max_epochs": 1.0}, b={"max_epochs": 1.0}, c={"max_epochs": 1.0})
    given = {"mixing": {"a": 1, "b": 1, "c": 0}, "training": {"max_steps": 60, "num_train_epochs": 9.0}}
    found = simulate(recipe(tmp_path, streams, **given, budget=Budget(steps=60)))
    assert found.steps == 8  # 63 samples
    assert found.warnings[0].startswith("The budget is not reached: no stream has a sample left after step 8")
    assert "c gives no sample at all." in found.warnings
    assert math.isnan(found.streams[2].first_progress)
    assert found.streams[2].last_step == 0


def test_the_step_is_said_at_which_a_rate_in_steps_begins_to_fall_where_the_batch_grows(tmp_path: Path) -> None:
    rate = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 10}}
    growing = Ramp(32, 200, initial=4, unit="samples")
    found = simulate(recipe(tmp_path, budget=Budget(samples=400), batch_size=growing, training=rate))
    assert "after 90.0% of the run, which would be step 90 of 100" in found.warnings[-1]
    assert "Here that is after step 24 of 26." in found.warnings[-1]
    assert found.counts[:24].sum() == 360  # 0.9 of the samples
    assert found.learning_rates[25] < found.learning_rates[24] == max(found.learning_rates)


def test_numbers_of_training_arguments_are_finite(tmp_path: Path) -> None:
    for name, value in (("weight_decay", math.inf), ("lr_scheduler_kwargs", {"min_lr": math.nan})):
        planned = recipe(tmp_path, three())
        setattr(planned.training, name, value)
        with pytest.raises(ValueError, match=name):
            simulate(planned)


@pytest.mark.parametrize("every", [0.1, 0.25, 0.3, 1.0])
def test_parts_of_the_run_hold_all_steps_once(capped: Simulated, every: float) -> None:
    parts = capped.mixture(every)
    assert len(parts) == math.ceil(1 / every - 1e-9)
    ends = [0, *(step for step, _, _, _ in parts)]
    assert ends[-1] == capped.steps
    for start, (end, progress, shares, mean) in zip(ends, parts, strict=False):
        counts = capped.counts[start:end].sum(axis=0)
        np.testing.assert_allclose(shares, counts / counts.sum())
        assert progress == capped.positions[end - 1]
        assert mean == 8.0


def test_tokens_are_estimated_only_where_nothing_goes_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MAX_READ", 30)
    found = simulate(recipe(tmp_path))
    assert found.estimated_tokens == ["a"]
    exact = simulate(recipe(tmp_path, budget=Budget(tokens=500)))
    assert exact.estimated_tokens == []
    table = {"a": StreamRecipe(f"{HERE}.columns", {"num_samples": 40})}
    assert simulate(recipe(tmp_path, table, training={"per_device_train_batch_size": 4})).estimated_tokens == []
    # Lengths are read off a table of any selection, but for one that is changed on its way, or nested.
    rows = datasets.Dataset.from_dict({"input_ids": [[1] * length for length in range(1, 9)]}).select([6, 0, 3])
    lengths = counting._column_lengths(rows)
    assert lengths is not None
    assert lengths.tolist() == [7, 1, 4]
    nested = datasets.Dataset.from_dict({"input_ids": [[[1, 2], [3, 4]]]})
    for other in (rows.with_transform(lambda batch: batch), nested):
        assert counting._column_lengths(other) is None
