"""Wrong values are refused, and wrong gradients are not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import build
from tests.refusals import refused

OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_streams": 0}, "num_streams"),
    ({"mode": "sketch", "world_size": 2}, "world_size"),
    ({"mode": "fast"}, "mode"),
    ({"layers": "*.mlp"}, "layers"),
]
ROWS: list[tuple[Any, Any, str]] = [
    ([], None, "stream_ids"),
    ([[0, 1]], None, "stream_ids"),
    ([0, 1], [1], "num_items"),
    ([0, 1], torch.tensor([0.5, 1.0]), "num_items"),
]


@pytest.mark.parametrize(("options", "option"), OPTIONS)
def test_a_probe_refuses_wrong_arguments(options: dict[str, Any], option: str) -> None:
    with refused(option):
        GradientProbe(nn.Linear(2, 2), **{"num_streams": 2, **options})


@pytest.mark.parametrize(("ids", "items", "option"), ROWS)
def test_start_refuses_wrong_rows(ids: Any, items: Any, option: str) -> None:
    model = nn.Linear(2, 2)
    with refused(option):
        GradientProbe(model, 2).start(ids, items)
    assert "forward" not in model.__dict__


def test_finish_refuses_wrong_factors() -> None:
    probe = GradientProbe(nn.Linear(2, 2), 2)
    with pytest.raises(RuntimeError):
        probe.finish()
    probe.start([0, 1])
    with refused("loss_scale"):
        probe.finish(loss_scale=float("nan"))
    with refused("loss_weights"):
        probe.finish(loss_weights=[1.0])


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("factor", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"mode": "sketch"}, {"mode": "sketch", "homogeneous": True}])
def test_gradients_that_are_zero_or_not_finite_give_no_error(options: dict[str, Any], factor: float) -> None:
    for name in ("gpt2", "mlp"):
        case = build(name)
        case.stream_ids = [1] * case.num_rows if "homogeneous" in options else case.stream_ids
        probe = GradientProbe(case.model, 3, **options, sketch_size=3)
        probe.start(case.stream_ids, case.items)
        (case.loss() * factor).backward()
        found = probe.finish()
        there = np.ix_(found.counts > 0, found.counts > 0)
        assert (found.gram[there] == 0).all() if factor == 0.0 else not np.isfinite(found.gram[there]).all()
        assert found.cosines.shape == (3, 3)
        assert len(found.noise) == 2
        assert np.isfinite(case.probed(probe).gram[there]).all()  # what they were does not stick
        assert probe.coverage == 1.0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_stream_whose_loss_was_weighted_by_zero_is_unknown() -> None:
    case = build("mlp")
    weights, losses = torch.tensor([0.0, 1.0, 2.0]), case.losses
    case.losses = lambda model, batch: losses(model, batch) * weights[torch.tensor(case.stream_ids)]
    found = case.probed(GradientProbe(case.model, 3), loss_weights=weights)
    assert np.isfinite(found.gram).tolist() == [[False] * 3, [False] * 3, [False, False, True]]
