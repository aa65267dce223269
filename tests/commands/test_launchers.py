"""Each way of starting `mixer train` on two ranks trains the very same model."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load, load_file

from mixer import Ledger
from mixer.cli.entry import main
from tests.ranks.launch import ROOT, free_port, launch_nodes

RECIPE: dict[str, Any] = {
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 64,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
    },
    "batch_size": 6,
    "mixing": "Uniform",
    "training": {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "logging_steps": 2,
        "save_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    },
}
_NOTHING: Mapping[str, str] = MappingProxyType({})


def _command(folder: Path, run: str) -> list[str]:
    """The command after `python -m`; rank 1 reads its fifth sample of each stream in step 4, after a checkpoint."""
    streams = {
        name: {
            "factory": "tests.commands.killed_once.source",
            "arguments": {"seed": seed, "marker": str(folder / "kill"), "after": 5},
        }
        for seed, name in enumerate("ab")
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "streams": streams}))
    return ["mixer", "train", str(path), "--training.output_dir", str(folder / run)]


def _start(*command: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _end(*processes: subprocess.Popen[str]) -> list[str]:
    """Waits for the processes and gives what they wrote to the standard error, after their status."""
    return [f"{process.communicate(timeout=300)[1]}\nstatus {process.returncode}" for process in processes]


def _by_srun(*command: str, **more: str) -> list[subprocess.Popen[str]]:
    """Starts two ranks with the variables that a job script makes of Slurm's."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **more}
    slurm = {"SLURM_STEP_NUM_TASKS": "2"}
    return [
        _start(*command, **slurm, **shared, SLURM_PROCID=str(rank), RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(2)
    ]


def _assert_close(run: Path, model: bytes) -> None:
    """Allows for rounding: accelerate sets the number of threads itself."""
    expected, found = load(model), load_file(run / "model.safetensors")
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launchers")


@pytest.fixture(scope="module")
def model(folder: Path) -> bytes:
    """The model that two ranks end with, by variables set by hand."""
    ends = _end(*_by_srun(*_command(folder, "srun")))
    assert [end.splitlines()[-1] for end in ends] == ["status 0"] * 2, ends
    return (folder / "srun" / "model.safetensors").read_bytes()


def test_ranks_without_a_launcher_share_the_batches(folder: Path, model: bytes) -> None:
    rows = Ledger(folder / "srun" / "ledger").to_pandas()
    assert rows.groupby("step")["count"].sum().tolist() == [6] * 6
    assert (folder / "srun" / "checkpoint-6" / "rng_state_1.pth").is_file()


def test_accelerate_launches_by_its_configuration_file(folder: Path, model: bytes) -> None:
    config = folder / "accelerate.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "compute_environment": "LOCAL_MACHINE",
                "distributed_type": "MULTI_CPU",
                "use_cpu": True,
                "num_machines": 1,
                "num_processes": 2,
                "main_process_port": free_port(),
                "mixed_precision": "no",
            }
        )
    )
    launcher = ("accelerate.commands.launch", "--config_file", str(config), "-m")
    (end,) = _end(_start(*launcher, *_command(folder, "accelerate")))
    assert end.endswith("status 0"), end[-4000:]
    _assert_close(folder / "accelerate", model)


@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
def test_accelerate_launches_with_an_engine(folder: Path, model: bytes, engine: str) -> None:
    if engine == "deepspeed":
        pytest.importorskip("deepspeed")
    options = ["--config_file", str(ROOT / "examples" / "accelerate" / f"{engine}.yaml")]
    options += ["--fsdp_state_dict_type", "SHARDED_STATE_DICT"] if engine == "fsdp" else []
    command = [*_command(folder, engine)[1:], "--training.use_cpu", "false", "--training.max_grad_norm", "1.0"]
    module = ("-m", "tests.ranks.workers.mixer_on_engines")
    port = ("--main_process_port", str(free_port()))
    (end,) = _end(_start("accelerate.commands.launch", *options, *port, *module, *command))
    assert end.endswith("status 0"), end[-4000:]
    _assert_close(folder / engine, model)  # whole, though checkpoints of FSDP are shards here
    shards = {"fsdp": "pytorch_model_fsdp_0", "deepspeed": "global_step6"}
    assert (folder / engine / "checkpoint-6" / shards[engine]).is_dir()


def test_two_agents_of_torchrun_train_by_a_recipe(folder: Path, model: bytes) -> None:
    commands = (["-m", *_command(folder, f"node-{node}"), "--training.save_on_each_node", "true"] for node in range(2))
    nodes = launch_nodes(*commands)
    assert [node.returncode for node in nodes] == [0, 0], nodes[0].stderr[-4000:] + nodes[1].stderr[-4000:]
    assert (folder / "node-0" / "model.safetensors").read_bytes() == model
    assert (folder / "node-1" / "model.safetensors").read_bytes() == model
    for name in ("ledger", "recipe.yaml"):
        assert [(folder / f"node-{node}" / name).exists() for node in range(2)] == [True, False]


def test_a_rank_that_is_killed_is_started_anew_and_the_run_goes_on(folder: Path, model: bytes) -> None:
    (folder / "kill").touch()
    launcher = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max_restarts", "1", "-m")
    command = (*launcher, *_command(folder, "elastic"), "--resume", "auto")
    (end,) = _end(_start(*command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    assert end.endswith("status 0"), end[-4000:]
    assert not (folder / "kill").exists()
    assert "Resumes from" in end
    assert (folder / "elastic" / "model.safetensors").read_bytes() == model
    whole, elastic = (Ledger(folder / run / "ledger").to_pandas() for run in ("srun", "elastic"))
    assert elastic.equals(whole)


def test_ranks_with_other_options_end_in_an_error_that_names_them(folder: Path) -> None:
    port = str(free_port())
    command = _command(folder, "different")
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": "0"}
    own = (("--batch_size", "6"), ("--batch_size", "8", "--training.seed", "3"))
    ends = _end(*(_start(*command, *own[rank], **variables, RANK=str(rank)) for rank in range(2)))
    for end in ends:
        assert end.endswith("status 2"), end[-4000:]
        assert "on rank 1 batch_size is 8 instead of 6, training.seed is 3 instead of 42" in end
    assert not (folder / "different").exists()


def _fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*_command(folder, "none")[1:], "--training.ddp_timeout", "1"])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_ranks_that_do_not_come_are_waited_for_so_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    message = _fails(folder, capsys)
    assert f"mixer train: rank 0 waited 1 seconds for 3 ranks at 127.0.0.1:{port}, but not all connected" in message
    assert "1/3 clients joined" in message
    assert "training.ddp_timeout" in message
    monkeypatch.delenv("MASTER_PORT")
    assert "WORLD_SIZE=3, but MASTER_PORT missing" in _fails(folder, capsys)


def test_tasks_of_srun_that_know_nothing_of_each_other_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert "srun started 2 tasks, and each would train separately" in _fails(folder, capsys)


def test_restarts_with_the_store_of_ranks_that_ended_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    torchrun = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {**variables, **torchrun}.items():
        monkeypatch.setenv(name, value)
    message = _fails(folder, capsys)
    assert "torchrun may restart ranks (--max_restarts 3)" in message
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in message
