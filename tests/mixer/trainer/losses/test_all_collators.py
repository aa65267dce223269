"""Every collator of transformers in a run of several streams, common to them or one stream's own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers.data.data_collator as collators
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    BertForMultipleChoice,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetLMHeadModel,
)

from mixer import Stream
from tests.helpers import VOCABULARY, _bert_config, build_model
from tests.mixer.forms import logged, trained, watched

Rows = list[dict[str, Any]]

# What there is in transformers' module of collators; a new one is to be tried here.
TRIED = {
    *("default_data_collator", "DefaultDataCollator", "DataCollatorWithPadding", "DataCollatorWithFlattening"),
    *("DataCollatorForTokenClassification", "DataCollatorForSeq2Seq", "DataCollatorForLanguageModeling"),
    *("DataCollatorForPermutationLanguageModeling", "DataCollatorForMultipleChoice"),
}
# Those that are no collators, and deprecated ones, which transformers 5.19 has still.
_OTHERS = {
    *("DataCollatorMixin", "torch_default_data_collator", "numpy_default_data_collator"),
    *("DataCollatorForSOP", "DataCollatorForWholeWordMask"),
}


class _Fresh(list[dict[str, Any]]):
    """Gives samples anew, as a data set does: one collator of transformers 5.19 takes labels out of its own."""

    def __getitem__(self, index: Any) -> Any:
        return dict(super().__getitem__(index))


def _tokenizer() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"w{number}" for number in range(VOCABULARY - len(special)))]
    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokens, mask_token="[MASK]", **names)


TOKENIZER = _tokenizer()
MASKED = "bert-masked-lm"


def _rows(seed: int, label: Callable[[list[int]], Any] | None, length: int | None = None) -> Rows:
    generator, rows = torch.Generator().manual_seed(seed), []
    for _ in range(8):
        size = length or 2 * int(torch.randint(2, 6, (1,), generator=generator))
        ids = torch.randint(5, VOCABULARY, (size,), generator=generator).tolist()
        row = {"input_ids": ids, "attention_mask": [1] * size}
        rows.append(row if label is None else {**row, "labels": label(ids)})
    return rows


def _choices(seed: int) -> Rows:
    parts = [_rows(seed + number, None) for number in range(3)]
    rows = []
    for row in range(8):
        columns = {name: [part[row][name] for part in parts] for name in parts[0][row]}
        rows.append({**columns, "labels": (seed + row) % 3})
    return _Fresh(rows)


def _t5() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes))


def _xlnet() -> nn.Module:
    torch.manual_seed(0)
    return XLNetLMHeadModel(
        XLNetConfig(vocab_size=VOCABULARY, d_model=16, n_layer=1, n_head=2, d_inner=32, dropout=0.0)
    )


def _chooser() -> nn.Module:
    torch.manual_seed(0)
    return BertForMultipleChoice(_bert_config())


def _class(ids: list[int]) -> int:
    return ids[0] % 3


def _causal(seed: int) -> Rows:
    return _rows(seed, None)


def _of_words(seed: int) -> Rows:
    return _rows(seed, _class)


def _of_six_words(seed: int) -> Rows:
    return _rows(seed, _class, 6)


# By case: the collator, a model (or the name of one of ours), and rows.
_CASES: dict[str, tuple[Callable[[], Any], Any, Callable[[int], Rows]]] = {
    "default": (lambda: collators.default_data_collator, "bert-classifier", _of_six_words),
    "default class": (collators.DefaultDataCollator, "bert-classifier", _of_six_words),
    "padding": (lambda: collators.DataCollatorWithPadding(TOKENIZER), "bert-classifier", _of_words),
    "tokens": (
        lambda: collators.DataCollatorForTokenClassification(TOKENIZER),
        "bert-tokens",
        lambda seed: _rows(seed, lambda ids: [token % 3 for token in ids]),
    ),
    "seq2seq": (
        lambda: collators.DataCollatorForSeq2Seq(TOKENIZER),
        _t5,
        lambda seed: _rows(seed, lambda ids: ids[: len(ids) // 2]),
    ),
    "causal": (lambda: collators.DataCollatorForLanguageModeling(TOKENIZER, mlm=False), "llama", _causal),
    "masked": (lambda: collators.DataCollatorForLanguageModeling(TOKENIZER, mlm_probability=0.4), MASKED, _causal),
    "permutation": (
        lambda: collators.DataCollatorForPermutationLanguageModeling(TOKENIZER),
        _xlnet,
        lambda seed: _rows(seed, None, 8),
    ),
    "choice": (lambda: collators.DataCollatorForMultipleChoice(TOKENIZER), _chooser, _choices),
    "flattening": (
        collators.DataCollatorWithFlattening,
        "llama",
        lambda seed: [{"input_ids": row["input_ids"]} for row in _causal(seed)],
    ),
}


def _model(name: str) -> nn.Module:
    made = _CASES[name][1]
    return build_model(made) if isinstance(made, str) else made()


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
    collator, _, rows = _CASES[name]
    own = {"data_collator": collator()} if is_own else {}
    data = {"a": rows(1), "b": rows(20), "c": rows(40)}
    streams = [Stream(key, values, **(own if key == "b" else {})) for key, values in data.items()]
    args = {"remove_unused_columns": False} if name == "choice" else {}
    trainer = trained(tmp_path, _model(name), streams, micro, 9, data_collator=collator(), args=args)
    _assert_losses(trainer, name == "flattening")
    assert trainer.ledger.to_pandas()["tokens"].min() > 0
    ids = [set(micro.stream_ids.tolist()) for batch, _ in trainer.batches for micro in batch.micro_batches]
    assert max(map(len, ids)) == (1 if is_own or name == "flattening" else 3 if micro == 64 else 2)


def test_masks_are_the_same_in_every_run_and_with_any_collator_beside(tmp_path: Path) -> None:
    def masks(beside: int) -> list[Tensor]:
        collator, _, rows = _CASES["masked"]
        streams = [Stream("a", rows(1), data_collator=collator()), Stream("b", rows(2))]
        torch.manual_seed(beside)
        trainer = watched(tmp_path, _model("masked"), streams, batch_size=8, data_collator=collator())
        torch.rand(beside)
        trainer.train()
        return [micro.inputs["labels"] for batch, _ in trainer.batches for micro in batch.micro_batches]

    for one, other in zip(masks(1), masks(7), strict=True):
        assert torch.equal(one, other)


def test_all_collators_of_transformers_are_tried() -> None:
    own = {name for name, value in vars(collators).items() if getattr(value, "__module__", "") == collators.__name__}
    found = {name for name in own if "collator" in name.lower()}
    assert found - _OTHERS == TRIED
