"""A head that grows: what was there stays to the bit, what comes is drawn from its seed and task alone."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from mixer.utils.random_state import RandomState
from tasks.heads import Growing
from tests.helpers import arguments
from tests.refusals import refused
from tests.tasks.heads.models import CLASSIFIERS, LAYERS, Plain, classifier, inputs_of, tasks_of

THREE = ((0, 1, 2), (3,), (4, 5, 6))


def growing(*groups: tuple[int, ...], seed: int = 0) -> Growing:
    return Growing(tasks_of(*(groups or THREE), scenario="free"), seed)


def parameters_of(kind: str, model: Any) -> dict[str, torch.Tensor]:
    layer = model.get_submodule(LAYERS[kind])
    return {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), min_size=1, max_size=5))
def test_it_has_an_output_for_every_class_so_far(groups: list[list[int]]) -> None:
    head, model = growing(*map(tuple, groups)), Plain(1)
    for number in range(len(groups)):
        head.begin(model, number)
        so_far = max(label for group in groups[: number + 1] for label in group)
        assert model.out.out_features == len(model.out.weight) == len(model.out.bias) == max(so_far + 1, 2)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_what_was_there_stays_to_the_bit(kind: str) -> None:
    head, model, inputs = growing(), classifier(kind, 3), inputs_of(kind, 5)
    at_once = classifier(kind, 3)
    growing().begin(at_once, 2)
    model.eval()
    state = RandomState.capture()
    for number, size in enumerate((3, 4, 7)):
        before, logits = parameters_of(kind, model), model(**inputs)["logits"].detach()
        others = {name: id(parameter) for name, parameter in model.named_parameters() if LAYERS[kind] not in name}
        head.begin(model, number)
        for name, old in before.items():
            new = parameters_of(kind, model)[name]
            assert len(new) == size
            assert torch.equal(new[: len(old)], old)
        assert {n: id(p) for n, p in model.named_parameters() if LAYERS[kind] not in n} == others
        grown = model(**inputs)["logits"]
        assert grown.shape[-1] == size
        torch.testing.assert_close(grown[..., : logits.shape[-1]], logits, rtol=1e-6, atol=1e-6)
    for name, value in parameters_of(kind, at_once).items():  # every way to a task leads to the same values
        assert torch.equal(parameters_of(kind, model)[name], value)
    output = at_once.eval()(**inputs, labels=(labels := torch.tensor([0, 5, 6, 3, 1])))
    assert output["loss"].item() == pytest.approx(nn.functional.cross_entropy(output["logits"], labels).item())
    layer = model.get_submodule(LAYERS[kind])
    kept = [id(parameter) for parameter in layer.parameters()]
    for number in (2, 0):  # a second call changes nothing, and none makes it smaller
        head.begin(model, number)
        assert [id(parameter) for parameter in layer.parameters()] == kept
    assert layer.out_features == 7
    assert state.is_current()


def test_new_outputs_begin_as_the_model_begins_them() -> None:
    wide = growing((0, 1), (4_000,))
    bert, plain = classifier("bert", 2, initializer_range=0.3), Plain(2)
    perceptron = classifier("mlp", 2, initial_deviation=0.5, initial_bias=0.25)
    for model in (bert, plain, perceptron):
        wide.begin(model, 1)
    assert bert.classifier.weight[2:].std().item() == pytest.approx(0.3, rel=0.02)
    assert (bert.classifier.bias[2:] == 0).all()
    assert 0.99 < perceptron.head.weight[2:].abs().max() <= 1.0  # cut at two deviations
    assert (perceptron.head.bias[2:] == 0.25).all()
    bound = 6**-0.5  # torch's own: uniform in what the number of inputs allows
    for parameter in plain.out.parameters():
        assert 0.99 * bound < parameter[2:].abs().max() <= bound


def test_types_what_is_frozen_and_a_missing_bias_are_kept() -> None:
    model = classifier("mlp", 3).to(torch.bfloat16)
    model.head.weight.requires_grad_(False)
    growing().begin(model, 2)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert (model.head.weight.requires_grad, model.head.bias.requires_grad) == (False, True)
    assert all(parameter.is_leaf for parameter in model.parameters())
    plain = Plain(3, bias=False)
    growing().begin(plain, 2)
    assert (plain.out.bias, len(plain.out.weight)) == (None, 7)


def test_the_configuration_follows_and_names_of_classes_stay() -> None:
    names = {0: "cat", 1: "dog", 2: "bird"}
    model = classifier("bert", 3, id2label=names, label2id={name: number for number, name in names.items()})
    growing().begin(model, 1)
    assert (model.num_labels, model.config.num_labels) == (4, 4)
    assert model.config.id2label == {**names, 3: "LABEL_3"}
    assert model.config.label2id == {"cat": 0, "dog": 1, "bird": 2, "LABEL_3": 3}


OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
}


def step(optimizer: torch.optim.Optimizer, model: Any, seed: int) -> None:
    """A step with random gradients, the same for the first rows of the output layer however many it has."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        is_head = any(parameter is own for own in model.head.parameters())
        shape = (3, *parameter.shape[1:]) if is_head else parameter.shape
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad[: shape[0]] = torch.randn(shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_widened_state_goes_on_with_old_rows_to_the_bit(name: str) -> None:
    old = classifier("mlp", 3)
    first = OPTIMIZERS[name](old.parameters())
    for number in range(4):
        step(first, old, number)
    new, head = copy.deepcopy(old), growing((0, 1, 2), (5,))
    head.begin(new, 1)
    second = OPTIMIZERS[name](new.parameters())
    widened = head.widen(copy.deepcopy(first.state_dict()), second)
    assert widened["param_groups"] == first.state_dict()["param_groups"]
    for state in widened["state"].values():  # new rows begin with no moments
        assert all((value[3:] == 0).all() for value in state.values() if value.shape[:1] == (6,))
    second.load_state_dict(widened)
    for number in range(4, 8):
        step(first, old, number)
        step(second, new, number)
        for own, other in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(other[: len(own)], own)
            for key, value in first.state[own].items():
                found = second.state[other][key]
                assert torch.equal(found[: len(own)] if found.dim() else found, value)


def test_states_that_cannot_be_widened_are_refused() -> None:
    model, head = classifier("mlp", 3), growing()
    optimizer = torch.optim.Adafactor(model.parameters())
    step(optimizer, model, 0)
    state = optimizer.state_dict()
    head.begin(model, 2)
    with refused("optimizer"):
        head.widen(state, torch.optim.Adafactor(model.parameters()))
    fewer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with refused("state_dict"):
        head.widen(state, fewer)


def test_logits_of_earlier_tasks_must_not_be_too_few(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    growing().check(classifier("mlp", 2), args, {})
    with refused("head"):
        growing().check(classifier("mlp", 2), args, {}, keeps_logits=True)
    growing().check(classifier("mlp", 7), args, {}, keeps_logits=True)  # has them all
    domain = tasks_of((0, 1), (0, 1), scenario="domain")
    Growing(domain, 0).check(classifier("mlp", 1), args, {}, keeps_logits=True)  # has them before the first
