import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
    T5EncoderModel,
    ViTConfig,
)

from mixer import Head, MixingTrainer, MultiTaskModel, Stream
from mixer.models.multi_task import MultiTaskConfig
from mixer.tools.recipe.model import ModelRecipe
from mixer.utils.errors import InvalidTypeError
from tests.helpers import VOCABULARY, GradientRecorder, Tokens, arguments, weights_of
from tests.mixer.forms import (
    HEADS,
    KINDS,
    NAMES,
    NO_DROPOUT,
    TINY,
    gradient_by_hand,
    means_by_hand,
    multi_task,
    task_data,
    task_streams,
    trained,
)
from tests.mixer.trainer.runs import train
from tests.refusals import refused

_TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY}
_ENCODERS: dict[str, tuple[PreTrainedConfig, str]] = {
    "bert": (BertConfig(**_TOKENS, **TINY, **NO_DROPOUT), "first"),
    "roberta": (RobertaConfig(**_TOKENS, **TINY, **NO_DROPOUT, max_position_embeddings=40), "mean"),
    "gpt2": (GPT2Config(**_TOKENS, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), "last"),
    "llama": (LlamaConfig(**_TOKENS, **TINY, num_key_value_heads=2, pad_token_id=0), "last"),
    "vit": (ViTConfig(image_size=8, patch_size=4, **TINY, **NO_DROPOUT), "first"),
}


def _model(name: str) -> MultiTaskModel:
    config, pooling = _ENCODERS[name]
    torch.manual_seed(0)
    heads = {"topic": Head(3, pooling=pooling, dropout=0.0), "stars": Head(1, "regression", pooling, 0.0)}  # type: ignore[arg-type]
    return MultiTaskModel.from_encoder(AutoModel.from_config(copy.deepcopy(config)), heads).eval()


def _batch(name: str, labels: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.rand(4, 3, 8, 8, generator=generator), "labels": labels}
    mask = (torch.arange(6) < torch.tensor([[6], [4], [2], [5]])).long()
    ids = torch.randint(1, VOCABULARY, (4, 6), generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


_CLASSES, _NUMBERS = torch.tensor([0, 2, 1, 1]), torch.tensor([0.5, -1.0, 2.0, 0.0])


@pytest.mark.parametrize("name", _ENCODERS)
def test_it_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    model = _model(name)
    model.save_pretrained(tmp_path)
    for found in (MultiTaskModel.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(found) is MultiTaskModel
        assert {key for key, _ in found.named_parameters()} == {key for key, _ in model.named_parameters()}
        assert not any("pooler" in key for key, _ in found.named_parameters())
        for task, labels in (("topic", _CLASSES), ("stars", _NUMBERS)):
            batch = _batch(name, labels)
            mine, theirs = model(task=task, **batch), found.eval()(task=task, **batch)
            assert torch.equal(mine.logits, theirs.logits)
            assert torch.equal(mine.loss, theirs.loss)
    assert AutoConfig.from_pretrained(tmp_path).heads["topic"]["num_labels"] == 3


class _Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, name: str, labels: Tensor):
        self.batch = _batch(name, labels)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {key: value[index] for key, value in self.batch.items()}


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_it_trains_on_both_heads(name: str, tmp_path: Path) -> None:
    model, recorder, twin = _model(name), GradientRecorder(), _model(name).train()
    data = {"topic": _Rows(name, _CLASSES), "stars": _Rows(name, _NUMBERS)}
    train(tmp_path, model, max_steps=1, train_dataset=data, batch_size=8, callbacks=[recorder])
    loss = (twin("topic", **_batch(name, _CLASSES)).loss + twin("stars", **_batch(name, _NUMBERS)).loss) / 2
    loss.backward()
    expected = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in twin.parameters()])
    torch.testing.assert_close(recorder.gradients[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_gradients_are_the_same_with_checkpoints_and_either_attention(name: str) -> None:
    found = []
    for is_checkpointed, attention in ((False, "sdpa"), (True, "sdpa"), (False, "eager")):
        model = _model(name).train()
        model.set_attn_implementation(attention)
        assert model.encoder.config._attn_implementation == attention
        if is_checkpointed:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        model("topic", **_batch(name, _CLASSES)).loss.backward()
        found.append(torch.cat([one.grad.flatten() for one in model.encoder.parameters() if one.grad is not None]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-6)


def test_a_head_that_a_checkpoint_lacks_begins_as_a_linear_layer(tmp_path: Path) -> None:
    model = multi_task(dtype=torch.float32)  # not in the order of the alphabet
    model.save_pretrained(tmp_path)
    config = MultiTaskConfig.from_pretrained(tmp_path)
    config.heads["new"] = Head(4).to_dict()
    found = MultiTaskModel.from_pretrained(tmp_path, config=config)
    assert list(found.heads) == [*HEADS, "new"]
    for task in HEADS:
        assert torch.equal(found.heads[task].output.weight, model.heads[task].output.weight)
    weight, bias = found.heads["new"].output.weight, found.heads["new"].output.bias
    bound = 1 / weight.shape[1] ** 0.5
    for values in (weight, bias):
        assert bound / 10 < values.abs().max() <= bound
        assert len(values.unique()) == values.numel()
    assert torch.equal(weights_of(found.encoder), weights_of(model.encoder))
    loaded = MultiTaskModel.from_pretrained(tmp_path)
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]
    loaded.resize_token_embeddings(VOCABULARY + 3)  # the vocabulary of all heads
    assert loaded("topic", input_ids=torch.tensor([[VOCABULARY + 2, 1]])).logits.shape == (1, 3)


def test_a_recipe_of_an_encoder_without_heads_is_refused() -> None:
    sizes = {"model_type": "bert", "vocab_size": VOCABULARY, **TINY}
    with refused("heads"):
        ModelRecipe(task="encoder", config=sizes).build()
    assert list(ModelRecipe(task="encoder", config=sizes, heads={"a": Head(2)}).build().heads) == ["a"]


@pytest.mark.parametrize(
    ("heads", "error"),
    [
        ({}, ValueError),
        ({"a": 3}, TypeError),
        ({"a.b": Head(2)}, ValueError),
        ({"": Head(2)}, ValueError),
        ({"train": Head(2)}, ValueError),
        ({1: Head(2)}, TypeError),
    ],
)
def test_heads_that_are_none_are_refused(heads: Any, error: type[Exception]) -> None:
    with refused("heads", kind=error):
        MultiTaskModel.from_encoder(AutoModel.from_config(_ENCODERS["bert"][0]), heads)


@pytest.mark.parametrize("kind", ["with a head", "half", "adapted", "plain"])
def test_encoders_that_would_not_be_loaded_again_are_refused(kind: str) -> None:
    bert = _ENCODERS["bert"][0]
    encoders: dict[str, Any] = {
        "with a head": lambda: AutoModelForSequenceClassification.from_config(bert),
        "half": lambda: T5EncoderModel(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)),
        "adapted": lambda: get_peft_model(AutoModel.from_config(bert), LoraConfig(r=2, target_modules=["query"])),
        "plain": lambda: nn.Linear(2, 2),
    }
    with refused("encoder", kind=InvalidTypeError):
        MultiTaskModel.from_encoder(encoders[kind](), HEADS)


def test_a_task_without_a_head_is_refused() -> None:
    with refused("task"):
        multi_task()("other", input_ids=torch.ones(1, 2, dtype=torch.long))


def test_adapters_around_it_train_its_heads_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=list(HEADS))
    model: Any = get_peft_model(multi_task(), options).double()
    trainer = trained(tmp_path, model, task_streams(), args={"max_steps": 1})
    (batch, twin), gradient = trainer.batches[0], trainer.recorder.gradients[0]
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
    expected = gradient_by_hand(batch, twin, means_by_hand(batch, twin, NAMES))
    kept = torch.cat([torch.full((one.numel(),), one.requires_grad) for one in model.parameters()])
    torch.testing.assert_close(gradient[kept], expected[kept], rtol=0, atol=1e-12)
    assert gradient[kept].abs().max() > 1e-3
    heads = [name for name, one in model.named_parameters() if one.requires_grad and ".heads." in name]
    assert len(heads) == 2 * len(HEADS)
    assert trainer.evaluate({"tags": task_data("tags")})["eval_tags_loss"] > 0


