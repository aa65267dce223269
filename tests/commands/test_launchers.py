"""Each way of starting `mixer train` on two ranks trains the very same model."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file
from torch.utils.data import Dataset

from mixer import Ledger
from tests.commands.recipes import LLAMA, ROOT, on_a_rank, write_recipe
from tests.helpers import Tokens
from tests.ranks.launch import free_port
from tests.ranks.warm import run_warm

TRAINING = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "no", "eval_on_start": False}
MODEL = {"config": {**LLAMA, "vocab_size": 64}}


class _KilledOnce(Dataset[dict[str, Any]]):
    def __init__(self, rows: Tokens, marker: Path):
        self._rows, self._marker = rows, marker

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        is_marked = os.environ.get("RANK") == "1" and self._marker.exists()
        if is_marked and any(self._marker.parent.glob("elastic/checkpoint-*/complete.json")):
            self._marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._rows[index]


def source(seed: int, marker: str) -> Dataset[dict[str, Any]]:
    """Rows of tokens; reading one after a checkpoint kills rank 1, once, where there is a file `marker`."""
    return _KilledOnce(Tokens(40, seed), Path(marker))


def _command(folder: Path, run: str) -> list[str]:
    """The command after `python -m`."""
    streams = {
        name: {"factory": f"{__name__}.source", "arguments": {"seed": seed, "marker": str(folder / "kill")}}
        for seed, name in enumerate("ab")
    }
    recipe = write_recipe(folder, TRAINING, model=MODEL, streams=streams, mixing="Uniform", batch_size=6)
    return ["mixer", "train", recipe, "--training.output_dir", str(folder / run)]


def _end(*command: str, **variables: str) -> str:
    """Runs a command; gives what it wrote to the standard error, and its status."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    command = (sys.executable, "-m", *command)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return f"{done.stderr}\nstatus {done.returncode}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launchers")


@pytest.fixture(scope="module")
def model(folder: Path) -> bytes:
    """The model that two ranks end with, by variables set by hand, as a job script makes them of Slurm's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_STEP_NUM_TASKS", "2")
        codes, output = run_warm(folder, partial(on_a_rank, _command(folder, "srun")[1:]), by_hand=True)
    assert codes == [0, 0], output
    assert Ledger(folder / "srun" / "ledger").to_pandas().groupby("step")["count"].sum().tolist() == [6] * 6
    assert (folder / "srun" / "checkpoint-6" / "rng_state_1.pth").is_file()
    return (folder / "srun" / "model.safetensors").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize(("engine", "shards"), [("fsdp", "pytorch_model_fsdp_0"), ("deepspeed", "global_step6")])
def test_accelerate_launches_with_an_engine(folder: Path, model: bytes, engine: str, shards: str) -> None:
    if engine == "deepspeed":
        pytest.importorskip("deepspeed")
    options = ["--config_file", str(ROOT / "examples" / "accelerate" / f"{engine}.yaml")]
    options += ["--fsdp_state_dict_type", "SHARDED_STATE_DICT"] if engine == "fsdp" else []
    command = [*_command(folder, engine)[1:], "--training.use_cpu", "false", "--training.max_grad_norm", "1.0"]
    port = ("--main_process_port", str(free_port()))
    module = ("-m", "tests.ranks.mixer_on_engines")
    end = _end("accelerate.commands.launch", *options, *port, *module, *command)
    assert end.endswith("status 0"), end[-4000:]
    expected, found = load(model), load_file(folder / engine / "model.safetensors")
    for name, weights in expected.items():  # whole, though checkpoints of FSDP are shards here
        torch.testing.assert_close(found[name], weights, rtol=0, atol=1e-6)
    assert (folder / engine / "checkpoint-6" / shards).is_dir()


@pytest.mark.full
def test_a_rank_that_is_killed_is_started_anew_and_the_run_goes_on(folder: Path, model: bytes) -> None:
    (folder / "kill").touch()
    launcher = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max_restarts", "1", "-m")
    command = (*launcher, "tests.ranks.quick_mixer", *_command(folder, "elastic")[1:], "--resume", "auto")
    end = _end(*command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert end.endswith("status 0"), end[-4000:]
    assert not (folder / "kill").exists()
    assert "Resumes from" in end
    assert (folder / "elastic" / "model.safetensors").read_bytes() == model
    whole, elastic = (Ledger(folder / run / "ledger").to_pandas() for run in ("srun", "elastic"))
    assert elastic.equals(whole)


RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
RESTARTS = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "1"}


WAITED = r"mixer train: rank 0 waited 1 seconds for 3 ranks at 127.0.0.1:.* but not all connected.*1/3 clients joined"
CANNOT_MEET = {
    "no port": (RANK, "WORLD_SIZE=3, but MASTER_PORT missing"),
    "nobody comes": ({**RANK, "MASTER_PORT": str(free_port())}, f"{WAITED}.*training.ddp_timeout"),
    "srun": ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS=2: each task of srun would train separately"),
    "restarts": ({**RANK, **RESTARTS}, r"max_restarts=3: .*TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
}


@pytest.mark.parametrize("name", CANNOT_MEET)
def test_ranks_that_cannot_meet_are_refused(tmp_path, monkeypatch, refused, name) -> None:
    variables, message = CANNOT_MEET[name]
    monkeypatch.delenv("MASTER_PORT", raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert re.search(message, refused(*_command(tmp_path, "none")[1:], "--training.ddp_timeout", "1"))
