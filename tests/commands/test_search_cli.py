"""The best mixture by short runs, and whether there is anything to gain, as a user asks."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from mixer import MixingTrainer
from mixer.tools.analysis.fit import Constraints, fit_mixture
from mixer.tools.analysis.search.search_plan import NEAR, PRIOR, ShortRun, first_runs, to_check
from mixer.tools.analysis.search.verdict import Evidence, noise_of
from mixer.tools.cli.entry import main
from mixer.tools.cli.search import search_again
from mixer.tools.records.run import Run
from tests.commands.recipes import NO_EVALUATION, RECIPE, Runs, write_recipe

TRAINING = {**NO_EVALUATION, "max_steps": 40, "learning_rate": 0.03, "warmup_steps": 4}


def test_the_first_runs_lean_to_each_stream_or_are_spread_over_many() -> None:
    streams = ["a", "b", "c", "off"]
    bounds = Constraints(prior={"a": 1.0, "b": 1.0, "c": 2.0, "off": 0.0}, most={"off": 0.0})
    runs = first_runs(streams, bounds.of(streams))
    assert [run.name for run in runs] == [PRIOR, NEAR, "more a", "more b", "more c"]
    assert runs[0].weights == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5, "off": 0.0}, abs=1e-4)
    assert runs[4].weights == pytest.approx({"a": 0.125, "b": 0.125, "c": 0.75, "off": 0.0}, abs=1e-4)
    for run in runs:
        assert sum(run.weights.values()) == pytest.approx(1.0, abs=2e-4)
    assert np.abs(np.subtract([*runs[1].weights.values()], [*runs[0].weights.values()])).max() < 0.02
    many = [str(number) for number in range(30)]
    runs = first_runs(many, Constraints().of(many))
    assert len(runs) == len({tuple(run.weights.values()) for run in runs}) == 10


@pytest.mark.parametrize(
    ("careful", "near", "checked"),
    [
        (0.5, 0.0, {"a": 0.2, "b": 0.8}),  # what it was asked for, which may be more than it was given
        (0.5, 0.04, {"a": 0.2, "b": 0.8}),  # 0.4 better, of which 6.3 * 0.04 may be luck
        (0.5, 0.08, {"a": 0.5, "b": 0.5}),
        (0.1, 0.0, {"a": 0.1, "b": 0.9}),
    ],
)
def test_a_run_that_is_clearly_better_than_the_fit_is_checked(
    careful: float, near: float, checked: dict[str, float]
) -> None:
    mixtures, losses = [[0.5, 0.5], [0.49, 0.51], [0.75, 0.25], [0.25, 0.75]], [[2.0], [2.0], [2.4], [1.6]]
    fitted = fit_mixture(mixtures, losses, {"target": 1.0}, streams=["a", "b"], loss_names=["target"])
    fitted.shares = np.array([careful, 1.0 - careful])
    others = [ShortRun(str(share), {"a": share, "b": 1.0 - share}) for share in (0.5, 0.49, 0.75, 0.2)]
    done = list(zip(others, (2.0, 2.0 + near, 2.4, 1.6), strict=True))
    assert dict(to_check(fitted, done)) == pytest.approx(checked)


def shown_if_there_is_a_gain(printed: Runs, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes first, and last the command, which can be copied."""
    with monkeypatch.context() as patched:
        patched.setattr(Evidence, "verdict", "gain")
        lines = printed("headroom", recipe, "--share", "0.25").strip().splitlines()
    assert lines[0].startswith("There is something to gain")
    words = shlex.split(lines[-1])
    assert words[:3] == ["mixer", "train", recipe]
    assert json.loads(words[-1]).keys() == {"python", "cpp"}


