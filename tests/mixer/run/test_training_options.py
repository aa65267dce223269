"""Training arguments that are refused, and what is wrong with a first script, are said when the trainer is made."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import TrainingArguments

from docs.site.argument_behaviour import AS_BY_THE_TRAINER, DIFFERENCES, TRANSFORMERS
from docs.site.options_page import option_names, page
from mixer import MixingTrainer, Stream, schedules
from mixer.policies.function import Function
from mixer.run.argument_support import REFUSED
from mixer.schedules.function import Function as SizeFunction
from mixer.utils.errors import InvalidTypeError
from tests.helpers import InOrder, Tokens, arguments, build_model, three_streams
from tests.mixer.trainer.runs import make
from tests.refusals import refused

KNOWN = AS_BY_THE_TRAINER | DIFFERENCES.keys() | REFUSED.keys()
INSTALLED = [int(number) for number in transformers.__version__.split(".")[:2]]
WRITTEN_FOR = [int(number) for number in TRANSFORMERS.split(".")]


def test_every_option_of_the_installed_version_has_its_place() -> None:
    assert sorted(set(option_names()) - KNOWN) == []
    assert not AS_BY_THE_TRAINER & (DIFFERENCES.keys() | REFUSED.keys())
    with pytest.raises(KeyError):
        page(["seed", "telepathy"])


@pytest.mark.skipif(INSTALLED < WRITTEN_FOR, reason="an older version lacks what came later")
def test_the_page_is_what_is_written_now() -> None:
    assert sorted(KNOWN - set(option_names())) == []
    path = Path(__file__).parents[3] / "docs" / "training_arguments.md"
    assert path.read_text(encoding="utf-8") == page(option_names()), f"python -m docs.site.options_page {path}"


def _in_parts(self: MixingTrainer) -> None:
    MixingTrainer.create_accelerator_and_postprocess(self)
    self.is_fsdp_enabled = True


SHARDED = type("Sharded", (MixingTrainer,), {"get_tp_size": lambda self: 2})
IN_PARTS = type("InParts", (MixingTrainer,), {"create_accelerator_and_postprocess": _in_parts})


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
UNSIZED = {"train_dataset": {"a": InOrder(Tokens(5, 1))}, "mixing": [1]}
GROWS = {"batch_size": schedules.AdaBatch(every=1, unit="epochs", initial=8)}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Callable[[pytest.MonkeyPatch], None] | None]] = [
    ("max_steps", {"max_steps": 0}, {}, None),
    ("optim", {"optim": "lomo"}, {"batch_size": 9}, None),
    ("optim", {"optim": "adalomo"}, GROWS, None),
    ("optim", {"optim": "galore_adamw_layerwise"}, {"max_tokens_per_micro_batch": 100}, None),
    ("batch_size", {"gradient_accumulation_steps": 2}, {"batch_size": 8}, None),
    ("average_tokens_across_devices", {"average_tokens_across_devices": False}, {}, _two_ranks),
    ("enable_jit_checkpoint", {"enable_jit_checkpoint": True}, {}, None),
    ("ignore_data_skip", {"ignore_data_skip": True}, UNSIZED, None),
    ("accelerator_config", {"accelerator_config": {"dispatch_batches": True}}, {}, None),
    ("accelerator_config", {"accelerator_config": {"split_batches": True}}, {}, None),
    ("parallelism_config", {}, {"kind": SHARDED}, None),
    ("save_on_each_node", {"save_on_each_node": True}, {"kind": IN_PARTS}, None),
    ("dataloader_in_order", {"dataloader_in_order": False, "dataloader_num_workers": 1}, {}, None),
    ("train_sampling_strategy", {"train_sampling_strategy": "batch_rebalance"}, {}, None),
    ("ddp_static_graph", {"ddp_static_graph": True}, {"batch_size": 17}, _two_ranks),
    ("fsdp_config", {}, {}, _fsdp_of_old),
    ("deepspeed", {}, GROWS, _deepspeed),
]


@pytest.mark.parametrize(("name", "own", "more", "prepare"), CASES)
def test_what_is_refused_is_refused_at_construction(name, own, more, prepare, tmp_path, monkeypatch) -> None:
    if not {name, *own} - {"batch_size"} <= set(option_names()):
        pytest.skip("not in this version of transformers")

    class Prepared(more.get("kind", MixingTrainer)):  # type: ignore[misc]
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            if prepare is not None:
                prepare(monkeypatch)

    with refused(name):
        make(tmp_path, **{**own, **more, "kind": Prepared})


@pytest.mark.parametrize(
    ("option", "value", "workers"),
    [
        ("dataloader_num_workers", -1, -1),
        ("dataloader_prefetch_factor", 0, 1),
        ("dataloader_persistent_workers", True, 0),
    ],
)
def test_workers_that_cannot_load_are_refused(option: str, value: Any, workers: int, tmp_path: Path) -> None:
    args = arguments(tmp_path, **{"dataloader_num_workers": workers, option: value})
    with refused(option):
        MixingTrainer(build_model("llama"), args, train_dataset=three_streams())


def test_values_that_are_not_refused_pass(tmp_path: Path) -> None:
    options = {"ignore_data_skip": True, "average_tokens_across_devices": False, "dataloader_in_order": False}
    options = {name: options[name] for name in option_names() if name in options}
    for own, changes in ((options, {}), ({"optim": "lomo"}, {"batch_size": 8})):
        make(tmp_path, **own, **changes)


def test_one_process_for_several_gpus_is_told_how_to_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(tmp_path)
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda _: 4))
    with refused("n_gpu"):
        MixingTrainer(build_model("llama"), args, train_dataset=three_streams())


def _rows(label: str = "labels", num_rows: int = 12) -> datasets.Dataset:
    columns = {"input_ids": [[1 + row % 7] * 8 for row in range(num_rows)], "attention_mask": [[1] * 8] * num_rows}
    columns |= {label: [row % 3 for row in range(num_rows)], "text": ["a"] * num_rows}
    return datasets.Dataset.from_dict(columns)


def _trainer(folder: Path, streams: Any, model: str = "bert-classifier", **options: Any) -> MixingTrainer:
    return make(folder, model, train_dataset=streams, **{"max_steps": 1, **options})


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [own.message for own in caplog.records if own.levelno == logging.WARNING and "mixer" in own.name]


class Unlabelled(Tokens):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"number": torch.tensor(index), **{k: v for k, v in super().__getitem__(index).items() if k != "labels"}}


@pytest.mark.parametrize("size", ["2", "1", "", "two"])
def test_processes_that_would_train_alone_are_refused(tmp_path, monkeypatch, size) -> None:
    args = arguments(tmp_path)  # before: of a launch that it knows of it would wait for the other rank
    monkeypatch.setenv("WORLD_SIZE", size)
    with refused("WORLD_SIZE") if size == "2" else nullcontext():
        MixingTrainer(build_model("bert-classifier"), args, train_dataset={"a": _rows()})


@pytest.mark.parametrize(
    ("streams", "model", "option"),
    [
        ({"b": _rows("target")}, "bert-classifier", "labels"),
        ({"a": Unlabelled(5, 1)}, "llama", "labels"),
        ([Stream("a", _rows(), label_names=["value"])], "bert-classifier", "label_names"),
        ({"a": _rows().select_columns(["text"])}, "bert-classifier", "columns"),
    ],
)
def test_labels_that_are_not_there_are_named(tmp_path: Path, streams: Any, model: str, option: str) -> None:
    with refused(option, stream="b" if "b" in streams else "a"):
        _trainer(tmp_path, streams, model).train()


def test_what_makes_them_or_does_without_goes(tmp_path: Path) -> None:
    def mean(outputs: Any, labels: Any, **options: Any) -> Tensor:
        return outputs["logits"].mean()

    stream = Stream("a", Unlabelled(5, 1), preprocess=lambda sample: {**sample, "labels": sample["input_ids"]})
    _trainer(tmp_path / "made", [stream], "llama")
    _trainer(tmp_path / "own", {"a": Unlabelled(5, 1)}, "llama", compute_loss_func=mean)


EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    empty = _rows().select([])
    for sets, name in ((empty, None), ({"a": empty}, "a")):
        with refused("eval_dataset", stream=name):
            _trainer(tmp_path, {"a": _rows()}, eval_dataset=sets, **EVALUATES)
        _trainer(tmp_path, {"a": _rows()}, eval_dataset=sets)


def test_one_without_labels_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = {"a": _rows().select([1, 0]), "b": _rows("target"), "held out": _rows("answer")}
    _trainer(tmp_path, {"a": _rows(), "b": _rows()}, eval_dataset=sets, **EVALUATES)
    first, second = (told for told in _told(caplog) if told.startswith("eval_dataset"))
    assert first.startswith("eval_dataset['b'] has no loss: a micro-batch of it has ['input_ids'")
    assert "'answer', 'text']: rename" in second


@pytest.mark.parametrize(
    ("function", "goes"),
    [
        *((one, False) for one in (lambda step: [1], lambda step, weights, more: weights, lambda *, step: [1])),
        *((one, True) for one in (lambda *given: given[1], lambda step, weights, more=1: weights, max)),
    ],
)
def test_a_function_that_takes_something_else_is_refused(function: Any, goes: bool) -> None:
    for kind, option in ((Function, "mixing"), (SizeFunction, "batch_size")):
        with nullcontext() if goes else refused(option, kind=InvalidTypeError):
            kind(function)


@pytest.mark.parametrize(("batch_size", "is_told"), [(6, True), (7, False)])
def test_a_batch_smaller_than_the_number_of_streams_is_told_once(tmp_path, batch_size, is_told, caplog) -> None:
    data = {f"s{number}": _rows() for number in range(7)}
    trainer = _trainer(tmp_path, data, max_steps=3, batch_size=batch_size)
    told = [text for text in _told(caplog) if text.startswith("batch_size")]
    assert len(told) == is_told
    assert not told or told[0].startswith("batch_size=6 is smaller than the number of streams, 7: no step has all")
    trainer.train()
    seen = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
    assert seen.max() - seen.min() <= 1


def _collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids = torch.tensor([list(sample["input_ids"]) for sample in samples])
    return {"input_ids": ids, "labels": torch.tensor([len(sample["text"]) for sample in samples])}


@pytest.mark.parametrize(
    ("streams", "removed"),
    [
        ({"a": _rows(), "b": _rows()}, "removed the columns ['text'], which the model's forward does not"),
        ({"a": _rows().remove_columns("text")}, None),
    ],
)
def test_the_columns_removed_before_a_collator_are_named(tmp_path: Path, streams: Any, removed: str | None) -> None:
    trainer = _trainer(tmp_path, streams, remove_unused_columns=removed is not None, data_collator=_collate)
    with pytest.raises(KeyError) as caught:
        trainer.train()
    notes = "\n".join(caught.value.__notes__)
    assert removed in notes if removed else "remove_unused_columns" not in notes
    assert "several streams" not in notes
