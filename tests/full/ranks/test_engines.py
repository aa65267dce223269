"""What each engine makes of a mixture: the losses, counts and weights of DDP, in one go and resumed."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from mixer import Decision, LossChange, MarginalValue, MixingTrainer, Objective, Observation, PiKE, Stream, schedules
from mixer.measurements import Alignment
from replay import DER, ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, arguments, build_model, three_streams
from tests.mixer.forms import multi_task, task_streams
from tests.ranks.engines import as_on_gpus, deepspeed, fsdp, without_compiling
from tests.ranks.warm import Results, on_ranks

Arguments = Callable[..., Any]
ENGINES: dict[str, Callable[[], dict[str, Any]]] = {
    "ddp": dict,
    "fsdp": fsdp,
    "fsdp-sharded": lambda: fsdp(state_dict_type="SHARDED_STATE_DICT"),
    "zero-1": lambda: deepspeed(1),
    "zero-2": lambda: deepspeed(2),
    "zero-3": lambda: deepspeed(3, zero_optimization={"stage3_gather_16bit_weights_on_model_save": True}),
}
SETS = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}


def changing(args: Arguments, **changes: Any) -> MixingTrainer:
    """Sizes that change, the learning rate with them; weights by losses; a clipped gradient; the best checkpoint."""
    own = {"max_grad_norm": 0.5, "lr_scheduler_type": "cosine", "load_best_model_at_end": True, **SETS, **changes}
    size = schedules.AdaBatch(every=14, unit="samples", factor=1.5, initial=7, learning_rate="sqrt")
    return MixingTrainer(
        build_model("llama"),
        args(**own),
        train_dataset=three_streams(),
        eval_dataset={name: Tokens(4, seed) for seed, name in enumerate("abc")},
        mixing=LossChange(num_warmup_observations=1),
        batch_size=size,
    )


def probed(args: Arguments) -> MixingTrainer:
    """Gradients by stream decide, and a rank has no sample of the last micro-batches."""
    mixing = PiKE(interval_steps=2)
    return MixingTrainer(build_model("llama"), args(), train_dataset=three_streams(), batch_size=9, mixing=mixing)


def heads(args: Arguments) -> MixingTrainer:
    """A head for each stream, of which some steps have no sample: there an optimizer with momentum differs."""
    return MixingTrainer(
        multi_task(dtype=torch.float32),
        # By itself accelerate shards BERT's embeddings twice, and fails.
        args(optim="sgd", max_grad_norm=1.0, fsdp_config={"transformer_layer_cls_to_wrap": ["BertLayer"]}),
        train_dataset=task_streams(topic={"loss_weight": 2.0}),
        mixing={"topic": 7, "stars": 1, "flags": 2, "tags": 4},
        batch_size=5,
    )


def replayed(args: Arguments) -> MixingTrainer:
    """Logits of a memory, a term beside the samples' own loss."""
    streams = [*(Stream(name, data) for name, data in three_streams().items()), Stream("memory", ReplayBuffer(12))]
    rules: dict[str, Any] = {"mixing": ReplayRatio(0.3), "batch_size": 9, "methods": [DER("memory", top_k=3)]}
    return MixingTrainer(build_model("llama"), args(), train_dataset=streams, **rules)


class Seeing(MarginalValue):
    """Keeps what it sees of the targets."""

    def update(self, observation: Observation) -> Decision:
        self.measured = [*getattr(self, "measured", []), observation[Alignment]]
        return super().update(observation)


def targeted(args: Arguments, model: Any = None, rows_of: Callable[..., Any] = Tokens, **rules: Any) -> MixingTrainer:
    """Streams against targets in Adam's metric; a bound, by losses of rows of which one rank has more."""
    return MixingTrainer(
        model or build_model("llama"),
        args(save_strategy="steps", save_steps=3),
        train_dataset={"a": rows_of(20, 1), "b": rows_of(11, 2), "c": rows_of(6, 3)},
        eval_dataset={name: rows_of(20, seed) for seed, name in enumerate("abt")},
        objective=Objective(["t", "a"], bounds={"b": 1.01}),
        mixing=Seeing(rate=1.0, interval_steps=2),
        batch_size=9,
        **rules,
    )


def ragged(num_samples: int, seed: int) -> list[dict[str, Any]]:
    return [
        {name: own[: int(row["attention_mask"].sum())] for name, own in row.items()}
        for row in Tokens(num_samples, seed)
    ]


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: pad_sequence([one[name] for one in samples], True, -100.0 if name == "labels" else 0.0)
        for name in samples[0]
    }


