"""The streams of tools whose configurations are tables: one function a way of naming data."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixer.tools.recipe.coming_from import common
from mixer.tools.recipe.coming_from.common import Table
from mixer.tools.recipe.coming_from.source import Source
from mixer.tools.recipe.data.formats.conversation import ALL
from mixer.tools.recipe.streams import COLUMN_TRAINERS
from mixer.utils.errors import require


def tokens(source: Source, keys: Table, folder: Path, recipe: dict[str, Any]) -> None:
    """Adds the token files of a blend, `weight path weight path` or paths alone, and their weights.

    Raises:
        ValueError: If there is no blend, or no length of a sequence.
        FileNotFoundError: If the blend stands in a file that does not exist.
    """
    key, blend = _first(source, keys["blend"]), _blend(source, keys["blend"], folder)
    length = _length(source, keys)
    places, shares = _weighted(blend, key)
    names = [
        common.add_stream(recipe["streams"], Path(path).name.removesuffix("_text_document"), _token_file(path, length))
        for path in places
    ]
    if shares:
        recipe |= common.mixed([[name] for name in names], shares, key)
    if any(other in source.content for other in keys["validation_blend"]):
        for path in _weighted(_blend(source, keys["validation_blend"], folder), key)[0]:
            common.add_stream(recipe.setdefault("evaluation", {}), f"eval_{Path(path).name}", _token_file(path, length))
    _hold_out(source, keys, recipe)


def _first(source: Source, keys: Sequence[str]) -> str:
    found = next((key for key in keys if key in source.content), None)
    require(found is not None, keys[0], f"given, or one of {', '.join(keys[1:])}", list(source.content))
    return str(found)


def _length(source: Source, keys: Table) -> Any:
    """Takes the length of a sequence, which may stand in several places."""
    length = source.value(_first(source, keys["length"]))
    for key in keys["length"]:
        if source.value(key) == length:
            source.take(key)
    return length


def _blend(source: Source, keys: Sequence[str], folder: Path) -> list[Any]:
    """Takes a blend: a list, a text, or the name of a file with one, by split or not."""
    key = _first(source, keys)
    blend = source.take(key)
    if key.endswith("args_path"):
        path = next((own for own in (Path(blend), folder / blend) if own.is_file()), Path(blend))
        text = path.read_text(encoding="utf-8")
        blend = json.loads(text)["train"] if key.startswith("per_split") else text
    return shlex.split(blend) if isinstance(blend, str) else list(blend)


def _weighted(blend: Sequence[Any], key: str) -> tuple[list[str], list[Any]]:
    """Returns the paths of a blend and their weights, none if it has paths alone."""
    if len(blend) == 2 and all(isinstance(part, list) for part in blend):  # as Megatron-Bridge has them
        return blend[0], blend[1] or []
    is_weighted = len(blend) % 2 == 0 and all(_is_number(part) for part in blend[::2])
    paths = [str(part) for part in (blend[1::2] if is_weighted else blend)]
    wrong = [part for part in paths if _is_number(part)]
    require(bool(paths) and not wrong, key, "paths, or weights and paths in turn", f"{blend!r:.200}")
    return paths, list(blend[::2]) if is_weighted else []


def _is_number(part: Any) -> bool:
    try:
        return float(part) >= 0
    except (TypeError, ValueError):
        return False


def _token_file(path: str, length: Any) -> dict[str, Any]:
    return {"factory": "mixer.TokenFile", "arguments": {"path": f"{path}.bin", "sequence_length": length}}


def _hold_out(source: Source, keys: Table, recipe: dict[str, Any]) -> None:
    """Takes shares of documents to train on, to validate and to test, `969,30,1`."""
    key = next((key for key in keys["split"] if key in source.content), None)
    if key is None or "evaluation" in recipe:
        return
    shares = [float(share) for share in source.texts(key)]
    if len(shares) > 1 and shares[1] > 0:
        recipe["training"]["eval_strategy"] = "steps"
        source.left[key] = "validation rows are drawn from the whole file, and none are left for a test"
        for stream in recipe["streams"].values():
            stream["validation"] = round(shares[1] / sum(shares), 6)


def texts(source: Source, keys: Table, _: Path, recipe: dict[str, Any]) -> None:
    """Adds the texts of one or more of a tool's own data sets, packed into blocks, and their weights.

    Raises:
        ValueError: If a data set is unknown, or there is none.
    """
    length = _length(source, keys)
    parts, names, shares = source.parts("dataloader.sources"), [], []
    if not parts:
        places = [key for key in keys["dataset"] if key in source.content]
        one = {key.rpartition(".")[2]: source.take(key) for key in places}
        parts = [Source(one, source.left, f"{keys['dataset'][0].partition('.')[0]}.")]
    for part in parts:
        name, path = part.take("dataset"), part.take("dataset_path")
        known = keys["datasets"].get(name, {"path": path})
        require(known["path"] is not None, f"{part.field}dataset", f"one of {[*keys['datasets']]}, or a path", name)
        data = {**known, **({} if path is None else {"path": path})}
        stream = {"data": data, **common.written("Text", max_length=length)}
        names.append([common.add_stream(recipe["streams"], str(name or Path(path).name), stream)])
        shares.append(part.take("weight", 1.0))
        part.close(keys["reasons"], harmless=keys["harmless"])
    recipe |= common.mixed(names, shares, "dataloader.sources") if len(names) > 1 else {}


def columns(source: Source, keys: Table, _: Path, recipe: dict[str, Any]) -> None:
    """Adds data sets of which a trainer of sentence-transformers reads the columns, and the one loss of a card."""
    names = [name for key in keys["dataset"] if key in source.content for name in source.texts(key)]
    for path in names:
        common.add_streams(recipe["streams"], [path], {})
    if not names:
        common.add_streams(recipe["streams"], ["DATA"], {})
        source.left["datasets"] = "the arguments name no data: write your own in streams"
    tags = source.texts("tags") if "tags" in source.content else []
    recipe["trainer"] = next((kind for kind in COLUMN_TRAINERS if kind in tags), recipe["trainer"])
    losses = [tag.removeprefix("loss:") for tag in tags if tag.startswith("loss:")]
    if len(losses) == 1:
        recipe["loss"] = losses[0]
    source.left["loss"] = "give its arguments, or one for each stream" if losses else "no key names it: give loss"
    if not tags:
        source.left["trainer"] = "no key names it: read as SentenceTransformerTrainer"
        source.left.harmless.add("trainer")


def specifications(source: Source, keys: Table, _: Path, recipe: dict[str, Any]) -> None:
    """Adds data sets `name:subset#rows`, their shares, and the adapters of ms-swift."""
    tuner = source.take("tuner_type", source.take("train_type", "lora"))
    require(tuner in ("lora", "full"), "tuner_type", "lora or full", tuner)
    recipe["model"] |= common.adapters(source, keys, "tuner_type is full", tuner == "lora", keys["lora_defaults"])
    is_known, kind = "rlhf_type" not in source.left, source.content.get("rlhf_type")
    require(is_known, "rlhf_type", "dpo or rm, the trainers here", kind)
    if not {"gradient_accumulation_steps", "global_batch_size"} & source.content.keys():
        recipe["batch_size"] = max(16, source.content.get("per_device_train_batch_size", 1))
    if tuner == "full":
        recipe["training"]["learning_rate"] = source.take("learning_rate", 1.0e-5)
    form = _rows(source, keys, recipe)
    names = _specified(source, "dataset", recipe["streams"], form)
    if "interleave_prob" in source.content:
        recipe |= common.mixed(names, source.texts("interleave_prob"), "interleave_prob")
    own: dict[str, Any] = {}
    if source.content.get("val_dataset"):
        _specified(source, "val_dataset", own, form)
        recipe["evaluation"] = {f"eval_{name}": stream for name, stream in own.items()}
    if not own and not common.hold_out(source, "split_dataset_ratio", recipe["streams"]):
        for key in ("eval_steps", "eval_strategy"):
            source.leave(key, "there are no rows to evaluate on", is_harmless=True)
    elif "eval_strategy" not in source.content:
        recipe["training"]["eval_strategy"] = "steps"
    if kind is None:
        source.left["trainer"] = "no key belongs to swift rlhf: read as swift sft"
        source.left.harmless.add("trainer")
    for key in ("streaming", "use_hf"):
        source.take(key)


def _rows(source: Source, keys: Table, recipe: Table) -> dict[str, Any]:
    """Returns the format of all streams: by the columns that are named, else messages, as ms-swift's own rows have."""
    whole = source.content.get("loss_scale") == "all"
    if columns := source.take("columns", {}):
        return common.dialogue({theirs: keys["columns"].get(own, own) for theirs, own in columns.items()})
    if recipe["trainer"] != "sft":
        source.left["rows"] = "pairs are read of chosen and rejected: write rows of messages and rejected_response so"
        return {}
    source.left["rows"] = "they are assumed to have messages: without the field format other ones are recognised, too"
    train_on = "all" if whole else "assistant"
    return common.written("Chat", column="messages", train_on=train_on, ignored_columns=[ALL])


def _specified(source: Source, key: str, streams: dict[str, Any], form: Table) -> list[list[str]]:
    """Adds the streams of data sets that are written `name:subset#rows`, and returns their names."""
    streaming = {"streaming": True} if source.content.get("streaming") else {}
    names = []
    for written in source.texts(key):
        name, _, rows = written.partition("#")
        path, _, subset = name.removeprefix("hf::").removeprefix("ms::").partition(":")
        data: dict[str, Any] = {**({"name": subset} if subset else {}), **streaming}
        stream = {"data": data, **form}
        if rows and streaming:
            stream["max_samples"] = int(rows)
        elif rows:
            data["split"] = f"train[:{rows}]"
        if rows:
            source.left[key] = "of data sets with #rows the first rows are taken, and none twice"
        if not Path(path).exists() and not (name.startswith("hf::") or source.content.get("use_hf")):
            source.left["use_hf"] = "data and models of ModelScope are looked for on Hugging Face's hub"
        names.append(common.add_streams(streams, [path], stream))
    return names
