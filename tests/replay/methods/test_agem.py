from pathlib import Path

import torch
from hypothesis import given, strategies as st

from replay import ReplayBuffer
from replay.methods import AGEM
from replay.methods.agem import project
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, Spy, TwoHeads, logged, make_trainer, trained

SHAPES = [(3, 4), (5,), (1, 2, 2)]


@given(seed=st.integers(0, 10_000), dtype=st.sampled_from([torch.float32, torch.float64]), lean=st.floats(-3.0, 3.0))
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
    expected = before - (before @ other) / (other @ other) * other if was_projected else before
    torch.testing.assert_close(after, expected, rtol=0, atol=64 * slack if was_projected else 0)


def test_what_is_not_finite_or_zero_projects_nothing_and_half_precision_is_multiplied_in_single() -> None:
    for bad in (float("inf"), float("nan"), 0.0):
        for plain, other in ([[1.0, bad], [0.0, 2.0]], [[1.0, -1.0], [0.0, bad]]):
            own = torch.tensor(plain)
            assert not bool(project([own], [torch.tensor(other)]))
            torch.testing.assert_close(own, torch.tensor(plain), rtol=0, atol=0, equal_nan=True)
    gradient, reference = torch.full((4096,), -4.0, dtype=torch.float16), torch.full((4096,), 8.0, dtype=torch.float16)
    assert bool(project([gradient], [reference]))  # the product is beyond what half precision holds
    assert float(gradient.abs().max()) < 1e-2


def test_gradients_on_one_side_only(tmp_path: Path) -> None:
    new, old, model = Points(seed=1), Points(seed=2), TwoHeads()
    new.labels[:], old.labels[:] = 2, 1  # new samples reach one head, those of memory the other
    model.other.bias.requires_grad_(False)
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", old)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = trained(tmp_path, [AGEM()], model=model, new=new, buffer=buffer, learning_rate=0.5)
    assert 1.0 in logged(trainer, "projected/memory")
    assert model.unused.weight.grad is None
    # What new samples do not reach moves by the projection alone; what no one does, or is frozen, stays.
    assert not torch.equal(model.head.weight, start["head.weight"])
    for name in ("unused.weight", "other.bias"):
        assert torch.equal(model.get_parameter(name), start[name])


def test_what_cannot_be_on_several_ranks_is_refused(tmp_path: Path) -> None:
    spy, method = Spy(), AGEM()
    for max_tokens in (None, 64):
        make_trainer(tmp_path, [spy], max_tokens=max_tokens)
        object.__setattr__(spy.run, "world_size", 2)
        with refused("max_tokens_per_micro_batch" if max_tokens else "model"):
            method.attach(spy.run)
            method.prepare(Classifier())