def adapted(args: Arguments) -> MixingTrainer:
    """The same with adapters, in micro-batches by tokens: ranks have different numbers of them, and uneven shards."""
    config = LoraConfig(r=3, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    model = get_peft_model(build_model("llama"), config)
    return targeted(partial(args, max_tokens_per_micro_batch=24), model, ragged, data_collator=padded)


CASES = (changing, probed, heads, replayed, targeted, adapted)
RUNS: dict[str, Callable[[Arguments], MixingTrainer]] = {case.__name__: case for case in CASES}
# The others train all of them. ZeRO-3 refuses a probe, and heads of streams.
PARTS = {"fsdp-sharded": ("changing",), "zero-1": ("changing", "targeted"), "zero-3": ("changing", "replayed")}
RESUMED = {"changing": "resumed", "targeted": "targeted-resumed"}


def end_of(trainer: MixingTrainer) -> dict[str, Any]:
    """What the log says, what the ledger holds, and the weights that are saved."""
    folder = Path(trainer.args.output_dir)
    if trainer.is_fsdp_enabled:  # shards are for checkpoints
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model()
    trainer.accelerator.wait_for_everyone()
    timed, entries = ("runtime", "per_second", "total_flos"), trainer.state.log_history
    adapters = folder / "adapter_model.safetensors"
    weights = load_file(adapters if adapters.exists() else folder / "model.safetensors")
    return {
        "logs": [{name: entry[name] for name in entry if not name.endswith(timed)} for entry in entries],
        "counts": trainer.ledger.to_pandas()[["count", "seen"]].values.tolist() if trainer.args.should_save else [],
        "norms": trainer.ledger.clock()["gradient_norm"].tolist() if trainer.args.should_save else [],
        "weights": {name: value.double().sum().item() for name, value in sorted(weights.items())},
        "squares": {name: value.double().square().sum().item() for name, value in sorted(weights.items())},
        "worth": [
            one.alignment.ravel().tolist() for one in getattr(trainer.mixing.policy, "measured", []) if one is not None
        ],
        "shares": list(trainer.mixing.weights.values()),
    }


def run(engine: str, folder: Path) -> dict[str, Any]:
    """Trains each case with an engine, and some once more from their checkpoints."""
    results: dict[str, Any] = {}
    for name in PARTS.get(engine, RUNS):

        def args(place: Path = folder / engine / name, **changes: Any) -> Any:
            own = {"per_device_train_batch_size": 2, "max_steps": 6, "optim": "adamw_torch", "learning_rate": 1e-2}
            return arguments(place, **{**own, **ENGINES[engine](), **changes})

        saved = str(folder / engine / name / "checkpoint-3")
        for key, checkpoint in ((name, None), *([(RESUMED[name], saved)] if name in RESUMED else [])):
            unset_hf_deepspeed_config()  # else models of the next case are made in shards
            trainer = RUNS[name](args)
            trainer.train(resume_from_checkpoint=checkpoint)
            results[key] = end_of(trainer)
            if name == "changing":
                results["engine"] = [str(trainer.accelerator.distributed_type), type(trainer.model_wrapped).__name__]
            del trainer
            gc.collect()
    return results


def runs_of(*engines: str) -> list[tuple[str, str]]:
    names = [(engine, name) for engine in engines for name in PARTS.get(engine, RUNS)]
    return [*names, *((engine, RESUMED[name]) for engine, name in names if name in RESUMED)]


def by_fsdp(folder: Path) -> dict[str, Any]:
    results = {"ddp": run("ddp", folder)}
    with as_on_gpus():
        return {**results, **{engine: run(engine, folder) for engine in ("fsdp", "fsdp-sharded")}}


def by_deepspeed(folder: Path) -> dict[str, Any]:
    without_compiling()
    with as_on_gpus():
        return {engine: run(engine, folder) for engine in ("zero-1", "zero-2", "zero-3")}


TOLERANCE = 1e-5  # float32, added up in another order


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return [rank["by_fsdp"] for rank in on_ranks(tmp_path_factory.mktemp("fsdp"), by_fsdp)]


@pytest.fixture(scope="module")
def zero(tmp_path_factory: pytest.TempPathFactory) -> Results:
    pytest.importorskip("deepspeed")
    return [rank["by_deepspeed"] for rank in on_ranks(tmp_path_factory.mktemp("deepspeed"), by_deepspeed)]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["counts"] == expected["counts"]
    assert found["norms"] == pytest.approx(expected["norms"], rel=TOLERANCE, nan_ok=True)
    assert [entry.keys() for entry in found["logs"]] == [entry.keys() for entry in expected["logs"]]
    for own, other in zip(found["logs"], expected["logs"], strict=True):
        assert own == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True)
    for part in ("weights", "squares"):
        assert found[part] == pytest.approx(expected[part], rel=TOLERANCE, abs=10 * TOLERANCE)
    assert found["shares"] == pytest.approx(expected["shares"], rel=10 * TOLERANCE)
    for one, other in zip(found["worth"], expected["worth"], strict=True):
        largest = np.abs(np.nan_to_num(other)).max()  # others may be differences of nearly equal losses
        np.testing.assert_allclose(one, other, rtol=0, atol=10 * TOLERANCE * largest)


def assert_goes_on(results: dict[str, Any]) -> None:
    for part in ("weights", "squares", "shares"):
        assert results["targeted-resumed"][part] == results["targeted"][part]
    assert 0 < len(results["targeted-resumed"]["worth"]) < len(results["targeted"]["worth"])


@pytest.mark.parametrize(("engine", "name"), runs_of("fsdp", "fsdp-sharded"))
def test_fsdp_trains_as_ddp(sharded: Results, engine: str, name: str) -> None:
    assert sharded[0][engine]["engine"] == ["DistributedType.FSDP", "FSDPLlamaForCausalLM"]
    for rank in sharded:
        assert_same(rank[engine][name], rank["ddp"][name])
        assert_goes_on(rank["fsdp"])


@pytest.mark.parametrize(("engine", "name"), runs_of("zero-1", "zero-2", "zero-3"))
def test_zero_trains_as_ddp(zero: Results, sharded: Results, engine: str, name: str) -> None:
    assert zero[0][engine]["engine"] == ["DistributedType.DEEPSPEED", "DeepSpeedEngine"]
    for rank, other in zip(zero, sharded, strict=True):
        assert_same(rank[engine][name], other["ddp"][name])
        assert_goes_on(rank["zero-2"])
