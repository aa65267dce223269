"""Options that mean to a mixture what they mean to the Trainer, both being run; and those that mean something else."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import ConcatDataset, default_collate
from transformers import Trainer, TrainerCallback

from docs.site.argument_behaviour import AS_BY_THE_TRAINER
from docs.site.options_page import option_names
from mixer import MixingTrainer, Probing, Stream
from mixer.distributed.collectives import RankSync
from tests.helpers import MODEL_DATA, InOrder, Tokens, arguments, build_model, weights_of
from tests.mixer.trainer.runs import as_drawn, make, train

KIND = "sequence-classification"
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager", "torch_compile_mode": None}
OLDER = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}
CASES: dict[str, dict[str, Any]] = {
    "adam": {"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-3, "weight_decay": 0.1},
    "other optimizer and schedule": {"optim": "rmsprop", "optim_args": "momentum=0.5"}
    | {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    "loss": {"label_smoothing_factor": 0.2, "max_grad_norm": 0.1},
    "bf16": {"bf16": True, "bf16_full_eval": True},
    "fp16": {"fp16_full_eval": True},
    "checkpointing": {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}},
    "older words": OLDER,
    "resources": {"use_cache": True, "torch_empty_cache_steps": 2, "skip_memory_metrics": False},
    "logging": {"logging_strategy": "epoch", "log_level": "error", "include_num_input_tokens_seen": "all"},
    "first log": {"logging_first_step": True, "logging_steps": 4, "include_num_input_tokens_seen": "non_padding"},
    "evaluation": BY_STEPS
    | {"eval_delay": 3, "per_device_eval_batch_size": 3, "eval_accumulation_steps": 1}
    | {"include_for_metrics": ["inputs"], "eval_use_gather_object": True},
    "evaluation by batches": {"eval_strategy": "epoch", "batch_eval_metrics": True, "label_names": ["labels"]},
    "losses alone": {"eval_strategy": "epoch", "prediction_loss_only": True, "remove_unused_columns": False},
    "the best": BY_STEPS
    | {"save_strategy": "best", "metric_for_best_model": "right", "greater_is_better": False}
    | {"load_best_model_at_end": True, "save_only_model": True},
    "determinism": {"full_determinism": True},
}


def _share_right(prediction: Any, compute_result: bool = True) -> dict[str, float]:
    scores, labels = torch.as_tensor(prediction.predictions), torch.as_tensor(prediction.label_ids)
    return {"right": float((scores.argmax(-1) == labels).double().mean()), "inputs": prediction.inputs is not None}


def _run(trainer_class: type[Trainer], folder: Path, changes: dict[str, Any]) -> Trainer:
    data: Any = Tokens(21, 1, KIND)
    args = arguments(folder, **{"per_device_train_batch_size": 4, "max_steps": -1, "num_train_epochs": 1, **changes})
    if trainer_class is Trainer:  # it gets the samples in our order
        args.train_sampling_strategy = "sequential"
        data = as_drawn(data)
    metrics, sets = None if args.prediction_loss_only else _share_right, Tokens(7, 9, KIND)
    options = {"train_dataset": data, "eval_dataset": sets, "compute_metrics": metrics}
    trainer = trainer_class(build_model("bert-classifier"), args, **options)
    trainer.train()
    return trainer


@pytest.fixture
def _no_determinism_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, "0")
    yield
    torch.use_deterministic_algorithms(False)


def _is_time_or_memory(key: str) -> bool:
    return key.endswith(("_runtime", "_per_second", "_delta")) or "_mem_" in key


@pytest.mark.usefixtures("_no_determinism_left")
@pytest.mark.parametrize("name", CASES)
def test_both_end_alike(name: str, tmp_path: Path) -> None:
    changes = CASES[name]
    if not changes.keys() <= set(option_names()):
        pytest.skip("not in this version of transformers")
    stock, ours = (_run(kind, tmp_path / kind.__name__, changes) for kind in (Trainer, MixingTrainer))
    assert torch.equal(weights_of(stock.model), weights_of(ours.model))
    for mine, theirs in zip(ours.state.log_history, stock.state.log_history, strict=True):
        for key in theirs:
            assert _is_time_or_memory(key) or mine[key] == pytest.approx(theirs[key], abs=1e-6)


def test_what_is_run_here_is_said_to_be_alike() -> None:
    others = {"torch_compile", "logging_steps", "eval_steps", "metric_for_best_model", "lr_scheduler_type", "optim"}
    others |= {"eval_strategy", "save_strategy", "logging_strategy"}  # "epoch" is refused for some streams
    assert {key for changes in CASES.values() for key in changes} - others <= AS_BY_THE_TRAINER


BY_STREAM: list[Any] = [
    *((model, changes) for model in ("llama", "bert-classifier") for changes in ({}, CASES["loss"], {"bf16": True})),
    ("llama", {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}),
    ("llama", OLDER),
    # With the causal model the Trainer forgets to shift its labels here.
    pytest.param("bert-classifier", {**COMPILED, "label_smoothing_factor": 0.2}, marks=pytest.mark.full),
    ("llama", {"neftune_noise_alpha": 1e-6}),
    ("llama", {"optim": "adamw_torch_fused", "learning_rate": 1e-3, "adam_epsilon": 1e-3}),
    ("llama", {"optim": "adafactor", "learning_rate": 1e-3}),
    ("llama", {"eval_on_start": True, **BY_STEPS}),
    ("llama", {"auto_find_batch_size": True}),
]


class _Reference(TrainerCallback):  # type: ignore[misc]
    """Computes, before each step, the loss of every data set at once, as the Trainer would."""

    def __init__(self, trainer: Trainer, streams: dict[str, Tokens]):
        self.trainer, self.losses = trainer, []
        self.batches = [default_collate([*data]) for data in streams.values()]  # type: ignore[call-overload]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        plain = getattr(model, "_orig_mod", model)
        with torch.no_grad(), self.trainer.compute_loss_context_manager():
            self.losses += [float(self.trainer.compute_loss(plain, dict(batch))) for batch in self.batches]


@pytest.mark.parametrize(("model", "changes"), BY_STREAM)
def test_steps_and_losses_are_those_of_whole_data_sets(model: str, changes: dict[str, Any], tmp_path: Path) -> None:
    streams = {key: Tokens(size, seed, MODEL_DATA[model]) for key, size, seed in (("a", 9, 1), ("b", 6, 2))}

    def made(kind: Any, size: int, data: Any, sampling: str = "random", **fields: Any) -> Any:
        options = {"learning_rate": 0.05, "lr_scheduler_type": "constant", "train_sampling_strategy": sampling}
        args = arguments(tmp_path / str(size), **{**options, "per_device_train_batch_size": size, **changes})
        return kind(build_model(model), args, train_dataset=data, eval_dataset=streams, **fields)

    whole = made(Trainer, 15, ConcatDataset([*streams.values()]), "sequential")
    whole.train()
    reference = _Reference(made(Trainer, 8, None), streams)
    ours = made(MixingTrainer, 4, streams, batch_size=15, callbacks=[reference])
    ours.train()
    tolerance = 2e-2 if "bf16" in changes else 2e-5
    assert ours.ledger.timings()["micro_batches"].tolist() == [4, 4, 4]
    assert ours.ledger.to_pandas()["loss"].tolist() == pytest.approx(reference.losses, rel=tolerance)
    torch.testing.assert_close(weights_of(ours.model), weights_of(whole.model), rtol=0, atol=tolerance)
    assert (weights_of(ours.model) - weights_of(build_model(model))).abs().max() > 1e-4
    logged = [[entry["loss"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (ours, whole)]
    assert logged[0] == pytest.approx(logged[1], rel=tolerance)


@pytest.mark.skipif("dataloader_multiprocessing_context" not in option_names(), reason="an older transformers")
def test_workers_are_started_and_load_ahead_as_is_said(tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3}
    for own, context in (({}, None), ({"dataloader_multiprocessing_context": "spawn"}, "spawn")):
        workers = make(tmp_path, **options, **own).get_train_dataloader()._prefetcher._workers
        assert workers.num_jobs == 6
        found = workers._loader.multiprocessing_context
        assert (found and found.get_start_method()) == context


class _Broken(MixingTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss * float("nan") if self.model.training and self.state.global_step == 1 else loss


@pytest.mark.parametrize("filters", [True, False])
def test_the_loss_of_a_step_that_is_not_finite_is_left_out(filters: bool, tmp_path: Path) -> None:
    options = {"logging_nan_inf_filter": filters, "logging_steps": 3}
    trainer = train(tmp_path, kind=_Broken, nonfinite="skip", **options)
    assert bool(torch.tensor(trainer.state.log_history[0]["loss"]).isfinite()) is filters


@pytest.mark.parametrize("name", ["seed", "data_seed"])
def test_a_seed_set_after_construction_is_the_one_that_rules(name: str, tmp_path: Path) -> None:
    trainers = []
    for at_construction, later in ((1, 7), (7, 7), (1, 1)):
        own: dict[str, Any] = {"drawing": "multinomial", "probe": Probing(interval_steps=2, mode="sketch")}
        trainer = make(tmp_path / str(len(trainers)), **own, **{name: at_construction})
        setattr(trainer.args, name, later)
        trainer.train()
        trainers.append(trainer)
    late, early, other = trainers
    assert torch.equal(weights_of(late.model), weights_of(early.model))
    assert not torch.equal(weights_of(late.model), weights_of(other.model))
    assert late.ledger.to_pandas().equals(early.ledger.to_pandas())
    assert late.describe_run()["data_seed"] == 7


def test_nothing_is_dropped_where_a_stream_is_iterable(tmp_path: Path) -> None:
    streams = [Stream("indexed", Tokens(20, 1), weight=1), Stream("rows", InOrder(Tokens(9, 4)), weight=1)]
    trainer = train(
        tmp_path, train_dataset=streams, dataloader_drop_last=True, max_steps=7, per_device_train_batch_size=4
    )
    assert trainer.ledger.timings()["total"].sum() > 24  # an epoch has 20 samples: its last step has them all
    assert trainer.mixing.clock.dropped_samples == 0


def test_going_on_needs_no_skipping(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "ignore_data_skip": True, "max_steps": 4}
    whole = train(tmp_path, **options)
    parts = train(tmp_path, resume=tmp_path / "checkpoint-2", **options)
    assert torch.equal(weights_of(whole.model), weights_of(parts.model))


def test_ranks_wait_for_each_other_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(options))
    RankSync(2, arguments(tmp_path, ddp_timeout=7200).ddp_timeout_delta)
    assert made == [{"backend": "gloo", "timeout": timedelta(hours=2)}]
