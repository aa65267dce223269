"""Recipes whose gradients are probed, as a user runs them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer import Ledger
from mixer.cli.entry import main
from tests.commands.test_cli import RECIPE


def written(folder: Path, **changes: Any) -> str:
    training = {**RECIPE["training"], "max_steps": 6, "eval_strategy": "no", "output_dir": str(folder / "run")}
    content = {**RECIPE, "training": {**training, "eval_on_start": False}, **changes}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "recipe.yaml")


def steps_in(folder: Path) -> list[int]:
    found: list[int] = Ledger(folder / "run" / "ledger").gradients()["step"].unique().tolist()
    return found


def test_one_word_makes_a_mixture_go_by_gradients(tmp_path: Path) -> None:
    recipe = written(tmp_path, mixing="Uniform")
    main(["train", recipe])
    assert steps_in(tmp_path) == []
    main(["train", recipe, "--mixing", "PiKE", "--mixing.interval_steps", "2"])
    assert steps_in(tmp_path) == [2, 4, 6]
    weights = Ledger(tmp_path / "run" / "ledger").to_pandas()["weight"]
    assert (weights[:4] == 0.5).all()
    assert (weights[4:] != 0.5).all()


def test_policies_by_gradients_have_defaults(tmp_path: Path) -> None:
    for word in ("PiKE", "BalancedPiKE"):
        main(["train", written(tmp_path, mixing=word)])
        assert steps_in(tmp_path) == []  # the twentieth step would be measured


def test_a_recipe_says_how_gradients_are_measured(tmp_path: Path) -> None:
    recipe = written(tmp_path, mixing="Uniform", probe={"mode": "sketch", "interval_steps": 3})
    main(["train", recipe])
    assert steps_in(tmp_path) == [3, 6]
    assert (Ledger(tmp_path / "run" / "ledger").gradients()["gram_error"].map(max) > 0).all()
    main(["train", recipe, "--probe.interval_steps", "2", "--probe.layers", '["*.mlp.*"]'])
    assert steps_in(tmp_path) == [2, 4, 6]
    saved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["probe"]
    assert (saved["interval_steps"], saved["layers"], saved["mode"]) == (2, ["*.mlp.*"], "sketch")


def test_a_schedule_by_noise_takes_the_streams_apart(tmp_path: Path) -> None:
    schedule = {"class_path": "NormTest", "init_args": {"interval_steps": 2, "initial": 9, "maximum": 18}}
    main(["train", written(tmp_path, batch_size=schedule)])
    assert steps_in(tmp_path) == [2, 4, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--probe.interval_steps", "0"], "probe: probe.interval_steps must be a whole number of at least 1"),
        (["--probe.mode", "fast"], "probe.mode: Expected a typing.Literal['auto', 'exact', 'sketch']. Got value: fast"),
        (["--probe.intervals", "3"], "probe.intervals: there is no field 'intervals'"),
        (["--probe.layers", '["nothing"]', "--probe.interval_steps", "1"], "layers=['nothing'] matches no trainable"),
        (["--mixing", "PiKE", "--probe.variance", "false"], "probe.variance=False, but mixing=PiKE needs the variance"),
        (["--probe.mode", "exact", "--probe.interval_steps", "1"], "probe.mode='exact' measures"),
        (["--mixing", "PiKE", "--mixing.interval_steps", "0"], "interval_steps must be a whole number"),
    ],
)
def test_wrong_input_names_the_field(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", written(tmp_path, mixing="Uniform"), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
