"""How many operations a measurement gives to the device, and in how large parts."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from mixer.gradients.probe import GradientProbe, reading, sketch
from tests.mixer.gradients.probe.cases import build
from tests.mixer.gradients.probe.reference import assert_equal

_WITHOUT_WORK = ("empty", "new_empty", "_unsafe_view", "promote_types", "_record_function")


class _Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (function.is_view or function.overloadpacket.__name__.startswith(_WITHOUT_WORK))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize(("mode", "sizes"), [("exact", [7, 5, 4]), ("sketch", [4, 4, 4, 4])])
def test_a_measured_step_has_little_more_operations_than_a_plain_one(
    mode: Any, sizes: list[int], variance: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch, "is_sparse", lambda _: False)  # as on a GPU
    config = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 2}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=64, use_cache=False, **config))
    ids, stream_ids = torch.randint(64, (16, 24)), np.repeat(range(len(sizes)), sizes)
    probe = GradientProbe(model, len(sizes), mode, variance=variance)

    def operations(is_probed: bool) -> int:
        with _Operations() as counted:
            if is_probed:
                probe.start(stream_ids)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            if is_probed:
                probe.finish()
        return counted.count

    operations(True)  # the first measurement also checks that the pieces are the whole
    assert operations(True) <= 1.6 * operations(False)


@pytest.mark.parametrize("num_bytes", [1, 2**12, 2**30])
def test_gradients_of_samples_are_the_same_however_many_fit_at_once(
    num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = build("mlp")
    expected = case.probed(GradientProbe(case.model, 3))
    monkeypatch.setattr(reading, "BYTES_AT_ONCE_ON_CPU", num_bytes)
    monkeypatch.setattr(reading, "is_short", lambda *_: False)
    assert_equal(case.probed(GradientProbe(case.model, 3)), expected)


def test_there_is_no_room_for_gradients_of_samples_that_are_not_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rooms = torch.nn.Linear(32, 32), []
    monkeypatch.setattr(
        reading.Workspace, "take", lambda _, shape, dtype, device: rooms.append(shape) or torch.empty(shape)
    )
    probe = GradientProbe(model, 2, variance=True)
    for is_half in (False, True):
        probe.start(np.repeat([0, 1], 8))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            loss = model(torch.ones(16, 40, 32)).float().square().mean()
        loss.backward()
        probe.finish()
    assert [count for count, *_ in rooms] == [2 + 16, 2]
