"""Forks of a run: the same to the bit with the same mixing, and the same order in every stream with another."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from jsonargparse import Namespace

from mixer import Exposure, LossChange, MixingTrainer
from mixer.ledger.card import mixture_card
from mixer.ledger.folder import read_description
from mixer.ledger.ledger import Ledger
from mixer.tools.cli.fork import recorded_run
from mixer.tools.records.forks import paired_differences
from tests.helpers import On
from tests.mixer.checkpoint.test_resume import Killed, assert_same, build, end_of
from tests.refusals import refused

AT = 4


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parent")
    trainer = build(folder)
    trainer.train()
    return folder, end_of(trainer)


def test_a_fork_with_the_same_mixing_is_the_run(parent: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    fork = build(tmp_path)
    fork.fork(parent[0], at=AT)
    assert_same(end_of(fork), parent[1])
    for name in set(fork.ledger.tables()) - {"timings"}:
        pd.testing.assert_frame_equal(fork.ledger.read(name).to_pandas(), Ledger(parent[0]).read(name).to_pandas())
    assert mixture_card(tmp_path)["forked_at"] == AT


@pytest.mark.parametrize(("is_run", "at", "named"), [(False, AT, "recipe.yaml"), (True, None, "--at N")])
def test_what_is_forked_is_a_run_at_a_step(is_run, at, named, parent, tmp_path: Path) -> None:
    config = Namespace(recipe=[(parent[0] if is_run else tmp_path) / "recipe.yaml"])
    with pytest.raises(ValueError, match=named):
        recorded_run(config, at)


def test_a_fork_with_another_mixing_keeps_the_order(parent: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    fork = build(tmp_path, mixing={"a": 1, "b": 3, "c": 3})
    fork.fork(parent[0], at=AT)
    own, before = Exposure(tmp_path), Exposure(parent[0])
    rows = {}
    for exposure in (own, before):
        drawn = [exposure.at(step).query("stream == 'b'")["row"].tolist() for step in range(1, 9)]
        rows[exposure] = [row for step in drawn for row in step]
        assert drawn[:AT] == [before.at(step).query("stream == 'b'")["row"].tolist() for step in range(1, AT + 1)]
    shared = min(map(len, rows.values()))
    assert rows[own][:shared] == rows[before][:shared]
    assert len(rows[own]) > len(rows[before])
    weights = fork.ledger.to_pandas().query(f"step == {AT + 1}")["policy_weight"].tolist()
    assert weights == pytest.approx([1 / 7, 3 / 7, 3 / 7])
    assert fork.ledger.decisions().query(f"step == {AT}")["rule"].tolist() == ["Fixed"]
    # An interrupted fork goes on as itself.
    resumed = build(tmp_path, mixing={"a": 1, "b": 3, "c": 3})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert_same(end_of(resumed), end_of(fork))
    assert mixture_card(tmp_path)["parent"] == str(parent[0])
    (difference,) = paired_differences([parent[0], tmp_path])
    losses = [one.evaluations().query(f"step > {AT}").set_index(["step", "stream"])["loss"] for one in
              (Ledger(parent[0]), Ledger(tmp_path))]  # fmt: skip
    expected = (losses[1] - losses[0]).groupby("stream").mean()
    assert difference["mean"] == pytest.approx(expected.to_dict())


@pytest.mark.parametrize("instant", ["on_step_begin", "before the ledger"])
def test_an_interrupted_fork_begins_again_at_its_parent(instant, parent, tmp_path, monkeypatch) -> None:
    """Killed before its first checkpoint, whatever it had written by then."""
    fork = build(tmp_path, callbacks=[On(step_begin=_kill_at_once)])
    with monkeypatch.context() as patch:
        if instant == "before the ledger":
            patch.setattr(Ledger, "begin", _kill_at_once)
        with pytest.raises(Killed):
            fork.fork(parent[0], at=AT)
    again = build(tmp_path)
    assert again.newest_checkpoint() == str(parent[0] / f"checkpoint-{AT}")
    again.train(resume_from_checkpoint=True)
    assert_same(end_of(again), parent[1])
    assert mixture_card(tmp_path)["parent"] == str(parent[0])
    # A run that begins anew is no fork any longer.
    with pytest.raises(Killed):
        build(tmp_path, callbacks=[On(step_begin=_kill_at_once)]).train()
    assert build(tmp_path).newest_checkpoint() is None
    assert "parent" not in read_description(tmp_path)


def test_a_fork_whose_parent_is_gone_does_not_begin_anew(parent: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run = Path(shutil.copytree(parent[0], tmp_path / "run"))
    with pytest.raises(Killed):
        build(tmp_path / "fork", callbacks=[On(step_begin=_kill_at_once)]).fork(run, at=AT)
    shutil.rmtree(run)
    for resume in (lambda one: one.newest_checkpoint(), lambda one: one.train(resume_from_checkpoint=True)):
        with pytest.raises(ValueError, match=rf"began at {run}/checkpoint-{AT}"):
            resume(build(tmp_path / "fork"))


def _kill_at_once(*_: Any, **__: Any) -> None:
    raise Killed


def test_a_fork_is_refused_with_what_there_is(parent: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    with refused("at", found=5):
        build(tmp_path).fork(parent[0], at=5)
    trainer: MixingTrainer = build(parent[0])
    with refused("output_dir"):
        trainer.fork(parent[0], at=AT)
    assert isinstance(trainer.mixing.policy, LossChange)
