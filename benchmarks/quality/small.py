"""The family of small data: classes and numbers of sentences, of which each source has few, so that rows are repeated.

The kind of a scenario is its seed modulo the number of kinds, the form that of the seed over it; all else is drawn.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.quality.small_rows import NUM_CLASSES, NUM_WORDS

SMALL = 3_000  # seeds from here on
_SENTENCES = "benchmarks.quality.small_rows.sentences"
_POLARITY = ("mpqa", "cr", "mr", "sst2")
_STEPS, _BATCH = 720, 32  # rows would not be repeated in fewer
_STEPS_OF_ENCODER, _BATCH_OF_ENCODER = 80, 16  # a step takes 0.2 s
_PASSES = (3, 5, 10, 30)  # over a source, where all have equal parts
_LEAST_ROWS = 30
_MOST_ROWS = {"words": 1_500, "encoded": 600, "numbers": 1_500}
Parts = tuple[dict[str, Any], dict[str, Any], Any]  # streams, evaluation and objective


def small(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draws a scenario.

    Args:
        seed: Says all about it, 3,000 or more.

    Returns:
        Model, streams, evaluation and objective; and what differs in the training.
    """
    random, kind = np.random.default_rng(seed), seed % len(_KINDS)
    forms = ("words", "encoded", "numbers") if kind in _WITH_POLARITY else ("words", "encoded")
    form = forms[seed // len(_KINDS) % len(forms)]
    num_samples = _STEPS_OF_ENCODER * _BATCH_OF_ENCODER if form == "encoded" else _STEPS * _BATCH
    streams, evaluation, objective = _KINDS[kind](random, form, num_samples)
    sizes = [own["arguments"]["first_class"] + NUM_CLASSES[own["arguments"]["name"]] for own in streams.values()]
    parts = (_model(form, max(sizes)), streams, evaluation, objective)
    if form == "encoded":
        steps = {"max_steps": _STEPS_OF_ENCODER, "eval_steps": _STEPS_OF_ENCODER, "warmup_steps": 6}
        return parts, {**steps, "per_device_train_batch_size": _BATCH_OF_ENCODER, "learning_rate": 5e-4}
    return parts, {"max_steps": _STEPS, "eval_steps": _STEPS, "learning_rate": 1e-3}


def _model(form: str, num_classes: int) -> dict[str, Any]:
    if form == "encoded":
        factory, arguments = "benchmarks.continual.pretrained.UpperLayers", {"num_labels": num_classes}
    else:
        factory = "benchmarks.quality.sentences.new_classifier"
        sizes = [1] if form == "numbers" else [num_classes]
        arguments = {"num_words": NUM_WORDS, "hidden": 48, "layers": 2, "sizes": sizes}
    return {"factory": factory, "arguments": arguments, "task": "sequence-classification"}


def _set(name: str, form: str, num_samples: int, **arguments: Any) -> dict[str, Any]:
    most = min(num_samples, _MOST_ROWS[form])
    own = {"name": name, "folder": "data", "form": form, "num_samples": most, "first_class": 0, **arguments}
    return {"factory": _SENTENCES, "arguments": own}


def _rows(random: np.random.Generator, num_samples: int, num_sources: int, passes: Sequence[int] = _PASSES) -> int:
    """Draws how many rows a source has, by how often it would be passed over."""
    return max(num_samples // num_sources // int(random.choice(passes)), _LEAST_ROWS)


def _label_shift(random: np.random.Generator, form: str, num_samples: int) -> Parts:
    """Sources of one set with other proportions of its classes each; the target has its own."""
    name = "domains" if form == "words" else str(random.choice(["domains", "trec", "mr"]))
    name = "mr" if form == "numbers" else name
    count, concentration = int(random.integers(3, 6)), float(random.choice([0.3, 1.0]))
    rows = _rows(random, num_samples, count)

    def own(number: int, most: int) -> dict[str, Any]:
        shares = random.dirichlet(np.full(NUM_CLASSES[name], concentration))
        return _set(name, form, most, proportions=np.round(shares, 4).tolist(), number=number)

    streams = {f"{name}_{number}": own(number, rows) for number in range(1, count + 1)}
    return streams, {"target": own(0, rows)}, ["target"]


def _tiny_target(random: np.random.Generator, form: str, num_samples: int) -> Parts:
    """A few rows of the target beside larger sets: of the same classes, or of others."""
    sets = random.permutation(_POLARITY).tolist()
    if form != "numbers" and random.random() < 0.5:
        sets = random.permutation(["trec", "subj", "mr", "mpqa"]).tolist()
    is_shared, firsts = {*sets} == {*_POLARITY}, dict.fromkeys(sets, 0)
    if not is_shared:
        firsts = dict(zip(sets, np.cumsum([0, *(NUM_CLASSES[name] for name in sets)]).tolist(), strict=False))
    target, few = sets[0], _rows(random, num_samples, 4, _PASSES[1:])
    wrong = float(random.choice([0.0, 0.0, 0.3]))
    streams = {name: _set(name, form, _MOST_ROWS[form], first_class=firsts[name]) for name in sets[1:]}
    streams[target] = _set(target, form, few, first_class=firsts[target], wrong=wrong)
    return streams, {}, [target]


def _tiny_classes(random: np.random.Generator, form: str, num_samples: int) -> Parts:
    """Intents of which sources have 5 to 40 rows; each source has all of them, or its own. The target has all."""
    count, is_split = int(random.integers(3, 5)), random.random() < 0.5
    streams = {}
    for number in range(count):
        among = [number, count] if is_split else [0, 1]
        most = int(random.choice([5, 10, 20, 40]))
        streams[f"intents_{number}"] = _set("intents", form, 1_500, most=most, among=among, number=number)
    return streams, {"requests": _set("intents", form, 1_500)}, ["requests"]


def _near_copies(random: np.random.Generator, form: str, num_samples: int) -> Parts:
    """Near-copies of the target's rows, to train on or to steer by, beside other sets; or wrong labels in its rows."""
    target, *sets = random.permutation(_POLARITY).tolist()
    rows = _rows(random, num_samples, 4)
    streams = {name: _set(name, form, _MOST_ROWS[form]) for name in sets[:2]}
    streams[f"{target}_rows"] = _set(target, form, rows, wrong=float(random.choice([0.0, 0.2, 0.4])))
    part = str(random.choice(["train", "validation"]))
    streams[f"{target}_copies"] = _set(target, form, rows, is_copy=True, copies_of=part)
    return streams, {target: _set(target, form, rows)}, [target]


def _average(random: np.random.Generator, form: str, num_samples: int) -> Parts:
    """Sets of unlike sizes, some with wrong labels, and the average of all; or the worst."""
    sets, streams = random.permutation(_POLARITY)[: int(random.integers(3, 5))].tolist(), {}
    for name in sets:
        rows, wrong = _rows(random, num_samples, len(sets)), float(random.choice([0.0, 0.0, 0.3]))
        streams[name] = _set(name, form, rows, wrong=wrong)
    return streams, {}, "average" if random.random() < 0.7 else "worst"


_KINDS: tuple[Callable[[np.random.Generator, str, int], Parts], ...] = (
    *(_label_shift, _tiny_target, _tiny_classes, _near_copies, _average),
)
_WITH_POLARITY = {0, 1, 3, 4}  # kinds whose classes can be numbers
