"""What becomes of the steps of the search for weights when it is called again."""

import logging
import shutil
from pathlib import Path

import pytest
import yaml

from mixer.cli.entry import main
from tests.commands.doremi import fails, trained
from tests.commands.test_cli import RECIPE

__all__ = ["trained"]  # a fixture
SAVING = ["--training.save_strategy", "steps", "--training.save_steps", "1"]


def write_recipe(folder: Path) -> str:
    training = {**RECIPE["training"], "eval_strategy": "no", "eval_on_start": False, "max_steps": 2}
    content = {**RECIPE, "training": {**training, "output_dir": str(folder / "run")}}
    del content["mixing"]
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture(scope="module")
def _done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    main(["doremi", write_recipe(folder)])
    return folder


@pytest.fixture
def finished(_done: Path, tmp_path: Path) -> Path:
    """A folder with a recipe and a search that is at its end, called by that recipe alone."""
    shutil.copytree(_done / "run", tmp_path / "run")
    write_recipe(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--training.output_dir", "run"],
        ["--training.output_dir", "./run/../run/"],
        ["--mixing", "DoReMi"],
        ["--mixing", '{"class_path": "mixer.DoReMi"}'],
        ["--training.logging_steps", "1", *SAVING],
    ],
)
def test_the_same_recipe_told_otherwise_finds_the_steps_at_their_end(
    finished: Path, arguments: list[str], trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    main(["doremi", "recipe.yaml", *arguments])
    assert trained == []


def test_a_main_run_with_other_logs_follows_finished_steps(finished: Path, trained: list[str]) -> None:
    main(["doremi", str(finished / "recipe.yaml"), "--training.logging_steps", "1", "--train"])
    assert trained == ["main"]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_recipe_of_a_finished_step_that_cannot_be_read_is_told_with_a_way_out(
    finished: Path, share: float, capsys: pytest.CaptureFixture[str], trained: list[str]
) -> None:
    file = finished / "run" / "proxy" / "recipe.yaml"
    text = file.read_text()
    file.write_text(text[: int(share * len(text))].rstrip("\n"))
    message = fails(capsys, str(finished / "recipe.yaml"))
    assert f"{file} cannot be read (it " in message
    assert "delete that file to continue" in message
    file.unlink()
    main(["doremi", str(finished / "recipe.yaml")])
    assert trained == []


def test_a_note_of_a_finished_step_that_cannot_be_read_is_told_with_a_way_out(
    finished: Path, capsys: pytest.CaptureFixture[str], trained: list[str]
) -> None:
    file = finished / "run" / "proxy" / "finished.json"
    file.write_text('{"weights')
    message = fails(capsys, str(finished / "recipe.yaml"))
    assert f"{file} cannot be read" in message
    file.unlink()
    main(["doremi", str(finished / "recipe.yaml")])
    assert trained == ["proxy"]


@pytest.mark.parametrize("left", ["", "model:\n  config:\n    mod", None])
def test_a_step_that_left_nothing_starts_over_and_says_so(
    finished: Path, left: str | None, trained: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = finished / "run" / "proxy"
    text = (proxy / "recipe.yaml").read_text()
    shutil.rmtree(proxy)
    proxy.mkdir()
    (proxy / "recipe.yaml").write_text(text if left is None else left)
    with caplog.at_level(logging.WARNING, "mixer"):
        # Of another recipe it could hold as little.
        main(
            [
                "doremi",
                str(finished / "recipe.yaml"),
                "--mixing",
                '{"class_path": "DoReMi", "init_args": {"step_size": 2}}',
            ]
        )
    assert trained == ["proxy"]
    assert f"{proxy} was started before, but has no complete checkpoint: it starts over." in caplog.text
    assert yaml.safe_load((proxy / "recipe.yaml").read_text())["mixing"]["init_args"]["step_size"] == 2


def test_a_step_goes_on_with_other_logs(finished: Path, trained: list[str], caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(finished / "run" / "proxy")
    command = ["doremi", str(finished / "recipe.yaml"), *SAVING]
    main(command)
    found = (finished / "run" / "weights.json").read_bytes()
    (finished / "run" / "proxy" / "finished.json").unlink()
    (finished / "run" / "proxy" / "checkpoint-2" / "complete.json").unlink()
    with caplog.at_level(logging.WARNING, "mixer"):
        main([*command, "--training.logging_steps", "1"])
    assert trained == ["proxy", "proxy"]
    assert "starts over" not in caplog.text
    assert "would start over" not in caplog.text
    assert (finished / "run" / "weights.json").read_bytes() == found


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "training.save_strategy is 'no'"),
        ([*SAVING, "--training.save_only_model", "true"], "training.save_only_model is set"),
    ],
)
def test_a_step_without_checkpoints_is_told_of_at_its_start(
    finished: Path, arguments: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(finished / "run" / "proxy")
    with caplog.at_level(logging.WARNING, "mixer"):
        main(["doremi", str(finished / "recipe.yaml"), *arguments])
    assert (
        f"proxy trains without checkpoints to resume from ({reason}): if interrupted, it would start over."
        in caplog.text
    )
    assert "started before" not in caplog.text


def test_a_step_that_could_not_be_built_can_be_begun_by_a_mended_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: list[str]
) -> None:
    recipe = write_recipe(tmp_path)
    fails(capsys, recipe, "--proxy_model.config", '{"hidden_size": 8}')
    main(["doremi", recipe, "--training.max_steps", "1"])
    assert trained == ["reference", "proxy"]


def test_a_recipe_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(descriptor: int) -> None:
        raise OSError("no space left on device")

    recipe = write_recipe(tmp_path)
    monkeypatch.setattr("os.fsync", crash)
    assert "no space left on device" in fails(capsys, recipe)
    assert not (tmp_path / "run" / "reference" / "recipe.yaml").exists()
