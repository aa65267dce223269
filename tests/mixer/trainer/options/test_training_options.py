"""The page on training arguments says what the installed version has, and what it says is refused is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.utils.data import IterableDataset
from transformers import TrainingArguments

from docs.site.options_page import option_names, page
from mixer import MixingTrainer, schedules
from mixer.trainer.argument_support import AS_BY_THE_TRAINER, DIFFERENCES, REFUSED, TRANSFORMERS
from tests.helpers import Tokens, arguments, build_model, three_streams

KNOWN = AS_BY_THE_TRAINER | DIFFERENCES.keys() | REFUSED.keys()
INSTALLED = [int(number) for number in transformers.__version__.split(".")[:2]]
WRITTEN_FOR = [int(number) for number in TRANSFORMERS.split(".")]


def test_every_option_of_the_installed_version_has_its_place() -> None:
    assert sorted(set(option_names()) - KNOWN) == []
    assert not AS_BY_THE_TRAINER & (DIFFERENCES.keys() | REFUSED.keys())
    with pytest.raises(KeyError, match="how telepathy behaves"):
        page(["seed", "telepathy"])


@pytest.mark.skipif(INSTALLED < WRITTEN_FOR, reason="an older version lacks what came later")
def test_the_page_is_what_is_written_now() -> None:
    assert sorted(KNOWN - set(option_names())) == []
    path = Path(__file__).parents[4] / "docs" / "training_arguments.md"
    assert path.read_text(encoding="utf-8") == page(option_names()), f"python -m docs.site.options_page {path}"


# ---- What is refused ----


class _Rows(IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        yield from Tokens(5, 1).rows


class _Sharded(MixingTrainer):
    def get_tp_size(self) -> int:
        return 2


class _InParts(MixingTrainer):
    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.is_fsdp_enabled = True


def _two_ranks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainingArguments, "world_size", property(lambda _: 2))


def _deepspeed(patch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(zero_stage=2, deepspeed_config={"scheduler": {"type": "WarmupLR"}})
    patch.setitem(AcceleratorState._shared_state, "distributed_type", DistributedType.DEEPSPEED)
    patch.setattr(AcceleratorState, "deepspeed_plugin", plugin)


def _fsdp_of_old(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(AcceleratorState._shared_state, "distributed_type", DistributedType.FSDP)
    patch.setitem(AcceleratorState._shared_state, "fsdp_plugin", SimpleNamespace(fsdp_version=1))


# The option, arguments, more of the trainer, its class, and what else makes the value one that is refused.
GROWS = {"batch_size": schedules.AdaBatch(every=1, unit="epochs", initial=8)}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Callable[[pytest.MonkeyPatch], None] | None]] = [
    ("max_steps", {"max_steps": 0}, {}, None),
    ("optim", {"optim": "lomo"}, {"batch_size": 9}, None),
    ("optim", {"optim": "adalomo"}, GROWS, None),
    ("optim", {"optim": "galore_adamw_layerwise"}, {"max_tokens_per_micro_batch": 100}, None),
    ("gradient_accumulation_steps", {"gradient_accumulation_steps": 2}, {"batch_size": 8}, None),
    ("average_tokens_across_devices", {"average_tokens_across_devices": False}, {}, _two_ranks),
    ("enable_jit_checkpoint", {"enable_jit_checkpoint": True}, {}, None),
    ("ignore_data_skip", {"ignore_data_skip": True}, {"train_dataset": {"a": _Rows()}, "mixing": [1]}, None),
    ("accelerator_config", {"accelerator_config": {"dispatch_batches": True}}, {}, None),
    ("accelerator_config", {"accelerator_config": {"split_batches": True}}, {}, None),
    ("parallelism_config", {}, {"trainer_class": _Sharded}, None),
    ("save_on_each_node", {"save_on_each_node": True}, {"trainer_class": _InParts}, None),
    ("dataloader_in_order", {"dataloader_in_order": False, "dataloader_num_workers": 1}, {}, None),
    ("train_sampling_strategy", {"train_sampling_strategy": "batch_rebalance"}, {}, None),
    ("ddp_static_graph", {"ddp_static_graph": True}, {"batch_size": 17}, _two_ranks),
    ("fsdp_config", {}, {}, _fsdp_of_old),
    ("deepspeed", {}, GROWS, _deepspeed),
]


def test_every_option_that_is_refused_is_tried() -> None:
    assert {name for name, *_ in CASES} == REFUSED.keys()


@pytest.mark.parametrize(("name", "own", "more", "prepare"), CASES)
def test_what_is_refused_is_refused_at_construction(
    name: str, own: dict[str, Any], more: dict[str, Any], prepare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not {name, *own} <= set(option_names()):
        pytest.skip("not in this version of transformers")
    fields = {"train_dataset": three_streams(), "trainer_class": MixingTrainer, **more}
    args, model = arguments(tmp_path, **own), build_model("llama")

    class Prepared(fields.pop("trainer_class")):  # type: ignore[misc]
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            if prepare is not None:
                prepare(monkeypatch)

    with pytest.raises(ValueError, match=name):
        Prepared(model, args, **fields)


def test_values_that_are_not_refused_pass(tmp_path: Path) -> None:
    options = {"ignore_data_skip": True, "average_tokens_across_devices": False, "dataloader_in_order": False}
    options = {name: options[name] for name in option_names() if name in options}
    for own, changes in ((options, {}), ({"optim": "lomo"}, {"batch_size": 8})):
        MixingTrainer(build_model("llama"), arguments(tmp_path, **own), train_dataset=three_streams(), **changes)


def test_one_process_for_several_gpus_is_told_how_to_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(tmp_path)
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda _: 4))
    with pytest.raises(ValueError, match="torchrun --nproc_per_node 4 -m mixer train RECIPE"):
        MixingTrainer(build_model("llama"), args, train_dataset=three_streams())
