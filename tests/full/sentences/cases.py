"""Tiny models of sentence-transformers, small sets of texts, and runs on them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.sampler import MultiDatasetDefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from mixer import (
    MixingCrossEncoderConfig,
    MixingCrossEncoderTrainer,
    MixingMultiVectorEncoderConfig,
    MixingMultiVectorEncoderTrainer,
    MixingSentenceTransformerConfig,
    MixingSentenceTransformerTrainer,
    MixingSparseEncoderConfig,
    MixingSparseEncoderTrainer,
)
from tests.helpers import plain_options

NUM_WORDS = 60
_SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
_SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KINDS: dict[str, tuple[Any, Any]] = {
    "sentence": (MixingSentenceTransformerTrainer, MixingSentenceTransformerConfig),
    "cross": (MixingCrossEncoderTrainer, MixingCrossEncoderConfig),
    "sparse": (MixingSparseEncoderTrainer, MixingSparseEncoderConfig),
    "multi_vector": (MixingMultiVectorEncoderTrainer, MixingMultiVectorEncoderConfig),
}


def tokenizer() -> PreTrainedTokenizerFast:
    words = {**_SPECIAL, **{f"w{number}": 5 + number for number in range(NUM_WORDS)}, "query:": 5 + NUM_WORDS}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **names)


def model_of(kind: str, folder: Path, num_labels: int = 1) -> Any:
    """A new model with the same weights each time, by way of a folder, from which the package loads."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=6 + NUM_WORDS, **_SIZES, **_NO_DROPOUT, num_labels=num_labels)
    classes = {"cross": BertForSequenceClassification, "sparse": BertForMaskedLM}
    place = str(folder / f"tiny-{kind}-{num_labels}")
    if not Path(place).exists():
        classes.get(kind, BertModel)(config).save_pretrained(place)
        tokenizer().save_pretrained(place)
    if kind == "cross":
        return CrossEncoder(place, device="cpu")
    if kind == "sparse":
        return SparseEncoder(place, device="cpu")
    if kind == "multi_vector":
        torch.manual_seed(1)  # of the projection, which is new each time
        return MultiVectorEncoder(place, device="cpu")
    transformer = Transformer(place)
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu")


def texts(seed: int, number: int) -> list[str]:
    random = np.random.default_rng([7, seed])
    return [
        " ".join(f"w{word}" for word in random.integers(0, NUM_WORDS, random.integers(2, 7))) for _ in range(number)
    ]


def pairs(seed: int, number: int, **columns: Any) -> datasets.Dataset:
    """Pairs of texts that share words, for losses with negatives in the batch."""
    first, second = texts(seed, number), texts(seed + 100, number)
    return datasets.Dataset.from_dict(
        {"anchor": first, "positive": [f"{a} {b}" for a, b in zip(first, second, strict=True)], **columns}
    )


def scored(seed: int, number: int) -> datasets.Dataset:
    random = np.random.default_rng(seed)
    own = {"sentence1": texts(seed, number), "sentence2": texts(seed + 100, number)}
    return datasets.Dataset.from_dict({**own, "score": random.random(number).round(3).tolist()})


def three_sets() -> dict[str, datasets.Dataset]:
    return {"a": pairs(1, 20), "b": pairs(2, 11), "c": pairs(3, 6)}


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    own = {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "max_steps": 8, "optim": "adamw_torch"}
    return plain_options(folder, **{**own, "learning_rate": 1e-2, "seed": 3, **changes})


def make(folder: Path, kind: str = "sentence", model: Any = None, args: Any = None, **changes: Any) -> Any:
    trainer, config = KINDS[kind]
    model = model_of(kind, folder) if model is None else model
    loss = changes.pop("loss", None)
    given = {"train_dataset": three_sets(), **changes}
    if loss is not None:
        given["loss"] = loss(model) if callable(loss) else {name: own(model) for name, own in loss.items()}
    return trainer(model, args=config(**options(folder, **(args or {}))), **given)


def towards_a_target(folder: Path, **args: Any) -> Any:
    """A trainer by `auto` whose target is answered as in one of two sets, and otherwise in the other."""

    def answered(shift: int, seed: int, number: int) -> datasets.Dataset:
        random = torch.Generator().manual_seed(seed)
        words = torch.randint(0, 10, (number, 6), generator=random).tolist()
        anchors = [" ".join(f"w{word}" for word in own) for own in words]
        positives = [" ".join(f"w{(word + shift) % 10 + 10}" for word in own) for own in words]
        return datasets.Dataset.from_dict({"anchor": anchors, "positive": positives})

    sets, target = {"near": answered(5, 1, 2000), "far": answered(2, 2, 2000)}, {"target": answered(5, 3, 80)}
    own: dict[str, Any] = {"train_dataset": sets, "eval_dataset": target, "objective": "target", "mixing": "auto"}
    return make(folder, args=args, loss=MultipleNegativesRankingLoss, **own)


def rows_of(trainer: Any) -> list[tuple[str, list[int]]]:
    """Makes a trainer note the stream and the rows of each step."""
    steps: list[tuple[str, list[int]]] = []
    load = trainer.get_batch_samples

    def noting(*args: Any, **kwargs: Any) -> Any:
        batches, num_items = load(*args, **kwargs)
        for batch in batches:
            rows = [row for micro in batch.micro_batches for row in micro.indices.tolist()]
            steps.append((trainer.mixing.names[batch.plan.first_stream], rows))
        return batches, num_items

    trainer.get_batch_samples = noting
    return steps


def replaying(names: Sequence[str], steps: Sequence[tuple[str, list[int]]]) -> type:
    """A sampler of several data sets that gives the batches that were noted."""

    class Replaying(MultiDatasetDefaultBatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            starts = dict(zip(names, np.cumsum([0, *map(len, self.dataset.datasets)]).tolist(), strict=False))
            yield from ([starts[name] + row for row in rows] for name, rows in steps)

        def __len__(self) -> int:
            return len(steps)

    return Replaying


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
