"""Configurations of Axolotl."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixer.tools.recipe.coming_from import common
from mixer.tools.recipe.coming_from.common import Table
from mixer.tools.recipe.coming_from.source import Source
from mixer.tools.recipe.data.formats.conversation import ALL
from mixer.tools.recipe.data.formats.template import chat_template_of
from mixer.tools.recipe.data.suffixes import suffix_of
from mixer.utils.errors import require


def recipe_of(source: Source, keys: Table, _: Path) -> dict[str, Any]:
    """Makes a recipe.

    Args:
        source: The configuration.
        keys: Its table of keys.

    Raises:
        ValueError: If there is no such trainer here, or the data or the model are not named.
    """
    kind, is_reward = source.take("rl", False), source.take("reward_model", False)
    require(kind in (False, "dpo", "ipo"), "rl", "dpo or ipo, the trainers here, or reward_model: true", kind)
    trainer = "reward" if is_reward else "sft"
    trainer = "dpo" if kind else trainer
    streams, evaluation, whole = dict[str, Any](), dict[str, Any](), source.take("train_on_inputs", False)
    recipe = {"trainer": trainer, "model": _model(source, keys), **source.named({"tokenizer_config": "tokenizer"})}
    recipe |= _template(source, keys, trainer)
    for key, to in (("datasets", streams), ("pretraining_dataset", streams), ("test_datasets", evaluation)):
        for part in source.parts(key):
            _add(part, to, keys, trainer, whole, key == "pretraining_dataset")
            is_asked = trainer == "sft" and _name(part.content.get("type")) in keys["instructions"]
            if is_asked and recipe.get("chat_template") != keys["templates"]["alpaca"]:
                part.left[f"{part.field}type"] = "instructions become turns of the chat template, not Alpaca's words"
    require(bool(streams), "datasets", "data that there is a format for", f"{source.left!r:.500}")
    validates = common.hold_out(source, "val_set_size", streams)
    own: dict[str, Any] = {"loss_type": ["ipo"]} if kind == "ipo" else {}
    own |= {"completion_only_loss": False} if whole and not kind else {}
    training = _training(source, keys, trainer, validates or bool(evaluation)) | own
    source.close(keys["reasons"], harmless=keys["harmless"])
    sets = {"evaluation": {f"eval_{name}": stream for name, stream in evaluation.items()}} if evaluation else {}
    return {**recipe, "streams": streams, **sets, "training": training}


def _model(source: Source, keys: Table) -> dict[str, Any]:
    in_bf16, in_fp16 = source.content.get("bf16", "auto"), source.content.get("fp16")
    dtype = "bfloat16" if in_bf16 else "float32"
    dtype = "float16" if in_fp16 else dtype
    model, adapter = common.model_of(source, "base_model", {"dtype": dtype}), source.take("adapter")
    require(adapter in (None, "lora", "qlora"), "adapter", "lora or qlora", adapter)
    model |= common.adapters(source, keys, "there is no adapter", adapter is not None, {})
    if adapter is not None and source.take("lora_target_linear", False):
        model["lora"]["target_modules"] = "all-linear"
    return model | common.quantized(common.bits_of(source))


def _template(source: Source, keys: Table, trainer: str) -> dict[str, Any]:
    """Takes the chat template: in Jinja, or by a name that TRL has, too; without one it is the tokenizer's own."""
    templates, name = keys["templates"], str(source.content.get("chat_template", "tokenizer_default"))
    given = source.content.get("datasets")
    kinds = {_name(part.get("type")) for part in given if isinstance(part, dict)} if isinstance(given, list) else {""}
    if "chat_template_jinja" in source.content:
        source.take("chat_template")
        return {"chat_template": source.take("chat_template_jinja")}
    if name == "tokenizer_default" and trainer == "sft" and kinds <= keys["instructions"].keys():
        name = "alpaca"
    if name == "tokenizer_default" or name in templates:
        source.take("chat_template")
        return {"chat_template": templates[name]} if name in templates else {}
    try:
        chat_template_of(name)
    except ValueError:
        return {}
    source.take("chat_template")
    return {"chat_template": name}


def _training(source: Source, keys: Table, trainer: str, validates: bool) -> dict[str, Any]:
    own: dict[str, Any] = {"bf16": bool(source.take("bf16", "auto")) and not source.content.get("fp16")}
    if not validates:
        for key in ("evals_per_epoch", "eval_strategy", "eval_steps"):
            source.leave(key, "there are no rows to evaluate on", is_harmless=True)
    training = common.training_of(source, trainer, keys)
    for name in ("save", "eval") if validates else ("save",):
        count, strategy, steps = f"{name}s_per_epoch", f"{name}_strategy", f"{name}_steps"
        if count in source.content:  # below 1 steps are a share of the run
            share = 1 / (max(source.number(count), 1) * source.number("num_epochs", 1))
            own |= {strategy: "steps", steps: share} if share < 1 else {strategy: "epoch"}
        elif strategy not in training:
            own[strategy] = "steps" if steps in training else "epoch"
    tokens = source.part("special_tokens")
    own |= tokens.named({key: key for key in ("pad_token", *(["eos_token"] if trainer != "dpo" else []))})
    tokens.close(keys["reasons"])
    return training | own


