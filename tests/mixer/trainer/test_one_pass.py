"""Optimizers that step inside each backward, where steps come in parts although they would fit into one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import Budget, GroupDRO, MixingTrainer, Probing
from tests.helpers import weights_of
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused


class Lomo(MixingTrainer):
    """Has an optimizer that steps when it is told to in place of one whose package is not installed."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accelerator.backward = lambda loss, learning_rate=None: loss.backward()
        return self.optimizer


class _NoRows(Lomo):
    """Computes its loss where nobody can tell rows apart."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return model(**inputs).loss + 0.5


@pytest.mark.parametrize(
    ("kind", "options", "step"),
    [
        (Lomo, {"mixing": GroupDRO()}, 1),
        (_NoRows, {}, 2),  # the first one shows that it has no rows
        (Lomo, {"probe": Probing(interval_steps=1, homogeneous=True)}, 1),
    ],
)
def test_a_step_in_parts_is_refused_before_it_is_trained(kind: type, options: Any, step: int, tmp_path: Path) -> None:
    trainer = make(tmp_path, kind=kind, optim="lomo", batch_size=8, **options)
    before = weights_of(trainer.model).clone()
    with pytest.raises(ValueError, match=rf"optim='lomo' .* 3 micro-batches of step {step}\. .* one stream"):
        trainer.train()
    assert step > 1 or torch.equal(weights_of(trainer.model), before)
    fits = train(tmp_path, kind=Lomo, optim="lomo", batch_size=8)
    assert fits.ledger.timings()["micro_batches"].tolist() == [1, 1, 1]


def test_a_learning_rate_by_layer_cannot_follow_the_data(tmp_path: Path) -> None:
    options = {"optim": "galore_adamw_layerwise", "max_steps": -1}
    with refused("optim"):
        make(tmp_path, budget=Budget(samples=24), **options)
    make(tmp_path, budget=Budget(epochs=2), **options)
