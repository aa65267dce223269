"""Which head a run has, what it is checked for, and which layer it is about."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tasks.heads import Growing, Head, Masked, as_head, find_output_layer
from tasks.sequences import blurry
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tests.helpers import arguments, build_model
from tests.refusals import refused
from tests.tasks.data import numbered_arrays
from tests.tasks.heads.models import CLASSIFIERS, LAYERS, Plain, classifier, tasks_of

PAIRS = ((0, 1), (2, 3))


def without_classes(scenario: Any = "free") -> TaskSequence:
    data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 3
    return TaskSequence((Task("text", data, data),), scenario)


def test_the_kind_given_is_taken_and_else_the_scenario_chooses() -> None:
    for given, scenario, expected in (
        (None, "task", Masked),
        (None, "class", Head),
        (None, "free", Head),
        ("whole", "task", Head),
        ("growing", "task", Growing),
        ("masked", "class", Masked),
    ):
        head = as_head(given, tasks_of(*PAIRS, scenario=scenario), 0)  # type: ignore[arg-type]
        assert type(head) is expected
        assert given in (None, head.kind)
    assert type(as_head(None, without_classes("task"), 0)) is Head
    with refused("head"):
        as_head("all", tasks_of(*PAIRS), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_whole_head_needs_an_output_for_every_class(kind: str, tmp_path: Path) -> None:
    args, head = arguments(tmp_path), as_head("whole", tasks_of(*PAIRS), 0)
    head.check(classifier(kind, 4), args, {})
    head.check(classifier(kind, 5), args, {}, keeps_logits=True)
    with refused("num_labels"):
        head.check(classifier(kind, 3), args, {})


def test_labels_beside_the_classes_need_outputs_as_well(tmp_path: Path) -> None:
    data = numbered_arrays(list(range(10)) * 10, 6)
    sequence = blurry(data, data, num_tasks=5, overlap=0.5, seed=0)
    assert max(sequence[0].classes or ()) < 9 == max(sequence[0].labels_trained_on or ())
    assert Growing(sequence, 0).sizes == [10] * 5
    with refused("num_labels"):
        as_head("whole", sequence, 0).check(classifier("mlp", 9), arguments(tmp_path), {})


def test_what_has_no_classes_is_not_checked_and_has_the_whole_head(tmp_path: Path) -> None:
    args, language_model = arguments(tmp_path), build_model("llama")
    as_head(None, without_classes(), 0).check(language_model, args, {})
    as_head(None, without_classes(), 0).check(classifier("mlp", 2), args, {})
    # Its configuration has two labels, as all have, but no layer for them.
    as_head(None, tasks_of(*PAIRS), 0).check(language_model, args, {})
    data = Arrays(torch.randn(6, 6), torch.arange(6) % 2)
    mixed = TaskSequence((Task("images", data, data), *without_classes()), "free")
    for kind in ("growing", "masked"):
        with refused("head"):
            as_head(kind, mixed, 0).check(Plain(), args, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("num_labels", [3, 8])  # 8 outputs have other layers too
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_output_layer_is_found(kind: str, num_labels: int) -> None:
    model = classifier(kind, num_labels)
    assert find_output_layer(model, "a test") == (LAYERS[kind], model.get_submodule(LAYERS[kind]))


def test_of_a_module_of_its_own_it_has_to_be_clear() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4))
    with refused("model.output_layer"):
        find_output_layer(model, "a test")
    model.num_labels = 4
    with refused("model.output_layer"):
        find_output_layer(model, "a test")
    for given, name in (("2", "2"), (model[0], "0")):
        model.output_layer = given
        assert find_output_layer(model, "a test") == (name, model[int(name)])
    model.output_layer = model[1]
    with refused("model.output_layer"):
        find_output_layer(model, "a test")
    other: Any = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    other.num_labels = 3
    assert find_output_layer(other, "a test")[0] == "1"
    with refused("model.output_layer"):
        find_output_layer(nn.ReLU(), "a test")


def test_adapters_do_not_hide_it() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(classifier("bert", 8), LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    name, layer = find_output_layer(model, "a test")
    assert name.endswith("classifier.modules_to_save.default")
    assert layer.weight.requires_grad
