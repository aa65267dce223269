"""The projection, and what A-GEM does with gradients that are missing, not finite or half as long."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mixer import MixingTrainer
from replay import ReplayBuffer
from replay.methods import AGEM
from replay.methods.agem import project
from tests.helpers import Tokens, build_model, weights_of
from tests.replay.methods.runs import Classifier, Points, Spy, TwoHeads, make_trainer, spied

SHAPES = [(3, 4), (5,), (1, 2, 2)]


@given(seed=st.integers(0, 10_000), dtype=st.sampled_from([torch.float32, torch.float64]), lean=st.floats(-3.0, 3.0))
@settings(max_examples=200, deadline=None)
def test_the_projection_takes_away_only_what_goes_against(seed: int, dtype: torch.dtype, lean: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
    gradient = [torch.randn(r.shape, generator=generator, dtype=dtype) + lean * r for r in reference]
    before, other = [torch.cat([t.flatten() for t in parts]) for parts in (gradient, reference)]
    was_projected = bool(project(gradient, [r.clone() for r in reference]))
    after = torch.cat([t.flatten() for t in gradient])
    slack = 8 * torch.finfo(dtype).eps * float(before.norm() * other.norm() + 1)
    assert float(after @ other) >= -slack
    assert float(after.norm()) <= float(before.norm()) * (1 + 1e-6)
    if float(before @ other) > slack:
        assert not was_projected
    if not was_projected:
        assert torch.equal(after, before)
    else:
        expected = before - (before @ other) / (other @ other) * other
        torch.testing.assert_close(after, expected, rtol=0, atol=64 * slack)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["gradient", "reference"])
def test_what_is_not_finite_is_left_alone(bad: float, where: str) -> None:
    gradient, reference = torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0])
    (gradient if where == "gradient" else reference)[1] = bad
    before = gradient.clone()
    assert not bool(project([gradient], [reference]))
    assert gradient.numpy().tobytes() == before.numpy().tobytes()


def test_a_reference_of_zeros_projects_nothing() -> None:
    gradient = torch.tensor([1.0, -1.0])
    assert not bool(project([gradient], [torch.zeros(2)]))
    assert gradient.tolist() == [1.0, -1.0]


def test_half_precision_is_multiplied_in_single() -> None:
    gradient, reference = torch.full((4096,), -4.0, dtype=torch.float16), torch.full((4096,), 8.0, dtype=torch.float16)
    assert bool(project([gradient], [reference]))  # the product is beyond what half precision holds
    assert float(gradient.abs().max()) < 1e-2


def test_gradients_on_one_side_only(tmp_path: Path) -> None:
    new, old = Points(seed=1), Points(seed=2)
    new.labels[:], old.labels[:] = 2, 1  # new samples reach one head, those of memory the other
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", old)
    model = TwoHeads()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    trainer, _ = spied(tmp_path, AGEM(), model=model, new=new, buffer=buffer, learning_rate=0.5)
    shares = [entry["projected/memory"] for entry in trainer.state.log_history if "projected/memory" in entry]
    assert len(shares) == 5
    assert 1.0 in shares
    assert model.unused.weight.grad is None
    assert torch.equal(model.unused.weight, start["unused.weight"])
    # What new samples do not reach moves by the projection alone.
    assert not torch.equal(model.head.weight, start["head.weight"])


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    model = Classifier()
    model.body.requires_grad_(False)
    before = model.body.weight.clone()
    spied(tmp_path, AGEM(), model=model)
    assert torch.equal(model.body.weight, before)


def test_a_step_of_memory_alone_changes_nothing(tmp_path: Path) -> None:
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", Points(seed=2))
    snapshots: list[torch.Tensor] = []

    class Watch(Spy):
        def begin_step(self, model: nn.Module, batch: object) -> None:
            super().begin_step(model, batch)  # type: ignore[arg-type]
            snapshots.append(weights_of(model).clone())

    watch = Watch()
    trainer = make_trainer(tmp_path, [AGEM(), watch], buffer=buffer, batch_size=1, max_steps=6)
    trainer.train()
    snapshots.append(weights_of(trainer.model).clone())
    kinds = [sorted(batch) for batch in watch.batches]
    assert ["memory"] in kinds
    assert ["new"] in kinds
    for kind, before, after in zip(kinds, snapshots[:-1], snapshots[1:], strict=True):
        assert torch.equal(before, after) == (kind == ["memory"])


def test_bf16_autocast_runs(tmp_path: Path) -> None:
    kind = "sequence-classification"
    trainer = make_trainer(tmp_path, [AGEM()], model=build_model("bert-classifier"), new=Tokens(40, 1, kind), bf16=True)
    trainer.train()
    assert bool(weights_of(trainer.model).isfinite().all())


def test_the_share_of_projected_steps_is_logged_over_those_since_the_last_entry(tmp_path: Path) -> None:
    every, _ = spied(tmp_path / "1", AGEM(), max_steps=6, learning_rate=0.5)
    some, _ = spied(tmp_path / "3", AGEM(), max_steps=6, learning_rate=0.5, logging_steps=3)

    def shares(trainer: MixingTrainer) -> list[float]:
        return [entry["projected/memory"] for entry in trainer.state.log_history if "projected/memory" in entry]

    first, second = shares(every)[:3], shares(every)[3:]
    assert shares(some) == pytest.approx([sum(first) / 3, sum(second) / 3])
    assert sum(shares(some)) > 0.0


def test_the_memory_has_to_be_a_buffer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"AGEM\(memory='old'\): there is no stream 'old'; the streams are"):
        make_trainer(tmp_path, [AGEM("old")])
    with pytest.raises(ValueError, match=r"AGEM: memory must name a replay buffer, but stream 'new' is a Points"):
        make_trainer(tmp_path, [AGEM("new")])


def test_cutting_by_tokens_is_refused_on_several_ranks(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer._parts.run.options.max_tokens = 64
    spy = Spy()
    trainer._parts.methods.attach((spy,))
    object.__setattr__(spy.run, "world_size", 2)
    with pytest.raises(ValueError, match="Use per_device_train_batch_size instead"):
        AGEM().attach(spy.run)


def test_models_without_whole_gradients_are_refused(tmp_path: Path) -> None:
    spy, method = Spy(), AGEM()
    make_trainer(tmp_path, [spy])
    object.__setattr__(spy.run, "world_size", 2)
    method.attach(spy.run)
    with pytest.raises(ValueError, match=r"AGEM holds the gradient of memory .* sharded, or not wrapped in DDP"):
        method.prepare(Classifier())
