"""What a run needs of its steps, by plain facts alone."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from mixer import Budget, PiKE, Probing, Stream, schedules
from mixer.measurements import GradientNorm
from tests.mixer.run.run_plans import planned
from tests.refusals import refused


def _collate(samples: list[Any]) -> dict[str, Any]:
    return {"rows": samples}


def _loss(*_: Any, **__: Any) -> None:
    return None


def _method(*needs: str) -> Any:
    return SimpleNamespace(needs=needs)


# Each a change to a run of two plain streams, and whether with it every micro-batch contains one stream.
STREAMS = {
    "nothing": ({}, {}, False),
    "a collator": ({"data_collator": _collate}, {}, True),
    "labels": ({"label_names": ["score"]}, {}, True),
    "a loss": ({"compute_loss_func": _loss}, {}, True),
    "a weight": ({"weight": 2.0}, {}, False),
    "a loss weight": ({"loss_weight": 2.0}, {}, False),
    "heads": ({}, {"tasks": ("a", "b")}, True),
    "columns": ({}, {"share_batches": False}, True),
    "packed rows": ({}, {"packs_rows": True}, True),
}
METHODS = {
    "none": ([], False),
    "one that takes part": ([_method()], False),
    "one that separates": ([_method(), _method("one stream each")], True),
}
PROBES = {
    "none": (None, False),
    "a probe": (Probing(interval_steps=1), False),
    "a probe of separate streams": (Probing(interval_steps=1, homogeneous=True), True),
    "a probe that nobody asks": (Probing(homogeneous=True), False),
}


def _two(**changes: Any) -> list[Stream]:
    common = {"weight": 1.0} if "weight" in changes else {}
    return [Stream("a", [1, 2], **common), Stream("b", [3], **changes)]


@given(st.sampled_from(sorted(STREAMS)), st.sampled_from(sorted(METHODS)), st.sampled_from(sorted(PROBES)))
def test_micro_batches_contain_one_stream_each_where_anything_asks_for_it(of: str, by: str, probed: str) -> None:
    changes, facts, is_differing = STREAMS[of]
    (methods, separate), (probe, is_apart) = METHODS[by], PROBES[probed]
    plan = planned(_two(**changes), methods, facts, probe=probe)
    assert plan.one_stream_each == (is_differing or separate or is_apart)
    assert plan.streams_differ == (is_differing and of != "packed rows")
    assert plan.have_losses == (of in ("a loss", "heads"))
    assert plan.have_heads == (of == "heads")
    assert plan.keeps_outputs == bool(methods)
    assert (plan.probed is not None) == (probed in ("a probe", "a probe of separate streams"))


@given(st.sampled_from(["cpu", "cuda", "mps"]), st.booleans(), st.sampled_from(["epochs", "samples"]))
def test_what_is_kept_and_read_is_what_is_asked_for(device: str, keeps: bool, counted: str) -> None:
    policy = SimpleNamespace(name="Own", needs=(GradientNorm(),))
    others: dict[str, Any] = {"device": device, "budget": Budget(**{counted: 2})}
    plan = planned(_two(), [_method(*["samples"] * keeps)], policy=policy, **others)
    assert plan.keeps_samples == keeps
    assert plan.is_step_based == (counted == "epochs")
    assert plan.reads_losses_at_once == (device == "cpu")  # neither asks for losses as such
    assert planned(schedule=schedules.LossChange(initial=8, maximum=16), **others).reads_losses_at_once
    assert not planned(schedule=schedules.LossChange(initial=8, maximum=16), **others).is_step_based


def test_a_probe_that_excludes_what_the_policy_needs_is_refused_before_any_part() -> None:
    with refused("probe.variance"):
        planned(_two(), policy=PiKE(), probe=Probing(variance=False))
