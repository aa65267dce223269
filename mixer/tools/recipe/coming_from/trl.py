"""Configurations of TRL's scripts: `trl sft --config`, `trl dpo`, `trl reward`."""

from pathlib import Path
from typing import Any

from mixer.tools.recipe.coming_from import common
from mixer.tools.recipe.coming_from.common import Table
from mixer.tools.recipe.coming_from.source import Source
from mixer.utils.errors import require

_LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
_SINGLE = ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming")


def recipe_of(source: Source, keys: Table, _: Path) -> dict[str, Any]:
    """Makes a recipe.

    Args:
        source: The configuration.
        keys: Its table of keys.

    Raises:
        ValueError: If it names no data or no model.
    """
    trainer = next((name for name in ("dpo", "reward") if {*keys[name]} & {*source.content}), "sft")
    if source.content.get("lora_task_type") == "SEQ_CLS":
        trainer = "reward"
    elif trainer == "sft":
        source.left["trainer"] = (
            "the file does not name its script, and no key belongs to dpo or reward: read as trl sft"
        )
        source.left.harmless.add("trainer")
    model = common.model_of(source, "model_name_or_path", {"dtype": source.take("dtype", "float32")})
    model["config"] |= source.part("model_init_kwargs").content
    model |= common.adapters(source, keys, "use_peft is not true", source.take("use_peft", False), _LORA)
    kind, nested = source.take("bnb_4bit_quant_type", "nf4"), source.take("use_bnb_nested_quant", False)
    model |= common.quantized(common.bits_of(source), kind, nested, model["config"]["dtype"])
    recipe = {"trainer": trainer, "model": model}
    recipe |= source.named({"chat_template_path": "chat_template"})
    recipe |= _mixture(source) if "datasets" in source.content else _single(source)
    recipe["training"] = common.training_of(source, trainer, keys)
    source.close(keys["reasons"], harmless=keys["harmless"])
    return recipe


def _evaluates(source: Source) -> bool:
    return source.content.get("eval_strategy", "no") not in ("no", False)


def _mixture(source: Source) -> dict[str, Any]:
    streams: dict[str, Any] = {}
    places, shares = [], []
    for key in _SINGLE:
        source.leave(key, "TRL takes datasets in its place", is_harmless=True)
    streaming = {"streaming": True} if source.take("streaming", False) else {}
    for part in source.parts("datasets"):
        data = part.named({"name": "name", "split": "split", "columns": "columns"}) | streaming
        places.append(common.add_streams(streams, common.paths_of(part), {"data": data}))
        shares.append(part.take("fraction"))
        part.close({})
    require(bool(streams), "datasets", "one or more data sets", [])
    if not _evaluates(source):
        source.leave("test_split_size", "eval_strategy is no", is_harmless=True)
    elif not common.hold_out(source, "test_split_size", streams):
        source.leave("eval_strategy", "there are no rows to evaluate on", is_harmless=True)
    is_shared = any(share is not None for share in shares)
    return {"streams": streams, **(common.mixed(places, shares, "datasets.fraction") if is_shared else {})}


def _single(source: Source) -> dict[str, Any]:
    path = source.take("dataset_name")
    require(isinstance(path, str), "dataset_name", "the name of a data set, or datasets a list of them", path)
    names = {"dataset_config": "name", "dataset_train_split": "split", "dataset_streaming": "streaming"}
    data = source.named(names)
    if _evaluates(source):
        data["validation_split"] = source.take("dataset_test_split", "test")
    streams: dict[str, Any] = {}
    common.add_streams(streams, [path], {"data": data})
    return {"streams": streams}
