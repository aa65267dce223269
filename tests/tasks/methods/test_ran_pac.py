"""RanPAC against a ridge regression of NumPy; features that are awkward; what stays frozen."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixer.utils.held_out import hold_out
from tasks.continual.continual import ContinualRun
from tasks.continual.cost import read_cost
from tasks.methods import RanPAC
from tasks.sequences import from_data_sets
from tests.helpers import arguments
from tests.refusals import refused
from tests.tasks.heads.models import Plain
from tests.tasks.methods.runs import build, data, sequence, with_projections

SIZE, STRENGTH = 30, 10.0


def samples(count: int = 40, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    return (random.normal(size=(count, 8)) + 2.0 * np.eye(4, 8)[labels]).astype(np.float32), labels


def hidden(features: Any, seed: int) -> Any:
    projection = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(seed)).double().numpy()
    return np.maximum(features @ projection, 0.0)


def ridge(inputs: Any, labels: Any, strength: float, num_classes: int = 4) -> Any:
    """The regression as least squares of rows, to which λ adds some that are to give zero."""
    rows = np.concatenate([inputs, np.sqrt(strength) * np.eye(SIZE)])
    targets = np.concatenate([np.eye(num_classes)[labels], np.zeros((SIZE, num_classes))])
    return np.linalg.lstsq(rows, targets, rcond=None)[0]


def test_weights_are_those_of_a_ridge_regression_on_all_tasks_at_once() -> None:
    features, labels = samples()
    method, others = RanPAC(SIZE, strengths=[STRENGTH]), samples(20, 1)[0]
    for rows in (labels < 2, labels >= 2):  # tasks of two classes
        method.learn(features[rows], labels[rows], seed=5)
    weights = ridge(hidden(features, 5), labels, STRENGTH)
    torch.testing.assert_close(method._solved(STRENGTH).double(), torch.from_numpy(weights), rtol=0, atol=1e-5)
    logits = hidden(others, 5) @ weights
    np.testing.assert_array_equal(method.classify(others), logits.argmax(axis=1))
    np.testing.assert_array_equal(
        method.classify(others, among=[1, 3]), [1, 3] @ np.eye(2, dtype=int)[logits[:, [1, 3]].argmax(axis=1)].T
    )


def test_the_strength_has_the_least_squared_error_on_a_fifth_of_each_class_with_the_sums_of_earlier_tasks() -> None:
    strengths, (features, labels) = [1e-1, 1e1, 1e3, 1e5], samples(60, 2)
    method, first, rows = RanPAC(SIZE, strengths=strengths), labels < 2, labels >= 2
    features += np.random.default_rng(1).normal(size=features.shape).astype(np.float32) * 2.0
    method.learn(features[first], labels[first], seed=3)
    method.learn(features[rows], labels[rows], seed=3)
    own, own_labels = features[rows], labels[rows]
    kept, held = hold_out(30, 6, 3, own_labels)
    assert np.bincount(own_labels[held]).tolist() == [0, 0, 3, 3]
    inputs = hidden(np.concatenate([features[first], own[kept]]), 3)
    known = np.concatenate([labels[first], own_labels[kept]])
    found = [hidden(own[held], 3) @ ridge(inputs, known, strength) for strength in strengths]
    errors = [np.square(logits - np.eye(4)[own_labels[held]]).sum() for logits in found]
    assert 0 < int(np.argmin(errors)) < 3
    assert float(method._state["strength"]) == strengths[int(np.argmin(errors))]


def test_tasks_of_one_row_and_classes_that_come_again_are_added_up() -> None:
    features, labels = samples(12)
    in_parts, at_once = RanPAC(SIZE, strengths=[1.0]), RanPAC(SIZE, strengths=[1.0])
    for row in range(12):
        in_parts.learn(features[row : row + 1], labels[row : row + 1])
    at_once.learn(features, labels)
    np.testing.assert_array_equal(in_parts.classify(features), at_once.classify(features))
    torch.testing.assert_close(in_parts._state["gram"], at_once._state["gram"])
    alone = RanPAC(SIZE)
    alone.learn(features[1:2], labels[1:2])
    assert alone.classify(features).tolist() == [1] * 12


def test_features_without_variance_are_of_the_first_class_and_nothing_is_of_none() -> None:
    method = RanPAC(SIZE)
    assert method.classify(np.ones((2, 8), dtype=np.float32)).tolist() == [-1, -1]
    method.learn(np.zeros((6, 8), dtype=np.float32), np.array([3, 5] * 3))
    assert method.classify(np.ones((2, 8), dtype=np.float32)).tolist() == [3, 3]
    assert method.classify(np.ones((2, 8), dtype=np.float32), among=[1]).tolist() == [-1, -1]


@pytest.mark.parametrize("rows", [np.full((2, 8), np.nan), np.ones((2, 7))])
def test_features_that_do_not_fit_are_refused(rows: Any) -> None:
    method = RanPAC(SIZE)
    method.learn(*samples())
    with refused("features"):
        method.learn(rows.astype(np.float32), np.array([0, 1]))


@pytest.mark.parametrize("trains_first", [False, True])
def test_the_model_stays_as_it_was_but_for_its_output_layer_and_at_wish_the_first_task(
    trains_first: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())  # whose statistics move with each step
    model, method, states = Plain(6, body=body, width=8), RanPAC(SIZE, trains_first), []
    end_task = method.end_task

    def note(task: Any, model: Any) -> None:
        end_task(task, model)
        states.append(copy.deepcopy(model.body.state_dict()))

    method.end_task = note  # type: ignore[method-assign]
    before = copy.deepcopy(model.body.state_dict())
    args = arguments(tmp_path, max_steps=2, learning_rate=0.1)
    run = ContinualRun(model, sequence("class"), args, batch_size=8, **with_projections(method))
    scores = run.run()
    changed = [any(not torch.equal(state[name], before[name]) for name in before) for state in states]
    assert changed == [trains_first] * 3
    assert all(torch.equal(states[0][name], states[2][name]) for name in before)
    assert scores.scores[0].tolist() == [0.0] * 3
    assert scores.scores[-1].mean() > 0.8
    floats = 8 * SIZE + SIZE * SIZE + SIZE * 6
    assert 0 <= read_cost(run.folder / "03-task_3" / "end")["kept_bytes"] - 4 * floats < 1_000


def test_in_a_task_incremental_sequence_the_own_classes_compete(tmp_path: Path) -> None:
    scores = [build(tmp_path / kind, "RanPAC", scenario=kind).run().scores for kind in ("class", "task")]
    assert (scores[1] >= scores[0])[1:].all()
    assert scores[1][1, 1:].tolist() == [0.0, 0.0]  # of classes that did not come yet


def test_classes_that_come_in_each_task_are_learnt_from_all(tmp_path: Path) -> None:
    tasks = from_data_sets({name: (data(), data()) for name in ("first", "second")}, "domain")
    assert build(tmp_path, "RanPAC", sequence=tasks).run().scores[-1].min() > 0.8
