"""What configurations of other tools share: training arguments, models, adapters, data and shares."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import SchedulerType
from transformers.training_args import OptimizerNames

from mixer.run.config import MixingConfig, MixingOptions
from mixer.tools.recipe.coming_from.source import Source
from mixer.tools.recipe.data.formats.conversation import ALL
from mixer.tools.recipe.trainers import KINDS
from mixer.utils.errors import require
from mixer.utils.text import safe_name

Table = Mapping[str, Any]

_CHOICES: Table = {"optim": OptimizerNames, "lr_scheduler_type": SchedulerType}
_BUILDERS = ("json", "csv", "parquet", "text", "arrow")


def training_of(source: Source, trainer: str | None, keys: Table) -> dict[str, Any]:
    """Takes the training arguments: those of the trainer by their names, others by the table of keys."""
    own = MixingConfig if trainer is None else KINDS[trainer].load(KINDS[trainer].config)
    known = {field.name for field in fields(own)}
    known -= {field.name for field in fields(MixingOptions)}
    training: dict[str, Any] = {}
    for key in sorted(source.open, key=lambda key: key in keys["training"]):
        ours, value = keys["training"].get(key, key), source.content[key]
        value = "no" if value is False and ours.endswith("_strategy") else source.value(key)  # YAML reads no as false
        if key in keys["reasons"] or ours not in known:
            continue
        if ours in training:
            source.leave(key, f"another key gives training.{ours}")
        elif ours in _CHOICES and value not in {choice.value for choice in _CHOICES[ours]}:
            source.leave(key, f"the Trainer has no {value!r}, and takes its default")
        else:
            training[ours] = value
            source.take(key)
    if source.take("group_by_length", False):
        training["train_sampling_strategy"] = "group_by_length"
    return {**keys["defaults"], **training}


def model_of(source: Source, name: str, config: Table) -> dict[str, Any]:
    """Takes the model.

    Raises:
        ValueError: If there is none.
    """
    model = source.take(name)
    require(isinstance(model, str), name, "the name of a model", model)
    return {"name_or_path": model, "config": {**config, **source.named({"attn_implementation": "attn_implementation"})}}


def adapters(source: Source, keys: Table, condition: str, is_met: bool, defaults: Table) -> dict[str, Any]:
    """Takes the arguments of LoRA, if the condition is met."""
    if is_met:
        return {"lora": {**defaults, **source.named(keys["lora"])}}
    for key in keys["lora"]:
        source.leave(key, condition, is_harmless=True)
    return {}


def bits_of(source: Source) -> int | None:
    """Takes the number of bits that weights are loaded in; `None` for all of them."""
    found = [bits for bits in (4, 8) if source.take(f"load_in_{bits}bit", False)]
    return found[0] if found else None


def quantized(bits: Any, kind: Any = "nf4", nested: Any = True, computed: str = "bfloat16") -> dict[str, Any]:
    """Returns the field `quantization` of a model of 4 or 8 bits, and nothing for others."""
    if bits == 4:
        kinds = {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested, "bnb_4bit_compute_dtype": computed}
        return {"quantization": {"load_in_4bit": True, **kinds}}
    return {"quantization": {"load_in_8bit": True}} if bits == 8 else {}


def written(name: str, **arguments: Any) -> dict[str, Any]:
    """Returns the field `format` of a stream."""
    return {"format": {"class_path": name, "init_args": arguments}}


def dialogue(rename: Mapping[str, str]) -> dict[str, Any]:
    """Returns the field `format` of a stream of turns or answers; the other tools leave other columns unread."""
    names = {theirs: ours for theirs, ours in rename.items() if theirs != ours}
    return written("Dialogue", **({"rename": names} if names else {}), ignored_columns=[ALL])


def texts_in(column: Any) -> dict[str, Any]:
    """Returns the field `format` of a stream of texts; the trainer itself reads those in `text`."""
    return {} if column == "text" else written("Text", column=column, pack=False)


def paths_of(dataset: Source) -> list[str]:
    """Takes the paths of a data set: `path`, or the `data_files` or `data_dir` of a builder or a folder.

    Raises:
        ValueError: If there is no path.
    """
    path, files = dataset.take("path"), dataset.content.get("data_files")
    require(isinstance(path, str), f"{dataset.field}path", "that of the data", path)
    if path not in _BUILDERS and not Path(path).is_dir():
        for key in ("data_dir", "data_files"):
            dataset.leave(key, "data of the hub are read by name, configuration and split: download the files")
        return [path]
    base = Path("" if path in _BUILDERS else path) / str(dataset.take("data_dir", ""))
    dataset.take("data_files")
    if isinstance(files, Mapping):
        files = files.get(dataset.content.get("split", "train"))
    return [str(base / str(file)) for file in (files if isinstance(files, list) else [files or ""])]


def add_streams(streams: dict[str, Any], paths: Sequence[str], stream: Table, name: str = "") -> list[str]:
    """Adds a stream for each path, and returns their names, which come from the path unless one is given."""
    names = []
    for path in paths:
        own = name or Path(path).name.partition(".")[0].strip("*") or "data"
        names.append(add_stream(streams, own, {**stream, "data": {"path": path, **stream.get("data", {})}}))
    return names


def add_stream(streams: dict[str, Any], name: str, stream: Table) -> str:
    """Adds a stream, and returns its name, which has a number if it is another's, too."""
    base = safe_name(name)
    numbered = (f"{base}_{number}" for number in itertools.count(2))
    own: str = next(own for own in itertools.chain([base], numbered) if own not in streams)
    streams[own] = copy.deepcopy(dict(stream))
    return own


def mixed(places: Sequence[Sequence[str]], shares: Sequence[Any], option: str) -> dict[str, Any]:
    """Returns the field `mixing` of the shares of data sets, by the names of their streams.

    Raises:
        ValueError: If there is no number for each, or a data set has several streams.
    """
    try:
        numbers = [float(share) for share in shares]
    except (TypeError, ValueError):
        numbers = []
    require(len(numbers) == len(places), option, f"a number for each of {len(places)} data sets", f"{shares!r:.80}")
    is_each = all(len(names) == 1 for names in places)
    require(is_each, option, "one share for files that a pattern names, such as data/*.jsonl", places)
    return {"mixing": {names[0]: number for names, number in zip(places, numbers, strict=True)}}


def hold_out(source: Source, key: str, streams: Mapping[str, Any]) -> bool:
    """Takes the size of a validation set, of each stream; returns whether there is one."""
    size, reason = source.number(key), None
    if size >= 1 and len(streams) > 1:
        reason = "it is a number of rows of all data together: give each stream its own validation"
    elif size and any(stream["data"].get("streaming") for stream in streams.values()):
        reason = "no rows can be held out of streamed data: name a split, streams.NAME.data.validation_split"
    if reason is not None:
        source.left[key] = reason
    if reason is not None or not size:
        return False
    for stream in streams.values():
        stream["validation"] = size if size < 1 else int(size)
    return True