def test_short_runs_say_whether_there_is_headroom_and_are_not_run_twice(tmp_path, printed, monkeypatch) -> None:
    recipe, seen, train = write_recipe(tmp_path, TRAINING, mixing=None, objective=["cpp"]), [], MixingTrainer.train

    def noted(self: MixingTrainer, *args: object, **kwargs: object) -> object:
        sizes = [stream.num_samples for stream in self.streams]
        seen.append((self.args.max_steps, self.args.warmup_steps, self.args.seed, sizes))
        return train(self, *args, **kwargs)

    monkeypatch.setattr(MixingTrainer, "train", noted)
    document = json.loads(printed("headroom", recipe, "--share", "0.25", "--json"))
    short, whole = [15, 10], [30, 20]
    expected = [(10, 1, 42 + int(number > 3), short) for number in range(6)]
    confirming = [(20, 2, 43, whole)] * 2
    assert seen == expected + confirming * (len(seen) > 6)
    runs = document["runs"]
    assert [run["name"] for run in runs][:4] == [PRIOR, NEAR, "more python", "more cpp"]
    first, near, *_, own, best = (run["objective"] for run in runs[:6])
    assert {"python": 0.8, "cpp": 0.2} in [mixture["shares"] for mixture in document["fit"]["mixtures"]]  # as asked
    assert document["gain"] == pytest.approx(1.0 - best / own)
    assert document["noise"] == pytest.approx(noise_of(first, near, own))
    names = ("gain", "noise", "learned", "is_explained", "broken", "confirmed_gain")
    assert document["verdict"] == Evidence(**{name: document[name] for name in names}).verdict
    assert (len(runs) == 8) == (document["confirmed_gain"] is not None)
    count = len(seen)
    printed("headroom", recipe, "--share", "0.25")
    assert len(seen) == count
    assert not [*tmp_path.rglob("*.safetensors")]
    shown_if_there_is_a_gain(printed, recipe, monkeypatch)
    # A search goes on from there: one further run, and the check of another best mixture.
    document = json.loads(printed("search", recipe, "--share", "0.25", "--runs", "5", "--worth", "0", "--json"))
    assert len([run for run in document["runs"] if run["steps"] == 10]) == 7
    assert len(seen) <= count + 1 + 1 + 2
    assert document["fit"]["weights"].keys() == {"python", "cpp"}
    # Without one that is worth its cost it ends with the first runs and the check.
    document = json.loads(printed("search", recipe, "--share", "0.25", "--runs", "5", "--worth", "1000", "--json"))
    assert len([run for run in document["runs"] if run["steps"] == 10]) == 6


def test_recipes_for_a_cluster_are_proposed_and_their_results_read_back(tmp_path, printed, refused) -> None:
    recipe, folder = write_recipe(tmp_path, TRAINING, mixing=None, objective=["cpp"]), tmp_path / "swarm"
    small = ["search", recipe, "--share", "0.25", "--most", "python=0.7", "--passes", "40"]
    assert "no folder of a run" in refused(*small, "--results", tmp_path)
    paths = json.loads(printed(*small, "--propose", "4", "--to", folder, "--json"))["recipes"]
    assert len(paths) == 4
    for path in paths:
        main(["train", path])
        assert yaml.safe_load(Path(path).read_text())["mixing"]["python"] <= 0.7
    more = ["--propose", "2", "--to", tmp_path / "more"]
    document = json.loads(printed(*small, "--results", folder, *more, "--json"))
    assert len(document["fit"]["mixtures"]) == 4
    assert document["weights"]["python"] <= 0.7
    assert [Path(path).is_file() for path in document["recipes"]] == [True, True]
    assert "--propose" in refused(*small, "--propose", "4")


def test_short_runs_of_a_growing_batch_take_their_share_of_the_tokens(tmp_path, printed) -> None:
    ramp = {"class_path": "Ramp", "init_args": {"final": 30, "over": 1600, "initial": 4}}
    training = {**NO_EVALUATION, "max_steps": -1, "learning_rate": 0.03}
    recipe = write_recipe(tmp_path, training, mixing=None, objective=["cpp"], batch_size=ramp, budget={"tokens": 3200})
    document = json.loads(printed("headroom", recipe, "--share", "0.25", "--json"))
    folder = next(path.parent for path in tmp_path.rglob("ledger") if "more_cpp" in str(path))
    run = Run(folder)
    share = document["steps"] / 50  # of the steps at the first batch size, a whole number
    tokens = run.clock["tokens"].iloc[-1]
    assert share * 3200 <= tokens < share * 3200 + 30 * 16
    assert run.clock["batch_size"].max() == 30
    assert run.evaluations["cpp"]["step"].tolist() == [run.clock["step"].iloc[-1]]


@pytest.mark.parametrize("given", [["--share", "0.2"], ["--share=0.2"], ["--json", "--runs", "3"], []])
def test_the_command_that_goes_on_has_the_options_of_this_one(given: list[str]) -> None:
    words = ["my recipe.yaml", *given, "--training.output_dir", "runs/head"]
    expected = "mixer search 'my recipe.yaml' --training.output_dir runs/head --share 0.2 --runs 16"
    assert search_again(words, 0.2, 16) == expected


SWARM = ["--to", "swarm", "--propose"]
BOUNDED = {"class_path": "Objective", "init_args": {"targets": ["cpp"], "bounds": {"python": 1.1}}}


