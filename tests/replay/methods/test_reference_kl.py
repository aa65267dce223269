"""The divergence from the model as it began, against plain loops."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from peft import LoraConfig, get_peft_model
from torch import nn

from mixer import MixingTrainer
from replay.methods import ReferenceKL
from tests.helpers import Tokens, arguments, build_model, mixing_trainer, weights_of
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, Spy, collate, gradient_of, logged, step


def trainer_of(folder: Path, model: nn.Module, streams: Any, *methods: Any, **changes: Any) -> MixingTrainer:
    options = {"mixing": dict.fromkeys(streams, 1.0), "batch_size": 6, "data_collator": collate}
    options |= {name: changes.pop(name) for name in ("data_collator", "mixing") if name in changes}
    args = arguments(folder, **{"max_steps": 4, "per_device_train_batch_size": 2, **changes})
    return mixing_trainer(MixingTrainer, model, args, train_dataset=streams, methods=list(methods), **options)


@pytest.mark.parametrize("learns", [False, True])
def test_rows_are_held_to_what_the_model_said_before(tmp_path: Path, learns: bool) -> None:
    spy, streams = Spy(), {"new": Points(), "old": Points(seed=2)}
    method = ReferenceKL(["old"], strength=2.0, temperature=3.0, learns_labels=learns)
    trainer = trainer_of(tmp_path, Classifier(), streams, method, spy)
    trainer.train()
    model, before = Classifier(), Classifier()
    for batch, rate in zip(spy.batches, spy.rates, strict=True):
        loss = torch.zeros((), dtype=torch.float64)
        for name, own in batch.items():
            logits, was = model(**own)["logits"], before(**own)["logits"].detach()
            if name == "new" or learns:
                loss = loss + F.cross_entropy(logits, own["labels"], reduction="sum")
            if name == "old":
                p = (was / 3.0).softmax(dim=1)
                divergence = (p * ((was / 3.0).log_softmax(1) - (logits / 3.0).log_softmax(1))).sum()
                loss = loss + 2.0 * 9.0 * divergence
        step(model, gradient_of(model, loss / 6), rate)
    torch.testing.assert_close(weights_of(trainer.model), weights_of(model), rtol=0, atol=1e-12)
    terms = logged(trainer, "term/ReferenceKL")
    assert abs(terms[0]) < 1e-12 < terms[-1]
    assert trainer.ledger.terms().to_dict("list") == {"step": [1, 2, 3, 4], "term": ["ReferenceKL"] * 4, "value": terms}


@pytest.mark.parametrize("name", ["llama", "bert-masked-lm", "bert-classifier"])
def test_alone_it_leaves_the_model_as_it_is(tmp_path: Path, name: str) -> None:
    kind = {"llama": "causal-lm", "bert-masked-lm": "masked-lm"}.get(name, "sequence-classification")
    trainer = trainer_of(
        tmp_path, build_model(name), {"own": Tokens(20, 1, kind)}, ReferenceKL(["own"]), data_collator=None
    )
    before = weights_of(trainer.model).clone()
    trainer.train()
    torch.testing.assert_close(weights_of(trainer.model), before, rtol=0, atol=1e-6)


def adapted() -> Any:
    model = build_model("llama")
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    return get_peft_model(model, config)


class Copied(ReferenceKL):
    """Compares with a copy, where a model without its adapters would do."""

    _has_adapters = False

    @property
    def name(self) -> str:
        return "ReferenceKL"


def test_a_model_without_its_adapters_is_the_reference_and_needs_no_copy(tmp_path: Path) -> None:
    ends = []
    for kind in (ReferenceKL, Copied):
        streams = {"new": Tokens(20, 1), "own": Tokens(20, 2)}
        trainer = trainer_of(tmp_path, adapted(), streams, kind(["own"]), data_collator=None, learning_rate=1.0)
        trainer.train()
        ends.append(weights_of(trainer.model))
        assert logged(trainer, "term/ReferenceKL")[-1] > 0.0
    torch.testing.assert_close(*ends, rtol=0, atol=1e-7)


def test_a_resumed_run_has_the_reference_of_the_first(tmp_path: Path) -> None:
    streams = {"new": Tokens(20, 1), "own": Tokens(20, 2)}
    options: Any = {"data_collator": None, "learning_rate": 1.0, "save_strategy": "steps", "save_steps": 2}
    whole = trainer_of(tmp_path, build_model("llama"), streams, ReferenceKL(["own"]), **options)
    whole.train()
    torch.manual_seed(1)
    resumed = trainer_of(tmp_path, build_model("llama"), streams, ReferenceKL(["own"]), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(weights_of(resumed.model), weights_of(whole.model))
    assert resumed.ledger.terms().equals(whole.ledger.terms())


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for option, wrong in (("streams", "own"), ("streams", [])):
        with refused(option, found=wrong):
            ReferenceKL(wrong)  # type: ignore[arg-type]
    for option, value in (("strength", -1.0), ("temperature", 0.0)):
        with pytest.raises(ValueError, match=option):
            ReferenceKL(["own"], **{option: value})
    with pytest.raises(ValueError, match="other"):
        trainer_of(tmp_path, Classifier(), {"new": Points()}, ReferenceKL(["other"]))