def _add(part: Source, streams: dict[str, Any], keys: Table, trainer: str, whole: bool, is_text: bool) -> None:
    """Adds the streams of a data set."""
    kind = part.content.get("type", "completion" if is_text else None)
    stream = _format(part, keys, "completion" if kind == "pretrain" else kind, trainer, whole)
    if stream is None:
        part.left[part.field.removesuffix(".")] = (
            f"rows of the type {kind!r} have no format here, so the stream is left out: write one (docs/data.md)"
        )
        return
    part.take("type")
    data = part.named({"name": "name", "split": "split", "revision": "revision"})
    stream |= {"data": data | ({"streaming": True} if is_text else {})}
    if part.content.keys() & {"shards", "weight"}:  # Axolotl keeps this share of the rows
        share = part.number("weight", 1) / max(part.number("shards", 1), 1)
        require(0 < share <= 1, f"{part.field}weight", "a share of the rows, above 0 and up to 1", share)
        stream["rows_share"] = share
    paths = common.paths_of(part)
    common.add_streams(streams, paths, stream)
    if {suffix_of(Path(path)) for path in paths} <= {f".{part.content.get('ds_type')}", ".jsonl", None}:
        part.take("ds_type")
    part.close(keys["reasons"], harmless=keys["harmless"])


def _name(kind: Any) -> str:
    return str(kind).partition(":")[0]


def _format(part: Source, keys: Table, kind: Any, trainer: str, whole: bool) -> dict[str, Any] | None:
    """Takes the format of a data set's rows, if they need one; `None` for an unknown type."""
    name = _name(kind)
    if isinstance(kind, Mapping):
        return _written_out(part.part("type"), trainer, whole)
    if trainer != "sft":
        names = {"field_messages": "conversations", "field_chosen": "chosen", "field_rejected": "rejected"}
        known = keys["pairs"].get(name.rpartition(".")[2])
        given = {part.take(key): ours for key, ours in names.items() if key in part.content}
        other = {} if known is None else {theirs: ours for theirs, ours in known.items() if ours not in given.values()}
        return None if known is None else common.dialogue(other | given)
    if name in ("chat_template", "sharegpt"):
        return _chat(part, keys, "messages" if name == "chat_template" else "conversations", whole)
    if name == "completion":
        return common.texts_in(part.take("text_column", part.take("field", "text")))
    if kind is None:
        return {}
    known = keys["instructions"].get(name)
    return None if known is None else common.dialogue(known)


def _chat(part: Source, keys: Table, column: str, whole: bool) -> dict[str, Any]:
    arguments = {"column": part.take("field_messages", column), **part.named({"chat_template_jinja": "chat_template"})}
    given = part.content.get("roles_to_train", ["assistant"])
    roles = {str(role) for role in (given if isinstance(given, list) else [given])}
    if whole or roles in ({"assistant"}, {"user", "assistant"}, {"system", "user", "assistant"}):
        part.take("roles_to_train")
        arguments["train_on"] = "all" if whole or len(roles) > 1 else "assistant"
    fields = part.part("message_property_mappings")
    fields.close(keys["messages"], "messages have the fields of chat templates: rename them in the data")
    part.named({key: key for key in ("message_field_role", "message_field_content")})
    for key, reason in keys["chats"].items():
        fits = isinstance(reason, Mapping) and part.content.get(key) in reason["fits"]
        part.take(key) if fits else part.leave(key, reason["why"] if isinstance(reason, Mapping) else reason)
    return common.written("Chat", **arguments, ignored_columns=[ALL])


def _written_out(own: Source, trainer: str, whole: bool) -> dict[str, Any]:
    """Takes a type that is written out: names of columns, and a template."""
    template = own.take("format")
    named = ("instruction", "input", "output") if trainer == "sft" else ("prompt", "chosen", "rejected")
    columns = {name: own.content.get(f"field_{name}", name) for name in named}
    given = {own.take(f"field_{name}"): name for name in (*named, "system") if f"field_{name}" in own.content}
    own.close({}, "a prompt has one template: write it there, in format")
    if template is None or trainer != "sft":
        return common.dialogue(given)
    for name in ("instruction", "input"):
        template = str(template).replace(f"{{{name}}}", f"{{{columns[name]}}}")
    completion = f"{{{columns['output']}}}"
    return common.written("Prompt", prompt=template, completion=completion, train_on_prompt=bool(whole))
