"""The trainers of embeddings, cross-encoders, sparse and multi-vector encoders on a mixture of streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mixer.mixture.stream import Stream
from mixer.run.config import MixingOptions
from mixer.run.samples import LoadingRules
from mixer.trainer.trainer import MixingMixin

try:
    from sentence_transformers.base.trainer import BaseTrainer
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.multi_vector_encoder import (
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sparse_encoder import SparseEncoderTrainer, SparseEncoderTrainingArguments

    from mixer.trainer.sentence_transformers.named_sets import NamedSets
except ImportError as error:
    needs = "pip install 'adaptive-mixer[sentence-transformers]'"
    raise ImportError(f"The trainers of sentence-transformers need that package ({error}): {needs}.") from error


@dataclass
class SentenceOptions(MixingOptions):
    """The options of a mixture for these trainers: steps of one stream, and losses that are means over a batch."""

    one_stream_per: str | None = "step"
    loss_reduction: str | None = "mean"


class _AllColumns(LoadingRules):
    """Leaves all columns to the collator, as these trainers do."""

    removes_columns = False


class SentenceMixin(MixingMixin):
    """Makes a trainer of sentence-transformers train on a mixture of streams; see `MixingMixin`.

    `loss`, `evaluator`, prompts and batch samplers are those of the package; a dict of losses or prompts goes by the
    names of the streams. In place of its samplers of several data sets, the policy chooses whose batch comes next.
    """

    options_class: ClassVar[type[MixingOptions]] = SentenceOptions
    # It makes loaders with batches of one data set each, of which the steps of a mixture are made as well.
    carried_overrides: ClassVar[frozenset[tuple[type, str]]] = frozenset({(BaseTrainer, "get_train_dataloader")})

    def _new_rules(self, max_samples: int | None) -> LoadingRules:
        return _AllColumns(self, max_samples)

    def _new_preparation(self, streams: Sequence[Stream], length: int | None) -> NamedSets:
        return NamedSets(self, streams, length)


@dataclass
class MixingSentenceTransformerConfig(SentenceOptions, SentenceTransformerTrainingArguments):
    """The training arguments of a `MixingSentenceTransformerTrainer`; see `MixingOptions`, and the package."""


class MixingSentenceTransformerTrainer(SentenceMixin, SentenceTransformerTrainer):
    """The `SentenceTransformerTrainer` on a mixture of streams; see `MixingMixin` and that class for the arguments.

    Example:
        >>> trainer = MixingSentenceTransformerTrainer(  # doctest: +SKIP
        ...     model,
        ...     args=MixingSentenceTransformerConfig("out", batch_sampler="no_duplicates"),
        ...     train_dataset={"questions": questions, "titles": titles},
        ...     loss=MultipleNegativesRankingLoss(model),
        ...     mixing={"questions": 2, "titles": 1},
        ... )
    """


@dataclass
class MixingCrossEncoderConfig(SentenceOptions, CrossEncoderTrainingArguments):
    """The training arguments of a `MixingCrossEncoderTrainer`; see `MixingOptions`, and the package."""


class MixingCrossEncoderTrainer(SentenceMixin, CrossEncoderTrainer):
    """The `CrossEncoderTrainer` on a mixture of streams; see `MixingMixin` and that class for the arguments."""


@dataclass
class MixingSparseEncoderConfig(SentenceOptions, SparseEncoderTrainingArguments):
    """The training arguments of a `MixingSparseEncoderTrainer`; see `MixingOptions`, and the package."""


class MixingSparseEncoderTrainer(SentenceMixin, SparseEncoderTrainer):
    """The `SparseEncoderTrainer` on a mixture of streams; see `MixingMixin` and that class for the arguments."""


@dataclass
class MixingMultiVectorEncoderConfig(SentenceOptions, MultiVectorEncoderTrainingArguments):
    """The training arguments of a `MixingMultiVectorEncoderTrainer`; see `MixingOptions`, and the package."""


class MixingMultiVectorEncoderTrainer(SentenceMixin, MultiVectorEncoderTrainer):
    """The `MultiVectorEncoderTrainer` on a mixture of streams; see `MixingMixin` and that class for the arguments."""
