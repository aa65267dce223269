"""What each engine makes of a mixture: the losses, counts and weights of DDP, in one go and resumed."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.ranks.launch import launch_well, results_of

TOLERANCE = 1e-5  # float32, added up in another order

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("fsdp")
    launch_well("engines_worker.py", folder, "ddp", "fsdp", "fsdp-sharded")
    return results_of(folder, "engines")


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("deepspeed")
    launch_well("engines_worker.py", folder, "zero-1", "zero-2", "zero-3")
    return results_of(folder, "engines")


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["counts"] == expected["counts"]
    assert found["norms"] == pytest.approx(expected["norms"], rel=TOLERANCE, nan_ok=True)
    assert [entry.keys() for entry in found["logs"]] == [entry.keys() for entry in expected["logs"]]
    for own, other in zip(found["logs"], expected["logs"], strict=True):
        assert own == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True)
    for part in ("weights", "squares"):
        assert found[part] == pytest.approx(expected[part], rel=TOLERANCE, abs=10 * TOLERANCE)


FSDP_RUNS = [("fsdp", name) for name in ("changing", "resumed", "probed", "heads", "replayed", "compared")]
SHARDED_RUNS = [("fsdp-sharded", name) for name in ("changing", "resumed")]


@pytest.mark.parametrize(("engine", "name"), FSDP_RUNS + SHARDED_RUNS)
def test_fsdp_trains_as_ddp(fsdp: Results, engine: str, name: str) -> None:
    assert fsdp[0][engine]["engine"] == ["DistributedType.FSDP", "FSDPLlamaForCausalLM"]
    for rank in fsdp:
        assert_same(rank[engine][name], rank["ddp"][name])


def test_a_loss_that_fsdp_rounds_is_the_sum_over_the_streams(fsdp: Results) -> None:
    for own, whole in zip(fsdp[0]["fsdp"]["halved"]["logs"], fsdp[0]["ddp"]["halved"]["logs"], strict=True):
        if "count/a" in own:
            assert own["loss"] == pytest.approx(whole["loss"], rel=1e-2)
            counts = np.array([own[f"count/{name}"] for name in "abc"])
            losses = np.array([own.get(f"loss/{name}", 0.0) for name in "abc"])
            assert "loss/other" not in own
            assert own["loss"] != pytest.approx(float(torch.tensor(own["loss"]).bfloat16()), rel=1e-6)
            assert losses.min(where=counts > 0, initial=9) <= own["loss"] <= losses.max()


ZERO_RUNS = [
    *[("zero-1", name) for name in ("changing", "resumed", "heads")],
    *[("zero-2", name) for name in ("changing", "resumed", "probed", "heads", "replayed", "compared")],
    *[("zero-3", name) for name in ("changing", "resumed", "replayed", "compared")],
]


@pytest.mark.parametrize(("engine", "name"), ZERO_RUNS)
def test_zero_trains_as_ddp(deepspeed: Results, fsdp: Results, engine: str, name: str) -> None:
    assert deepspeed[0][engine]["engine"] == ["DistributedType.DEEPSPEED", "DeepSpeedEngine"]
    for rank, other in zip(deepspeed, fsdp, strict=True):
        assert_same(rank[engine][name], other["ddp"][name])


@pytest.mark.parametrize("name", ["changing", "probed", "heads", "replayed"])
def test_the_runs_are_what_they_are_to_test(fsdp: Results, name: str) -> None:
    logs = [entry for entry in fsdp[0]["ddp"][name]["logs"] if "loss" in entry]
    sizes = {entry["batch_size"] for entry in logs}
    assert (len(sizes) > 2) == (name == "changing")
    if name == "changing":
        assert len({entry.get("learning_rate_factor") for entry in logs}) > 2
        assert any(entry.get("eval_loss") for entry in fsdp[0]["ddp"][name]["logs"])
    if name == "probed":
        assert any("gradient_cosine/a/b" in entry for entry in logs)
    if name == "heads":
        counts = [[entry[f"count/{stream}"] for stream in ("topic", "stars", "flags", "tags")] for entry in logs]
        assert any(count == 0 for batch in counts for count in batch)
    if name == "replayed":
        assert any(not math.isnan(entry.get("term/DER", math.nan)) for entry in logs)
