"""The usual collators of transformers in a run of several streams, common to them or one stream's own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import transformers.data.data_collator as collators
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Trainer

from mixer import MixingTrainer, Stream
from tests.helpers import VOCABULARY, arguments, build_model, weights_of
from tests.losses import padded, ragged, small_model
from tests.mixer.forms import logged, trained, watched


def _tokenizer() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"w{number}" for number in range(VOCABULARY - len(special)))]
    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokens, mask_token="[MASK]", **names)


TOKENIZER = _tokenizer()


def _rows(name: str, seed: int) -> list[dict[str, Any]]:
    _, _, label, length = _CASES[name]
    generator, rows = torch.Generator().manual_seed(seed), []
    for _ in range(8):
        size = length or 2 * int(torch.randint(2, 6, (1,), generator=generator))
        ids = torch.randint(5, VOCABULARY, (size,), generator=generator).tolist()
        row = {"input_ids": ids} if name == "flattening" else {"input_ids": ids, "attention_mask": [1] * size}
        rows.append(row if label is None else {**row, "labels": label(ids)})
    return rows


# By case: the collator, the name of a model, what makes labels, and the length of rows where they have one.
_CASES: dict[str, tuple[Callable[[], Any], str, Any, int | None]] = {
    "default": (lambda: collators.default_data_collator, "bert-classifier", lambda ids: ids[0] % 3, 6),
    "padding": (lambda: collators.DataCollatorWithPadding(TOKENIZER), "bert-classifier", lambda ids: ids[0] % 3, None),
    "tokens": (
        lambda: collators.DataCollatorForTokenClassification(TOKENIZER),
        "bert-tokens",
        lambda ids: [token % 3 for token in ids],
        None,
    ),
    "causal": (lambda: collators.DataCollatorForLanguageModeling(TOKENIZER, mlm=False), "llama", None, None),
    "masked": (
        lambda: collators.DataCollatorForLanguageModeling(TOKENIZER, mlm_probability=0.4),
        "bert-masked-lm",
        None,
        None,
    ),
    "flattening": (collators.DataCollatorWithFlattening, "llama", None, None),
}


def _items(inputs: Any, shifts: bool) -> int:
    return int((inputs["labels"][..., 1:] if shifts else inputs["labels"]).ne(-100).sum())


def _parts(micro: Any) -> Iterator[tuple[int, Any]]:
    """The rows of a micro-batch by stream; all of them as they are where they are of one."""
    ids = micro.stream_ids.tolist()
    if len(set(ids)) == 1:
        yield ids[0], micro.inputs
        return
    for place, stream_id in enumerate(ids):
        yield stream_id, {key: value[place : place + 1] for key, value in micro.inputs.items()}


def _assert_losses(trainer: Any, is_by_stream: bool) -> None:
    shifts = trainer._loss_shifts_labels
    for (batch, model), entry in zip(trainer.batches, logged(trainer), strict=True):
        sums: dict[int, Any] = {}
        for micro in batch.micro_batches:
            assert not is_by_stream or len(set(micro.stream_ids.tolist())) == 1
            for stream_id, rows in _parts(micro):
                if count := _items(rows, shifts):
                    with torch.no_grad():
                        own = np.array([float(model(**rows).loss) * count, count])
                    sums[stream_id] = sums.get(stream_id, 0) + own
        for stream_id, (loss, items) in sums.items():
            assert entry[f"loss/{trainer.streams[stream_id].name}"] == pytest.approx(loss / items, rel=1e-4)
        loss, items = sum(sums.values())
        assert entry["loss"] == pytest.approx(loss / items, rel=1e-4)
        assert "loss/other" not in entry


@pytest.mark.parametrize(
    ("name", "is_own", "micro"),
    [*((name, False, 3) for name in _CASES), *((name, True, 3) for name in _CASES), ("padding", False, 64)],
)
def test_losses_by_stream_are_those_of_the_bare_model(tmp_path: Path, name: str, is_own: bool, micro: int) -> None:
    collator, model, _, _ = _CASES[name]
    own = {"data_collator": collator()} if is_own else {}
    data = {"a": _rows(name, 1), "b": _rows(name, 20), "c": _rows(name, 40)}
    streams = [Stream(key, values, **(own if key == "b" else {})) for key, values in data.items()]
    trainer = trained(tmp_path, build_model(model), streams, micro, 9, data_collator=collator())
    _assert_losses(trainer, name == "flattening")
    assert trainer.ledger.to_pandas()["tokens"].min() > 0
    ids = [set(micro.stream_ids.tolist()) for batch, _ in trainer.batches for micro in batch.micro_batches]
    assert max(map(len, ids)) == (1 if is_own or name == "flattening" else 3 if micro == 64 else 2)


def test_masks_are_the_same_in_every_run_and_with_any_collator_beside(tmp_path: Path) -> None:
    def masks(beside: int) -> list[Tensor]:
        collator, model, _, _ = _CASES["masked"]
        streams = [Stream("a", _rows("masked", 1), data_collator=collator()), Stream("b", _rows("masked", 2))]
        torch.manual_seed(beside)
        trainer = watched(tmp_path, build_model(model), streams, batch_size=8, data_collator=collator())
        torch.rand(beside)
        trainer.train()
        return [micro.inputs["labels"] for batch, _ in trainer.batches for micro in batch.micro_batches]

    for one, other in zip(masks(1), masks(7), strict=True):
        assert torch.equal(one, other)


_ROWS = ragged(12, 1)


class _OneRow(nn.Module):
    def __init__(self, shows_logits: bool) -> None:
        super().__init__()
        self.inner, self.shows_logits = small_model(), shows_logits

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        assert len(input_ids) == 1, "a single row"
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        loss = F.cross_entropy(logits[0, :-1], labels[0, 1:])
        return {"loss": loss, "logits": logits} if self.shows_logits else {"loss": loss}


def _one(rows: list[Any]) -> dict[str, Tensor]:
    (one,) = rows
    return padded([one])


def _weights(kind: Any, folder: Path, model: nn.Module, data: Any = _ROWS, collator: Any = _one, **options: Any) -> Any:
    own = {"per_device_train_batch_size": 1, "max_steps": 4, "train_sampling_strategy": "sequential", **options}
    sets = {"per_device_eval_batch_size": 1, "eval_strategy": "steps", "eval_steps": 4}
    args = arguments(folder, **own, **sets)
    kind(model, args, train_dataset=data, eval_dataset=_ROWS[:3], data_collator=collator).train()
    return weights_of(model)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("shows_logits", [True, False])
def test_a_model_of_one_row_trains_as_by_the_trainer(shows_logits, accumulation, tmp_path, caplog) -> None:
    options = {"gradient_accumulation_steps": accumulation}
    plain = _weights(Trainer, tmp_path / "plain", _OneRow(shows_logits), **options)
    own = _weights(MixingTrainer, tmp_path / "own", _OneRow(shows_logits), **options)
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-7)
    told = [record.getMessage() for record in caplog.records if "loss_reduction" in record.getMessage()]
    assert len(told) == (accumulation > 1 or not shows_logits)  # one row in all is the whole batch
    assert all("_OneRow" in message for message in told)


def test_a_collator_of_one_row_trains_as_by_the_trainer(tmp_path: Path) -> None:
    plain = _weights(Trainer, tmp_path / "plain", small_model())
    torch.testing.assert_close(_weights(MixingTrainer, tmp_path / "own", small_model()), plain, rtol=0, atol=1e-7)
