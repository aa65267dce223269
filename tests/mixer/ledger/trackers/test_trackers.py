"""Trackers with their own local stores, as a run leaves them."""

import importlib
import importlib.util
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from mixer import MixingTrainer
from tests.helpers import Tokens
from tests.mixer.ledger.trackers import offline_runs
from tests.mixer.trainer.runs import logged, make

pytestmark = pytest.mark.full
STREAMS = {"math (en)": Tokens(20, 1), "math [en]": Tokens(11, 2), "c": Tokens(6, 3)}
RECIPE = {"mixing": "Uniform"}


def _installed() -> list[str]:
    known = [name for name in ("tensorboard", "wandb", "mlflow", "trackio") if importlib.util.find_spec(name)]
    return [name for name in known if name != "trackio" or Version(version(name)) >= Version("0.30")]


def _needs(name: str) -> None:
    if name not in _installed():
        pytest.skip(f"the extra `trackers` is not installed: no {name}, or one that is too old")


def _put_trackio(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Trackio reads its folder from the environment as it is imported, which another test may have done."""
    if "trackio" not in _installed():
        return
    importlib.import_module("trackio")
    folders = {"TRACKIO_DIR": folder, "MEDIA_DIR": folder / "media", "ARTIFACTS_DIR": folder / "artifacts"}
    for module in [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "trackio"]:
        for name in folders.keys() & vars(module).keys():
            patch.setattr(module, name, folders[name])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, MixingTrainer]]:
    """A run of four steps and two evaluations that told all trackers that are installed."""
    folder, patch = tmp_path_factory.mktemp("trackers"), pytest.MonkeyPatch()
    patch.chdir(folder)
    places = {"WANDB_DIR": folder, "TRACKIO_DIR": folder / "trackio", "TENSORBOARD_LOGGING_DIR": folder / "tensorboard"}
    places |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    for name, value in places.items():
        patch.setenv(name, str(value))
    _put_trackio(folder / "trackio", patch)
    connect = socket.socket.connect

    def only_local(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            pytest.fail(f"something wanted to reach {address}")
        return connect(self, address)

    patch.setattr(socket.socket, "connect", only_local)
    options = {"report_to": _installed(), "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}
    options |= {"train_dataset": STREAMS, "eval_dataset": STREAMS, "mixing": [3, 2, 1]}
    trainer = make(folder / "out", max_steps=4, project="project", **options)
    trainer.recipe_text = "mixing: Uniform\n"
    trainer.train()
    if "wandb" in _installed():
        importlib.import_module("wandb").finish()
    yield folder, trainer
    patch.undo()


def test_tensorboard(run: tuple[Path, MixingTrainer]) -> None:
    _needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, trainer = run
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    scalars = set(events.Tags()["scalars"])
    assert {"train/loss", "train/learning_rate", "eval/loss", "eval/c_loss"} <= scalars
    assert {"loss/c", "loss/math__en_", "loss/math__en__2", "weight/c", "coverage/c", "count/c"} <= scalars
    assert {"eval_loss/c", "clock/epoch", "clock/samples", "clock/tokens", "clock/batch_size"} <= scalars
    assert not [name for name in scalars if name.startswith("train/") and "/" in name[6:]]
    assert logged(trainer, "batch_size") == [8, 8]  # users see the names that they know
    written = [(event.step, event.value) for event in events.Scalars("loss/math__en__2")]
    assert written == [(2, pytest.approx(logged(trainer, "loss/math [en]")[0])), (4, pytest.approx(written[1][1]))]
    told = events.Tensors("mixture/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"num_samples": 11' in told
    assert '"recipe": {\n    "mixing": "Uniform"' in told


def test_weights_and_biases(run: tuple[Path, MixingTrainer]) -> None:
    _needs("wandb")
    folder, trainer = run
    path = next(folder.glob("wandb/offline-run-*/run-*.wandb"))
    offline_runs.wait_for_the_end(path)
    rows = [row for row in offline_runs.logged(path, "history") if "loss/c" in row]
    assert [row["train/global_step"] for row in rows] == [2, 4]
    # In one row: all of it can be drawn over samples or tokens.
    assert {"train/loss", "train/learning_rate", "loss/math (en)", "weight/c", "clock/batch_size"} <= rows[0].keys()
    assert [row["clock/samples"] for row in rows] == [16, 32]
    assert [row["loss/math [en]"] for row in rows] == logged(trainer, "loss/math [en]")
    evaluations = [row for row in offline_runs.logged(path, "history") if "eval_loss/c" in row]
    assert [row["eval/c_loss"] for row in evaluations] == logged(trainer, "eval_c_loss")
    assert [row["clock/samples"] for row in evaluations] == [16, 32]
    config = {name: value for part in offline_runs.logged(path, "config") for name, value in part.items()}
    assert config["recipe"] == RECIPE
    assert config["mixture"]["streams"]["c"]["num_samples"] == 6
    assert config["learning_rate"] == 0.1  # the Trainer's


def test_mlflow(run: tuple[Path, MixingTrainer]) -> None:
    _needs("mlflow")
    mlflow = importlib.import_module("mlflow")
    folder, trainer = run
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    found = mlflow.search_runs(output_format="list", search_all_experiments=True)
    assert len(found) == 1
    metrics = found[0].data.metrics
    assert {"loss", "eval_loss", "eval_c_loss"} <= metrics.keys()
    assert {"stream_loss/c", "stream_eval_loss/c", "weight/math _en_", "weight/math _en__2"} <= metrics.keys()
    assert metrics["clock/samples"] == 32
    assert metrics["stream_loss/c"] == logged(trainer, "loss/c")[-1]
    described = mlflow.artifacts.load_dict(f"runs:/{found[0].info.run_id}/mixture.json")
    assert (described["recipe"], described["mixture"]["mixing"]["class_path"]) == (RECIPE, "Fixed")
    assert found[0].info.status == "FINISHED"


def test_trackio(run: tuple[Path, MixingTrainer]) -> None:
    _needs("trackio")
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    trainer = run[1]
    (name,) = storage.get_runs("project")
    rows = storage.get_logs("project", name)
    streams = [row for row in rows if "loss/c" in row]
    assert [row["train/global_step"] for row in streams] == [2, 4]
    assert [row["loss/math [en]"] for row in streams] == logged(trainer, "loss/math [en]")
    assert [row["train/loss"] for row in rows if "train/loss" in row] == logged(trainer, "loss")
    assert [row["eval_loss/c"] for row in rows if "eval_loss/c" in row] == logged(trainer, "eval_c_loss")
    config = storage.get_run_config("project", name)
    assert config["recipe"] == RECIPE
    assert config["mixture"]["streams"]["c"]["num_samples"] == 6
