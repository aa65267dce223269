"""Streams whose rows the recipe's own model writes before the run, kept in the run's folder."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from mixer.distributed.collectives import RankSync, RemoteError
from mixer.tools.recipe.data.source import DataSource
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.streams import Factory, StreamRecipe, call_by_name
from mixer.utils.errors import require
from mixer.utils.files import folder_name, write_text
from mixer.utils.random_state import RandomState

FOLDER = "generated"


def with_written_rows(
    streams: Mapping[str, StreamRecipe], model: ModelRecipe, tokenizer: Any, training: TrainingArguments
) -> dict[str, StreamRecipe]:
    """Gives each stream with `generated` the file of its rows; all ranks write what is missing.

    Args:
        streams: The recipe's streams.
        model: The recipe's model.
        tokenizer: The recipe's tokenizer.
        training: The recipe's training arguments; the files are in its `output_dir`.

    Returns:
        The streams by name.

    Raises:
        ValueError: If the function fails, or the stream has other data; names the stream.
    """
    found = dict(streams)
    for name, stream in streams.items():
        if (function := stream.generated) is not None:
            with placed(f"streams.{name}"):
                stream.check_source()
                require(tokenizer is not None, "generated", "left out, or tokenizer given, too", None)
                digest = _digest(function, model, tokenizer)
                path = Path(str(training.output_dir)) / FOLDER / f"{folder_name(name)}-{digest}.jsonl"
                _write(path, function, model, tokenizer, training)
                found[name] = dataclasses.replace(stream, generated=None, data=DataSource(str(path)))
    return found


def _digest(function: Factory, model: ModelRecipe, tokenizer: Any) -> str:
    """Names what decides the rows: the function, the model with the files of its folder, and the chat template."""
    own = {option.name: getattr(model, option.name) for option in dataclasses.fields(model) if option.name != "lora"}
    folder = Path(model.loaded_from or "")
    files = sorted(folder.glob("*.safetensors")) if model.loaded_from and folder.is_dir() else []
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    known = [dataclasses.asdict(function), own, stats, getattr(tokenizer, "chat_template", None)]
    return hashlib.sha256(json.dumps(known, default=str, sort_keys=True).encode()).hexdigest()[:16]


def _write(path: Path, function: Factory, model: ModelRecipe, tokenizer: Any, training: TrainingArguments) -> None:
    ranks = RankSync(training.world_size, training.ddp_timeout_delta)
    if not ranks.max_over_ranks(int(not path.is_file())):
        return
    before = RandomState.capture()
    try:
        built = ranks.run_on_all(lambda: _built(model, training))
        rows = call_by_name("generated", function.factory, function.arguments, built, tokenizer, ranks)
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        # The others read it once it is there.
        ranks.run_on_all(lambda: write_text(path, text) if training.local_process_index == 0 else None)
    except RemoteError as error:
        raise ValueError(str(error)) from None
    finally:
        before.restore()


def _built(model: ModelRecipe, training: TrainingArguments) -> Any:
    built: Any = model.build(adapts=False)
    return built if getattr(built, "is_quantized", False) else built.to(training.device)