SHARES = {"python": 0.25, "cpp": 0.75}
FLOOR = {"class_path": "Floor", "init_args": {"policy": {"class_path": "PiKE"}, "minimum": 0.1}}
BY_TOKENS = {"class_path": "Fixed", "init_args": {"weights": [1, 3], "unit": "tokens"}}


@pytest.mark.parametrize(
    ("command", "fields", "words", "said"),
    [
        ("headroom", {"objective": None}, ["--share", "0.1"], "objective: A search needs an objective"),
        ("headroom", {}, ["--share", "2"], "--share must be in [0.01, 1.0]"),
        ("headroom", {"objective": ["java"]}, ["--share", "0.1"], "['java'] are none of"),
        ("search", {"objective": BOUNDED}, [*SWARM, "1"], "--bounds python=LOSS"),
        ("search", {}, [*SWARM, "0"], "--propose must be 1 or more"),
        ("search", {}, ["--runs", "2"], "--runs must be 4 or more"),
        ("search", {}, [*SWARM, "2", "--most", "2"], "most.python must be in [0.0, 1.0]"),
        ("search", {"mixing": {"python": 1, "cpp": 0}}, [*SWARM, "1"], "two or more streams"),
        ("search", {"mixing": BY_TOKENS}, [*SWARM, "1", "--passes", "4"], "--passes"),
        ("search", {"mixing": FLOOR}, [*SWARM, "1", "--passes", "4"], "--passes"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run(command, fields, words, said, tmp_path, refused) -> None:
    recipe = write_recipe(tmp_path, TRAINING, **{"mixing": None, "objective": ["cpp"], **fields})
    assert said in refused(command, recipe, *words)


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ({"python": 1, "cpp": 3}, SHARES),
        ("Proportional", {"python": 0.6, "cpp": 0.4}),  # 60 and 40 rows
        (BY_TOKENS, {"class_path": "mixer.Fixed", "init_args": {"weights": SHARES, "unit": "tokens"}}),
    ],
)
def test_a_run_has_the_weights_that_the_recipe_starts_with_and_a_part_of_the_rows(
    mixing, expected, tmp_path, printed
) -> None:
    recipe = write_recipe(tmp_path, TRAINING, mixing=mixing, objective=["cpp"])
    # Of 40 steps 10 are the fewest, and a quarter.
    shown = printed("search", recipe, "--share", "0.05", "--propose", "1", "--to", tmp_path / "swarm")
    (path,) = [line.removeprefix("mixer train ") for line in shown.splitlines() if line.startswith("mixer train ")]
    proposed = yaml.safe_load(Path(path).read_text())
    assert proposed["mixing"] == expected
    assert [stream["rows_share"] for stream in proposed["streams"].values()] == [0.25, 0.25]


EVALUATED = {**TRAINING, "eval_strategy": "steps", "eval_steps": 4, "eval_on_start": True}
BOUND = {"class_path": "replay.ReplayBound", "init_args": {"max_rise": 0.02, "old": ["python"], "policy": "Uniform"}}


def test_a_bound_on_old_losses_is_in_force_and_an_adaptive_policy_is_named(tmp_path, printed) -> None:
    streams = {**RECIPE["streams"], "rust": RECIPE["streams"]["cpp"]}
    recipe = write_recipe(tmp_path, EVALUATED, mixing=BOUND, objective=["cpp"], streams=streams)
    words = ["--share", "0.25", "--propose", "1", "--to", tmp_path / "swarm", "--json"]
    document = json.loads(printed("search", recipe, *words))
    assert [note for note in document["notes"] if "ReplayBound" in note]
    own = yaml.safe_load(Path(document["recipes"][0]).read_text())
    assert own["mixing"]["init_args"]["max_rise"] == 0.02
    assert own["mixing"]["init_args"]["policy"]["init_args"]["weights"] == {"cpp": 0.5, "rust": 0.5}
    assert (own["training"]["eval_steps"], own["training"]["eval_on_start"]) == (1, True)
    main(["train", document["recipes"][0]])
    recipe = write_recipe(tmp_path, TRAINING, mixing="auto", objective=["cpp"])
    notes = json.loads(printed("search", recipe, *words))["notes"]
    assert [note for note in notes if "Safeguard, MarginalValue" in note]


def test_bounds_of_the_recipe_are_kept_as_losses_of_the_first_run(tmp_path, printed) -> None:
    recipe = write_recipe(tmp_path, TRAINING, mixing=None, objective=BOUNDED)
    document = json.loads(printed("headroom", recipe, "--share", "0.25", "--json"))
    assert document["broken"] == []