class _Own(nn.Module):
    """No model of transformers; its second head is used twice."""

    def __init__(self, heads: Any = None):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.out = nn.ModuleDict({"topic": nn.Linear(8, 3), "other": nn.Linear(8, 3)})
        if heads is not None:
            self.heads = heads

    def forward(self, task: str, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.out[task]((self.embed(input_ids) * attention_mask[..., None]).mean(dim=1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


@pytest.mark.parametrize(("heads", "micro"), [(None, 64), (8, 2), (nn.ModuleList([nn.Linear(2, 2)]), 2)])
def test_a_model_of_the_users_own_is_told_the_task(tmp_path: Path, heads: Any, micro: int) -> None:
    streams = [
        Stream("topic", Tokens(8, 1, KINDS["topic"])),
        Stream("b", Tokens(8, 2, KINDS["topic"]), head="other"),
        Stream("c", Tokens(8, 3, KINDS["topic"]), head="other"),
    ]
    trainer = trained(tmp_path, _Own(heads).double(), streams, micro, 9, args={"max_steps": 2})

    def loss_sum(model: nn.Module, task: str, row: Any) -> Tensor:
        return model(task=task, **row)["loss"]

    for gradient, (batch, model) in zip(trainer.recorder.gradients, trainer.batches, strict=True):
        means = means_by_hand(batch, model, ["topic", "other", "other"], loss_sum)
        torch.testing.assert_close(gradient, gradient_by_hand(batch, model, means), rtol=0, atol=1e-12)
    assert trainer.evaluate({"c": Tokens(4, 9, KINDS["topic"])})["eval_c_loss"] > 0


class _Wide(Dataset[dict[str, Tensor]]):
    """Four rows that are read by column, of as many features as a head takes."""

    def __init__(self, width: int):
        self._columns = {"features": torch.ones(4, width), "labels": torch.tensor([0, 1, 0, 1])}

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: values[index] for name, values in self._columns.items()}

    def read_columns(self, indices: np.ndarray) -> dict[str, Tensor]:
        return {name: values[torch.from_numpy(indices)] for name, values in self._columns.items()}


class _OfWidths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"narrow": nn.Linear(3, 2), "wide": nn.Linear(5, 2)})

    def forward(self, task: str, features: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.heads[task](features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_tasks_whose_columns_have_other_shapes_are_read_apart(tmp_path: Path) -> None:
    model, rows = _OfWidths(), {"narrow": _Wide(3), "wide": _Wide(5)}
    args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=8)
    expected = sum(float(model(name, **own.read_columns(np.arange(4)))["loss"]) for name, own in rows.items()) / 2
    trainer = MixingTrainer(model, args, train_dataset=rows, mixing="Uniform", batch_size=8)
    assert trainer.train().training_loss == pytest.approx(expected, rel=1e-6)
