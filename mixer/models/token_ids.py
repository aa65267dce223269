"""Checks of token ids: those that a model's embedding does not have."""

from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor, nn

from mixer.models.inputs import inner_model
from mixer.utils.errors import InvalidValueError
from mixer.utils.user_code import library_of

_MOST_BYTES = 1 << 28  # of a column that are read when a trainer is made
_SPECIAL = ("_token_id", "_token_index")


def num_tokens_of(model: nn.Module) -> int | None:
    """Returns the number of tokens that a model of transformers embeds; `None` if other ids may have a meaning, too."""
    inner: Any = inner_model(model)
    if library_of(type(inner)) not in ("transformers", "mixer"):
        return None
    try:
        embedding = inner.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None
    if not isinstance(embedding, nn.Embedding):
        return None
    # Some models of images take ids beyond the embedding for them, which their configuration names.
    config = getattr(inner, "config", None)
    named = {} if config is None else vars(config)
    ids = [value for name, value in named.items() if name.endswith(_SPECIAL) and isinstance(value, int)]
    return embedding.num_embeddings if max(ids, default=0) < embedding.num_embeddings else None


def check_token_column(called: str, dataset: Any, num_tokens: int) -> None:
    """Refuses a data set with token ids outside of the embedding; reads the first 256 MiB of them.

    Args:
        called: Name of the data set, as the beginning of a sentence.
        dataset: The data set.
        num_tokens: The number of tokens.

    Raises:
        InvalidValueError: With the token and the way out.
    """
    is_plain = isinstance(dataset, datasets.Dataset) and dataset.format["type"] != "custom" and len(dataset) > 0
    if not is_plain or "input_ids" not in dataset.column_names:
        return
    kind = dataset.features.arrow_schema.field("input_ids").type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        return
    ids = dataset.select_columns("input_ids").with_format("arrow")
    bytes_per_row = ids.data.nbytes // max(1, ids.data.num_rows) or 1
    extremes = pc.min_max(pc.list_flatten(ids[: max(1, _MOST_BYTES // bytes_per_row)]["input_ids"])).as_py()
    _check(called, extremes["min"], extremes["max"], num_tokens)


def check_tokens(called: str, ids: Any, num_tokens: int) -> None:
    """Refuses token ids of a micro-batch that are outside of the embedding; see `check_token_column`."""
    if isinstance(ids, Tensor) and ids.numel() and not ids.is_floating_point():
        _check(called, int(ids.min()), int(ids.max()), num_tokens)


def _check(called: str, least: int | None, greatest: int | None, num_tokens: int) -> None:
    if least is None or greatest is None or 0 <= least <= greatest < num_tokens:
        return
    wrong = greatest if greatest >= num_tokens else least
    hint = (
        "Use the tokenizer of this model, give a new one a vocab_size of len(tokenizer) or more, or call "
        "model.resize_token_embeddings(len(tokenizer))."
    )
    raise InvalidValueError(
        f"{called}: it has the token id {wrong}, but the model has {num_tokens} tokens, 0 to {num_tokens - 1}. {hint}",
        option="input_ids",
        expected=f"ids from 0 to {num_tokens - 1}",
        found=wrong,
        hint=hint,
    )
