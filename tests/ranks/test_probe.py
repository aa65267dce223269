"""The gradient probe on two ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("probe")
    launch_warm("probe_worker.py", folder)
    return results_of(folder, "probe")


def _assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    size = np.nanmax(np.abs(np.array(expected["gram"])))
    for name in ("gram", "shares", "counts"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5 * size)
    errors = [np.nan_to_num(one["gram_error"]) for one in (found, expected)]  # unknown where a stream is missing
    np.testing.assert_allclose(*errors, rtol=1e-5)
    for name in ("variance", "squared_norm"):  # differences of large numbers
        most = np.nanmax(np.abs(np.array(expected["variance"])))
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=3e-5 * max(size, most))


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "mlp"])
@pytest.mark.parametrize("mode", ["sketch", "exact"])
@pytest.mark.parametrize("number", [0, 1])
def test_under_ddp_it_equals_one_rank(results: list[dict[str, Any]], name: str, mode: str, number: int) -> None:
    for result in results:
        found = result["ddp"][name]
        _assert_equal(found[f"{mode}-{number}"], found[mode])
        assert found[f"{mode}-{number}"]["distance"] < 1e-5


@pytest.mark.parametrize("name", ["llama", "mlp", "llama-tied"])
def test_a_sketch_under_fsdp_equals_one_rank(results: list[dict[str, Any]], name: str) -> None:
    for result in results:
        found = result["fsdp"][name]
        _assert_equal(found["sketch-0"], found["sketch"])
        assert found["sketch-0"]["distance"] < 1e-5
        assert found["sketch-0"]["coverage"] == 1.0


def test_a_sketch_of_a_checkpointed_model_under_fsdp_in_half_precision(results: list[dict[str, Any]]) -> None:
    first, second = (result["half"] for result in results)
    for name in first["found"]:
        np.testing.assert_array_equal(first["found"][name], second["found"][name])
    expected = np.array(first["expected"]["gram"])
    np.testing.assert_allclose(first["found"]["gram"], expected, atol=0.03 * np.nanmax(expected))
    np.testing.assert_allclose(first["found"]["variance"], first["expected"]["variance"], rtol=0.1)
    assert first["coverage"] == 1.0


def test_whole_gradients_of_micro_batches_equal_one_rank(results: list[dict[str, Any]]) -> None:
    for result in results:
        _assert_equal(result["of_one_stream_each"]["found"], result["of_one_stream_each"]["expected"])


def test_what_one_rank_cannot_read_is_left_out_on_all(results: list[dict[str, Any]]) -> None:
    first, second = (result["one_rank_cannot_read"] for result in results)
    assert first == second
    assert first["coverage"] == pytest.approx(40 / 64)  # all but the weight; the bias has no gradient there


def test_what_cannot_be_done_on_several_ranks_is_refused_with_the_reason(results: list[dict[str, Any]]) -> None:
    for result in results:
        exact, whole, old, no_backward = result["errors"]
        assert "a world_size of 2: products of parts lack the cross terms. Use mode='sketch', or exact_acc" in exact
        assert "homogeneous=True reads each rank's own gradients, and FSDP2 shards them. Use homogeneous=False" in whole
        assert (
            "FSDP1 or DeepSpeed ZeRO-3 shards the parameters in a way that hides them from their layers. Use FSDP2"
            in old
        )
        assert "or no backward came between start() and finish()" in no_backward
