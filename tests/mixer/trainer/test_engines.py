"""What is refused beside an engine, told at construction."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn

from mixer import Budget, MarginalValue, Probing, Stream, schedules
from mixer.distributed.gradient_sync import shards_of
from mixer.trainer.checks.engines import check_engine, engine_of
from mixer.trainer.gradient_aggregation import GradientAggregation
from mixer.trainer.method import Method
from replay.feeding.features import extract_features
from replay.methods import AGEM
from tests.helpers import InOrder
from tests.mixer.run.run_plans import planned
from tests.refusals import refused


def trainer_with(kind: str, fsdp: bool = False, **config: Any) -> Any:
    types = {"zero": "DEEPSPEED", "fsdp": "FSDP", "ddp": "MULTI_GPU", "xla": "XLA"}
    state = SimpleNamespace(
        distributed_type=DistributedType[types[kind.rstrip("0123")]],
        deepspeed_plugin=SimpleNamespace(zero_stage=int(kind[-1]), deepspeed_config=config) if "zero" in kind else None,
        fsdp_plugin=SimpleNamespace(fsdp_version=int(kind[-1])) if "fsdp" in kind else None,
    )
    args = SimpleNamespace(fsdp=fsdp, gradient_checkpointing_kwargs=config.pop("checkpointing", None))
    return SimpleNamespace(accelerator=SimpleNamespace(state=state), args=args)


class _SeesGradients(Method):
    def end_backward(self, model: nn.Module) -> None:
        """Looks at them."""


class _HoldsTheModel(Method):
    needs = frozenset({"whole weights"})


def _aggregating(num_streams: int) -> Method:
    method = GradientAggregation("mgda")
    method.needs |= {"whole gradients"} if num_streams > 1 else set()
    return method


HEADS: dict[str, Any] = {"streams": [Stream("a", [1, 2]), Stream("b", [3])], "facts": {"tasks": ("a", "b")}}
SHARDING = ("fsdp2", "zero1", "zero2", "zero3")
ZERO = ("zero0", "zero1", "zero2", "zero3")
FP16 = {"fp16": {"enabled": True}}
REENTRANT = {"checkpointing": {"use_reentrant": True}}
CASES: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (SHARDING, {"schedule": schedules.NoiseScale(initial=8)}, "batch_size"),
    (ZERO, {"methods": [_aggregating(2)]}, "methods"),
    (SHARDING, {"methods": [AGEM()]}, "methods"),
    (SHARDING, {"methods": [_HoldsTheModel()]}, "methods"),
    (("zero3",), {"probe": Probing(interval_steps=1)}, "probe"),
    (("zero3",), {"policy": MarginalValue()}, "mixing"),
    (("zero2",), {"policy": MarginalValue(), "config": REENTRANT}, "gradient_checkpointing_kwargs"),
    (("zero1",), {"policy": MarginalValue(), "config": FP16}, "fp16"),
    (ZERO, {"nonfinite": "skip"}, "nonfinite"),
    (ZERO, {"methods": [_SeesGradients()]}, "methods"),
    (("zero3",), HEADS, "heads"),
    (("fsdp2", "zero2"), {**HEADS, "max_tokens_per_micro_batch": 9}, "heads"),
    (("fsdp2",), {**HEADS, "streams": [Stream("rows", InOrder([])), Stream("b", [3])]}, "heads"),
    (("zero2",), {"config": {"scheduler": {"type": "W"}}, "budget": Budget(samples=9)}, "deepspeed"),
    (("zero2",), {"config": FP16, "probe": Probing(interval_steps=1)}, "fp16"),
]


@pytest.mark.parametrize(("engines", "wish", "option"), CASES, ids=lambda value: str(value)[:20])
def test_what_an_engine_cannot_give_is_refused_and_ddp_gives_all_of_it(engines, wish, option) -> None:
    config = wish.get("config", {})
    wish = {name: value for name, value in wish.items() if name != "config"}
    for engine in engines:
        check_engine(trainer_with(engine, **config), planned())
        with refused(option):
            check_engine(trainer_with(engine, **config), planned(**wish))
    check_engine(trainer_with("ddp"), planned(**wish))


def test_the_first_fsdp_and_other_engines_are_refused_and_fsdp_that_is_not_used_is_told(caplog) -> None:
    with refused("fsdp_config"):
        engine_of(trainer_with("fsdp1"))
    with refused("distributed_type", found="XLA"):
        engine_of(trainer_with("xla"))
    check_engine(trainer_with("ddp", fsdp=True), planned())
    check_engine(trainer_with("fsdp2", fsdp=True), planned())
    assert caplog.text.count("fsdp is set, but accelerate shards nothing here") == 1


def test_weights_that_are_elsewhere() -> None:
    model = nn.Linear(2, 2)
    assert shards_of(model) is None
    assert shards_of(nn.Flatten()) is None
    for parameter in model.parameters():
        parameter.data = torch.empty(0)
    assert shards_of(model) == "DeepSpeed ZeRO-3"
    with refused("trainer_or_model"):
        extract_features(model, [{"input": torch.ones(2)}])
