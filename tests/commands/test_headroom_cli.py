"""Whether there is anything to gain from another mixture, as a user asks."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from mixer import MixingTrainer
from mixer.analysis.headroom.headroom import BEST, NEAR, OWN, Headroom, best_of, first_runs
from mixer.cli.entry import main
from tests.commands.recipes import NO_EVALUATION, Runs, write_recipe


def test_a_handful_of_mixtures_is_planned_and_the_best_is_found() -> None:
    runs = first_runs({"a": 1.0, "b": 1.0, "c": 2.0, "off": 0.0})
    assert [run.name for run in runs] == [OWN, NEAR, "more a", "more b", "more c"]
    assert runs[0].weights == {"a": 0.25, "b": 0.25, "c": 0.5, "off": 0.0}
    assert runs[4].weights == {"a": 0.125, "b": 0.125, "c": 0.75, "off": 0.0}
    for run in runs:
        assert sum(run.weights.values()) == pytest.approx(1.0, abs=2e-4)
    assert np.abs(np.subtract([*runs[1].weights.values()], [*runs[0].weights.values()])).max() < 0.02
    # Only stream b lowers the objective.
    best = best_of(runs, [1.0 + np.exp(-2.0 * run.weights["b"]) for run in runs])
    assert (best.name, best.seed_offset, best.weights["off"]) == (BEST, 1, 0.0)
    assert best.weights["b"] > 0.8
    even = best_of(runs, [1.0] * len(runs))
    assert even.weights == pytest.approx(runs[0].weights)


def test_a_gain_is_clear_above_the_noise() -> None:
    best = first_runs({"a": 1.0, "b": 1.0})[2]
    for noise, found, is_clear in ((0.001, 0.95, True), (0.02, 0.95, False), (0.0, 0.996, False), (0.0, 1.1, False)):
        headroom = Headroom.of([1.0, 1.0 + noise, 1.2], 1.0, best, found)
        assert headroom.is_clear == is_clear
        assert headroom.gain == pytest.approx(1.0 - found)
        assert ("nothing to gain" in " ".join(headroom.sentences())) != is_clear


def test_short_runs_say_whether_there_is_headroom_and_are_not_run_twice(
    tmp_path: Path, printed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {**NO_EVALUATION, "max_steps": 40, "learning_rate": 0.03, "warmup_steps": 4}
    recipe, seen, train = write_recipe(tmp_path, training, mixing=None, objective=["cpp"]), [], MixingTrainer.train

    def noted(self: MixingTrainer, *args: object, **kwargs: object) -> object:
        sizes = [stream.num_samples for stream in self.streams]
        seen.append((self.args.max_steps, self.args.warmup_steps, self.args.seed, sizes))
        return train(self, *args, **kwargs)

    monkeypatch.setattr(MixingTrainer, "train", noted)
    document = json.loads(printed("headroom", recipe, "--share", "0.25", "--json"))
    assert seen == [(10, 1, 42 + int(number > 3), [15, 10]) for number in range(6)]
    assert [run["name"] for run in document["runs"]][:4] == [OWN, NEAR, "more python", "more cpp"]
    own, best = (run["objective"] for run in document["runs"][-2:])
    assert document["gain"] == pytest.approx(1.0 - best / own)
    shown = printed("headroom", recipe, "--share", "0.25")
    assert len(seen) == 6
    assert ("mixer train RECIPE.yaml" in shown) == document["is_clear"]
    if document["is_clear"]:
        weights = json.loads(shlex.split(shown.strip().splitlines()[-1])[-1])
        assert weights == document["runs"][-1]["weights"]
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.parametrize(
    ("fields", "share", "said"),
    [
        ({}, "0.1", "needs an objective: set objective"),
        ({"objective": ["cpp"]}, "2", "--share must be in [0.01, 1.0]"),
        ({"objective": ["java"]}, "0.1", "['java'] are none of"),
    ],
)
def test_refusals(
    fields: dict[str, object], share: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["headroom", write_recipe(tmp_path, NO_EVALUATION, **fields), "--share", share])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
