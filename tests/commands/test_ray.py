"""Ray Train starts the ranks: a MixingTrainer reports to it and goes on from a checkpoint that it keeps."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.train", reason="the extra ray")

os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")  # two workers import torch on busy cores

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from transformers import TrainerCallback

from mixer import Ledger, LossChange
from mixer.mixture.streams import as_streams
from tests.ranks.launch import ROOT

pytestmark = pytest.mark.full
_STEPS = 6


def _train(config: dict[str, Any]) -> None:
    import ray.train
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

    from mixer import MixingTrainer
    from tests.helpers import Tokens, arguments, build_model, three_streams

    class FailsOnce(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            marker = Path(config["fail"])
            if state.global_step == 4 and args.process_index == 1 and marker.exists():
                marker.unlink()
                raise OSError("the network is gone")

    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    trainer = MixingTrainer(
        build_model("gpt2"),
        arguments(config["folder"], max_steps=_STEPS, optim="adamw_torch", **options),
        train_dataset=three_streams(),
        eval_dataset={name: Tokens(4, seed) for seed, name in enumerate("abc")},
        batch_size=6,
        mixing=LossChange(num_warmup_observations=1),
        callbacks=[RayTrainReportCallback(), FailsOnce()],
    )
    trainer = prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
        trainer.train(resume_from_checkpoint=folder and f"{folder}/{RayTrainReportCallback.CHECKPOINT_NAME}")


def _fit(folder: Path, name: str) -> ray.train.Result:
    return TorchTrainer(
        _train,
        train_loop_config={"folder": str(folder / name / "output"), "fail": str(folder / name / "fail")},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=f"ray-{name}", storage_path=str(folder), failure_config=FailureConfig(1)),
    ).fit()


def test_a_run_reports_to_ray_and_goes_on_after_a_failure_from_the_checkpoint_that_it_keeps(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Without the address raylet ends by itself where the host's own one cannot be reached.
    own = {"address": "local", "num_cpus": 2, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(**own, runtime_env={"env_vars": environment})  # not one that happens to run on this machine
    try:
        whole = _fit(tmp_path, "whole")
        (tmp_path / "failed").mkdir()
        (tmp_path / "failed" / "fail").touch()
        failed = _fit(tmp_path, "failed")
        with pytest.raises(TypeError, match="Stream 'a': dataset needs"):
            as_streams({"a": ray.data.range(8).iterator()})  # a shard of its data
    finally:
        ray.shutdown()
    assert whole.error is failed.error is None
    assert whole.metrics["step"] == _STEPS
    assert {"eval_loss", "eval_worst_loss", "loss/a", "coverage/b"} <= whole.metrics.keys()
    assert len(whole.best_checkpoints) == _STEPS // 2
    names = {path.name for path in Path(whole.checkpoint.path, "checkpoint").iterdir()}
    assert {"complete.json", "mixing.json", "rng_state_0.pth", "rng_state_1.pth", "model.safetensors"} <= names
    assert not (tmp_path / "failed" / "fail").exists()
    ends = (Path(end.checkpoint.path, "checkpoint", "model.safetensors").read_bytes() for end in (whole, failed))
    assert len(set(ends)) == 1
    ledgers = (Ledger(tmp_path / name / "output" / "ledger").to_pandas() for name in ("whole", "failed"))
    assert next(ledgers).equals(next(ledgers))
