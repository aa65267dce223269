"""Configurations of LLaMA-Factory, with its `dataset_info.json`."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from mixer.tools.recipe.coming_from import common
from mixer.tools.recipe.coming_from.common import Table
from mixer.tools.recipe.coming_from.source import LeftKeys, Source
from mixer.tools.recipe.data.formats.conversation import ALL
from mixer.tools.recipe.places import placed
from mixer.utils.errors import require
from mixer.utils.text import safe_name
from mixer.utils.validation import load_json


def recipe_of(source: Source, keys: Table, folder: Path) -> dict[str, Any]:
    """Makes a recipe.

    Args:
        source: The configuration.
        keys: Its table of keys.
        folder: Its folder, where `dataset_dir` is looked for if it is not in the working directory.

    Raises:
        ValueError: If there is no such stage here, or the data or the model are not named.
        FileNotFoundError: If there is no dataset_info.json.
    """
    stage = str(source.take("stage", "sft"))
    require(stage in keys["stages"], "stage", f"one of {', '.join(keys['stages'])}", stage)
    trainer, streams, evaluation = keys["stages"][stage], dict[str, Any](), dict[str, Any]()
    model = _model(source, keys)
    sets = _known(source, folder)
    names = _add(source, keys, streams, "dataset", sets)
    mixing = _mixing(source, names)
    validates = common.hold_out(source, "val_size", streams)
    if "eval_dataset" in source.content:
        _add(source, keys, evaluation, "eval_dataset", sets, streams)
    if not source.take("streaming"):
        reason = "it is a slice, train[:N], which data of fewer rows do not have: take it out there"
        source.leave("max_samples", reason, is_harmless=True)
    training = _training(source, keys, stage, trainer, validates or bool(evaluation))
    source.close(keys["reasons"], harmless=keys["harmless"])
    own = {"evaluation": evaluation} if evaluation else {}
    return {"trainer": trainer, "model": model, "streams": streams, **mixing, **own, "training": training}


def _model(source: Source, keys: Table) -> dict[str, Any]:
    tuning, in_bf16 = source.take("finetuning_type", "lora"), bool(source.content.get("bf16"))
    dtype = "bfloat16" if in_bf16 and tuning == "lora" else "float32"
    model = common.model_of(source, "model_name_or_path", {"dtype": dtype})
    if tuning == "lora":
        defaults = {"r": 8, "lora_alpha": 2 * source.number("lora_rank", 8), "lora_dropout": 0.0}
        model["lora"] = {**defaults, **source.named(keys["lora"])}
        targets = source.texts("lora_target")
        model["lora"]["target_modules"] = "all-linear" if targets in (["all"], [""]) else targets
        if "additional_target" in source.content:
            model["lora"]["modules_to_save"] = source.texts("additional_target")
    for key in keys["lora"]:
        source.leave(key, "finetuning_type is not lora", is_harmless=True)
    if tuning not in ("lora", "full"):
        source.left["finetuning_type"] = f"there is no {tuning!r} here: the whole model is trained"
    kind, nested = source.take("quantization_type", "nf4"), source.take("double_quantization", True)
    bits = source.content.get("quantization_bit")
    if bits in (None, 4, 8):
        source.take("quantization_bit")
    return model | common.quantized(bits, kind, nested, dtype)


def _training(source: Source, keys: Table, stage: str, trainer: str, validates: bool) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if trainer == "sft":
        own["packing"] = source.take("neat_packing", False) or source.take("packing", stage == "pt")
        own |= {"packing_strategy": "wrapped"} if stage == "pt" else {}
        own |= {"completion_only_loss": False} if source.take("train_on_prompt", False) else {}
        source.take("packing")
    if stage == "dpo":
        own["loss_type"] = [loss := source.take("pref_loss", "sigmoid")]
        require(loss in keys["losses"], "pref_loss", f"one of {', '.join(keys['losses'])}", loss)
    if source.take("disable_gradient_checkpointing", False):
        own["gradient_checkpointing"] = False
    if not validates:
        source.leave("eval_strategy", "there are no rows to evaluate on", is_harmless=True)
    return common.training_of(source, trainer, keys) | own


def _mixing(source: Source, names: list[list[str]]) -> dict[str, Any]:
    if source.take("mix_strategy", "concat") == "concat":
        return {}
    source.left["mix_strategy"] = "its shares are carried over; the run's length is num_train_epochs or max_steps"
    if "interleave_probs" not in source.content:
        return {"mixing": "Uniform"}
    return common.mixed(names, source.texts("interleave_probs"), "interleave_probs")


def _known(source: Source, folder: Path) -> tuple[Any, Path]:
    """Reads dataset_info.json; `None` stands for the hub, whose data sets have their own names."""
    base = str(source.take("dataset_dir", "data"))
    if base == "ONLINE":
        return None, Path()
    place = next((own for own in (Path(base), folder / base) if (own / "dataset_info.json").is_file()), None)
    if place is None:
        looked = f"{str(Path(base).absolute())!r}, nor in {str(folder / base)!r}"
        raise FileNotFoundError(f"dataset_dir: there is no dataset_info.json in {looked}.")
    with placed("dataset_dir"), placed(str(place / "dataset_info.json")):
        return Source(load_json(place / "dataset_info.json"), LeftKeys(), "dataset_info.json.").content, place


def _add(
    source: Source, keys: Table, streams: dict[str, Any], key: str, sets: tuple[Any, Path], others: Collection[str] = ()
) -> list[list[str]]:
    """Adds the streams of data sets, and returns their names."""
    known, place = sets
    streaming = {"streaming": True} if source.content.get("streaming") else {}
    most = source.content.get("max_samples")
    stage, whole, names = source.content.get("stage", "sft"), source.content.get("train_on_prompt", False), []
    for name in source.texts(key):
        is_known = bool(name) and (known is None or name in known)
        require(is_known, key, f"one of those in dataset_info.json, {list(known or ())!r:.200}", name)
        entry = Source({"hf_hub_url": name} if known is None else known[name], source.left, f"dataset_info.{name}.")
        data = streaming | entry.named({"subset": "name", "split": "split"})
        if most and not streaming:
            data["split"] = f"{data.get('split', 'train')}[:{most}]"
        path = entry.take("hf_hub_url") or place / str(entry.take("file_name", ""))
        require(path != place / "", f"{entry.field}file_name", "given, or hf_hub_url: no other source is read", "")
        is_pair, form = bool(entry.take("ranking", False)), str(entry.take("formatting", "alpaca"))
        require(form in keys["formattings"], f"{entry.field}formatting", f"one of {[*keys['formattings']]}", form)
        needs_pairs = stage not in ("sft", "pt")
        require(is_pair is needs_pairs, f"{entry.field}ranking", f"{needs_pairs} for the stage {stage}", is_pair)
        columns, tags = entry.part("columns"), entry.part("tags")
        stream = {"data": data, **_format(columns, keys, stage, keys["formattings"][form], whole)}
        columns.close(keys["reasons"])
        tags.close(keys["messages"])
        entry.close(keys["reasons"], harmless=keys["harmless"])
        names.append(
            common.add_streams(streams, [str(path)], stream, f"eval_{name}" if safe_name(name) in others else name)
        )
    return names


def _format(columns: Source, keys: Table, stage: str, chats: str, whole: bool) -> dict[str, Any]:
    """Returns the format of a data set by its columns, if it is not the one that the trainer takes by itself."""
    if stage == "pt":
        return common.texts_in(columns.take("prompt", "text"))
    if chats and stage == "sft":
        column = columns.take("messages", chats)
        columns.close({**keys["reasons"], **keys["chats"]})
        train_on = "all" if whole else "assistant"
        return common.written("Chat", column=column, train_on=train_on, ignored_columns=[ALL])
    rename = {columns.take(key): ours for key, ours in keys["columns"].items() if key in columns.content}
    return common.dialogue(rename)
