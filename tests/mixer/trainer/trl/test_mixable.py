"""Trainers that make their batches themselves are refused before anything is built."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Seq2SeqTrainer, Trainer
from trl import DistillationTrainer, GRPOTrainer, RLOOTrainer

from mixer import MixingMixin
from mixer.trainer.checks import check_trainer_is_supported
from tests.helpers import arguments, build_model, three_streams
from tests.mixer.trainer.trl.cases import MixingDPO


def _overriding(name: str) -> Any:
    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(Trainer, name)(self, *args, **kwargs)

    return type("Between", (type("Below", (Trainer,), {name: own}),), {})


class _Old(Trainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        return super().compute_loss(model, inputs, return_outputs)


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        *((one, f"{one.__name__} overrides get_train_dataloader,") for one in (GRPOTrainer, RLOOTrainer)),
        (DistillationTrainer, "DistillationTrainer overrides get_train_dataloader,"),
        *(
            (_overriding(name), rf"Mixed: Below overrides {name}, .*interleave_datasets")
            for name in ("get_train_dataloader", "_get_train_sampler", "get_batch_samples")
        ),
        (
            type("OtherTrainer", (Trainer,), {"__module__": "trl.trainer.other_trainer"}),
            r"Mixed: TRL's OtherTrainer has no _prepare_dataset.*SFTTrainer",
        ),
        (_Old, r"Mixed.compute_loss takes \['model', .*add num_items_in_batch=None"),
    ],
)
def test_trainers_that_cannot_be_mixed_are_refused(parent: type, message: str, tmp_path: Path) -> None:
    mixed: Any = type("Mixed", (MixingMixin, parent), {})
    with pytest.raises(TypeError, match=message):
        mixed("a model that nobody loads", arguments(tmp_path), train_dataset=three_streams())


def test_an_override_above_the_mixin_is_the_users_own(tmp_path: Path) -> None:
    class Above(MixingMixin, Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader()

    Above(build_model("llama"), arguments(tmp_path, max_steps=1), train_dataset=three_streams()).train()


def test_the_stock_trainers_go() -> None:
    for parent in (Trainer, Seq2SeqTrainer):
        check_trainer_is_supported(type("Mixed", (MixingMixin, parent), {}), MixingMixin)


def test_arguments_in_the_order_of_another_trainer_are_refused(tmp_path: Path) -> None:
    data, model = three_streams(), build_model("llama")
    with pytest.raises(
        TypeError, match=r"args must be TrainingArguments, got LlamaForCausalLM.*model, ref_model, args"
    ):
        MixingDPO(model, model, arguments(tmp_path), train_dataset=data)
    with pytest.raises(TypeError, match=r"1 positional arguments follow model, args.*DPOTrainer has another order"):
        MixingDPO(model, arguments(tmp_path), None, data, None)
