"""Trainers that make their batches themselves are refused before anything is built."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Seq2SeqTrainer, Trainer
from trl import DistillationTrainer, DPOTrainer, GRPOTrainer, RLOOTrainer

from mixer import MixingMixin, MixingTrainer
from tests.helpers import arguments, build_model, three_streams
from tests.mixer.trainer.trl.cases import model_of


@pytest.mark.parametrize("trainer_class", [GRPOTrainer, RLOOTrainer, DistillationTrainer])
def test_trainers_that_generate_are_refused(trainer_class: type, tmp_path: Path) -> None:
    mixed: Any = type("Mixed", (MixingMixin, trainer_class), {})
    with pytest.raises(TypeError, match=f"{trainer_class.__name__} overrides get_train_dataloader,"):
        mixed("a model that nobody loads", arguments(tmp_path), train_dataset=three_streams())


@pytest.mark.parametrize("name", ["get_train_dataloader", "_get_train_sampler", "get_batch_samples"])
def test_an_override_below_the_mixin_is_named(name: str, tmp_path: Path) -> None:
    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(Trainer, name)(self, *args, **kwargs)

    below: Any = type("Below", (Trainer,), {name: own})
    mixed: Any = type("Mixed", (MixingMixin, type("Between", (below,), {})), {})
    with pytest.raises(TypeError, match=rf"Mixed: Below overrides {name}, .*interleave_datasets"):
        mixed(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())


def test_an_override_above_the_mixin_is_the_users_own(tmp_path: Path) -> None:
    class Above(MixingMixin, Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader()

    Above(build_model("llama"), arguments(tmp_path), train_dataset=three_streams()).train()


def test_the_stock_trainers_go() -> None:
    from mixer.trainer.checks import check_trainer_is_supported

    for parent in (Trainer, Seq2SeqTrainer):
        check_trainer_is_supported(type("Mixed", (MixingMixin, parent), {}), MixingMixin)


class _Preferences(MixingMixin, DPOTrainer):
    pass


def test_arguments_in_the_order_of_another_trainer_are_refused(tmp_path: Path) -> None:
    data = three_streams()
    with pytest.raises(
        TypeError, match=r"args must be TrainingArguments, got LlamaForCausalLM.*model, ref_model, args"
    ):
        _Preferences(model_of(), model_of(), arguments(tmp_path), train_dataset=data)
    with pytest.raises(TypeError, match=r"1 positional arguments follow model, args.*DPOTrainer has another order"):
        _Preferences(model_of(), arguments(tmp_path), None, data, None)


def test_trainers_of_trl_that_prepare_their_data_otherwise_are_refused(tmp_path: Path) -> None:
    other = type("OtherTrainer", (Trainer,), {"__module__": "trl.trainer.other_trainer"})
    mixed: Any = type("Mixed", (MixingMixin, other), {})
    with pytest.raises(TypeError, match=r"Mixed: TRL's OtherTrainer has no _prepare_dataset.*SFTTrainer"):
        mixed(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())


def test_a_compute_loss_of_an_older_version_is_refused(tmp_path: Path) -> None:
    class Old(MixingTrainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # type: ignore[override]
            return super().compute_loss(model, inputs, return_outputs)

    with pytest.raises(TypeError, match=r"Old.compute_loss takes \['model', .*add num_items_in_batch=None"):
        Old(build_model("llama"), arguments(tmp_path), train_dataset=three_streams())
