"""A family of scenarios, each drawn by a seed, of which `family.json` holds thirty for tuning and thirty for judging.

A scenario on which a defect was found and mended judges nothing any more. So policies are changed by the `tuning` seeds
alone, and the `judging` ones are run once, when a policy is done; then new seeds are drawn. Sources are texts or tasks,
some of them garbled, junk, mislabelled, near-duplicates, scarce, late, or with copies of the development rows.

Those of `encoder` train the upper layers of a pre-trained one on polarity, one of each aim; they judge too. Those of
`small_tuning` and `small_judging` are of a family of their own; see `benchmarks.quality.small`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.common import QUIET
from benchmarks.quality.small import SMALL, small

Purpose = Literal["tuning", "judging", "encoder", "small_tuning", "small_judging"]
DRAWN = "drawn_"  # and the seed: the name of a scenario
_DATA = "benchmarks.quality.data"
_TEXTS = ("shakespeare", "wikipedia", "requests", "reviews", "python", "cpp", "english")
_READ = ("shakespeare", "wikipedia", "requests", "reviews")  # from files
_TASKS = ("subj", "mr", "cr", "mpqa")
_POLARITY = ("mpqa", "cr", "mr", "sst2")
_OF_ENCODER = 2_000  # seeds from here on
_STEPS = 240
_TRAINING = {
    "max_steps": _STEPS,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 20,
    "weight_decay": 0.1,
    "eval_strategy": "steps",
    "eval_steps": _STEPS,
    "seed": 1,
    **QUIET,
}
# As of the continual benchmark, short, since a step takes 0.2 s.
_OF_UPPER_LAYERS: dict[str, Any] = {
    "max_steps": 80,
    "eval_steps": 80,
    "per_device_train_batch_size": 16,
    "learning_rate": 5e-4,
    "warmup_steps": 6,
}


def names(purpose: Purpose) -> list[str]:
    """Lists the frozen scenarios of a purpose."""
    seeds = json.loads(Path(__file__).with_name("family.json").read_text())[purpose]
    return [f"{DRAWN}{seed}" for seed in seeds]


def drawn(seed: int) -> dict[str, Any]:
    """Draws a scenario.

    Args:
        seed: Says all about it.

    Returns:
        The content of a recipe.
    """
    random = np.random.default_rng(seed)
    if seed >= SMALL:
        parts, training = small(seed)
    elif seed >= _OF_ENCODER:
        parts, training = _of_encoder(random, seed % 4), _OF_UPPER_LAYERS
    elif random.random() < 0.3:
        parts, training = _of_tasks(random), {"learning_rate": 5e-3}
    else:
        parts, training = _of_texts(random), {"learning_rate": 3e-3}
    training = {**_TRAINING, "output_dir": f"runs/quality/{DRAWN}{seed}", **training}
    return {
        **dict(zip(("model", "streams", "evaluation", "objective"), parts, strict=True)),
        "mixing": "Uniform",
        "batch_size": training["per_device_train_batch_size"],
        "training": training,
    }


def kind_of(content: Mapping[str, Any]) -> str:
    """Says what a drawn scenario is made of and aims at, for tables."""
    objective = content["objective"]
    aim = {"average": "the average", "worst": "the worst of all"}.get(str(objective))
    aim = aim or ("the worst of two targets" if isinstance(objective, Mapping) else "one target")
    if (place := str(content["training"]["output_dir"]).rpartition(DRAWN)[2]).isdigit() and int(place) >= SMALL:
        return f"small data, {aim}"
    if content["model"]["factory"].endswith("UpperLayers"):
        return f"pre-trained, {aim}"
    return f"{'tasks' if 'task' in content['model'] else 'texts'}, {aim}"


def _of_texts(random: np.random.Generator) -> tuple[Any, ...]:
    """Texts, some of them spoilt; the objective is a text outside of them, their average or their worst."""
    texts = random.permutation(_TEXTS).tolist()
    target, texts = texts[0], texts[1 : int(random.integers(4, 6))]
    streams = {name: {"factory": f"{_DATA}.blocks", "arguments": _text(name)} for name in texts}
    spoilt = texts[0]
    for kind in random.permutation(["junk", "garbled", "scarce", "late", "copies", "leak"])[:2].tolist():
        if kind == "junk":
            seed = int(random.integers(100))
            streams["junk"] = {"factory": f"{_DATA}.made_up", "arguments": {"seed": seed}}
        elif kind == "garbled":
            arguments = {"source": _text(spoilt), "seed": 1, "share": float(random.choice([0.5, 1.0]))}
            streams[f"{spoilt}_garbled"] = {"factory": f"{_DATA}.garbled", "arguments": arguments}
        elif kind == "scarce":
            few = _text(target) | {"num_samples": int(random.choice([150, 400]))}
            streams[f"{target}_few"] = {"factory": f"{_DATA}.blocks", "arguments": few, "max_epochs": 4}
        elif kind == "late":
            streams[spoilt]["enters_at"] = 0.4
        elif kind == "copies":
            arguments = {"source": _text(spoilt), "number": 0, "of": 4}
            streams[f"{spoilt}_part"] = {"factory": f"{_DATA}.slice_of", "arguments": arguments}
        else:
            arguments = {"source": _text(target), "num_copies": 3}
            streams[f"{target}_leak"] = {"factory": f"{_DATA}.leaked", "arguments": arguments}
    model = {"factory": "benchmarks.quality.window.new_window_model", "arguments": {"window": 8, "hidden": 128}}
    aim = random.choice(["outside", "outside", "two", "average", "worst"])
    outside = {target: {"factory": f"{_DATA}.blocks", "arguments": _text(target)}}
    if aim == "outside":
        return model, streams, outside, [target]
    if aim == "two":
        return model, streams, outside, {"targets": [target, texts[-1]], "kind": "worst"}
    return model, streams, {}, str(aim)


def _of_tasks(random: np.random.Generator) -> tuple[Any, ...]:
    """Tasks of sentences, one of them mislabelled or small; the objective is one task or the average."""
    factory, streams = "benchmarks.quality.sentences.task", {}
    tasks = random.permutation(_TASKS)[:3].tolist()
    for name in tasks:
        arguments = {"name": name, "folder": "data", "num_words": 4000, "length": 32, "num_samples": 2000}
        streams[name] = {"factory": factory, "arguments": arguments}
    key, value = [("wrong", 0.3), ("wrong", 0.5), ("num_samples", 100)][int(random.integers(3))]
    streams[tasks[0]]["arguments"][key] = value
    arguments = {"num_words": 4000, "hidden": 48, "layers": 2}
    model = {"factory": "benchmarks.quality.sentences.new_classifier", "arguments": arguments}
    model["task"] = "sequence-classification"
    return model, streams, {}, "average" if random.random() < 0.5 else [tasks[1]]


def _of_encoder(random: np.random.Generator, aim: int) -> tuple[Any, ...]:
    """Three sets, one of them mislabelled or small: for the fourth, for a few of its rows too, two, or the average."""
    target, *sets = random.permutation(_POLARITY).tolist()
    sources = {
        name: {"factory": "benchmarks.quality.encoder.polarity", "arguments": {"name": name, "folder": "data"}}
        for name in (target, *sets)
    }
    outside = {target: sources.pop(target)}
    model = {"factory": "benchmarks.continual.pretrained.UpperLayers", "arguments": {"num_labels": 2}}
    model["task"] = "sequence-classification"
    key, value = [("wrong", 0.3), ("wrong", 0.5), ("num_samples", 60)][int(random.integers(3))]
    sources[sets[0]]["arguments"][key] = value
    if aim == 1:
        few = outside[target]["arguments"] | {"num_samples": 60}
        sources[f"{target}_few"] = outside[target] | {"arguments": few, "max_epochs": 8}
    objective = ([target], [target], {"targets": [target, sets[-1]], "kind": "worst"}, "average")[aim]
    return model, sources, {} if aim == 3 else outside, objective


def _text(name: str) -> dict[str, Any]:
    return {"name": name, "folder": "data"} if name in _READ else {"name": name}
