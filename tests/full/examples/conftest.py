"""The data of the examples, written once, in a folder in which commands run as a user runs them in the repository."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

import examples.data

ROOT = Path(__file__).parents[3]
Run = Callable[..., None]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data/examples`, of which the base model is hardly trained."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["data.py", str(folder / "data" / "examples"), "--base_steps", "25"])
        examples.data.main()
    return folder


@pytest.fixture
def world(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder: with the data, without runs; what `datasets` keeps goes there too."""
    (tmp_path / "data").symlink_to(written / "data")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", written / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_script(world: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script of the examples as `python examples/NAME.py --OPTION VALUE ...` does."""

    def run(name: str, **options: object) -> None:
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")

    return run
