"""States of the mixture that are not what was written: one kind of error, with what is wrong."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from mixer.mixture.batch_size import BatchSize
from mixer.mixture.cursors import IterableCursor
from mixer.mixture.stream import Stream
from mixer.policies import Floor, GroupDRO
from mixer.policies.contract import Policy
from mixer.schedules import LossChange
from mixer.trainer.save import Progress
from mixer.utils.saved_state import from_plain
from mixer.utils.validation import MOST_COUNT
from tests.mixer.mixture.test_controller import make_mixing, one_step
from tests.refusals import refused

HUGE = 10**400
HUGE_LOSS = float("inf")
NAN = float("nan")
DAMAGED = [(("planner", "streams", "b"), 3), (("planner", "streams"), None), (("clock",), [])]
DAMAGED += [(("weights", "policy"), None), (("weights", "decision"), [])]


def saved_state(policy: Policy | None = None) -> Any:
    mixing = make_mixing(policy or GroupDRO())
    for _ in range(3):
        one_step(mixing)
    return json.loads(json.dumps(mixing.state_dict()))


def changed(state: Any, place: tuple[Any, ...], value: Any) -> Any:
    inner = state
    for step in place[:-1]:
        inner = inner[step]
    assert place[-1] in inner or isinstance(inner, list)
    inner[place[-1]] = value
    return state


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        *[(("planner", "streams", "a", "seen"), value, "samples seen of 'a'") for value in (1.5, -1, MOST_COUNT + 1)],
        *[(("planner", "streams", "a", "deficit"), value, "deficit of 'a'") for value in ("0", 1e7, NAN, HUGE)],
        *[(("planner", "streams", "b", "position"), value, "'b': position") for value in (True, -3, MOST_COUNT + 1)],
        *[(place, value, "is damaged") for place, value in DAMAGED],
        (("clock", "step"), 2.0, "step must be a whole number"),
        (("clock", "warmup_share"), float("inf"), "warmup_share must be a number"),
        *[(("clock", "batch_size"), value, "batch_size must be a whole number") for value in (0, 2**31)],
        (("clock", "step_in_epoch"), 10**9, "step_in_epoch is"),
        *[(("batch_size", "scheduled"), value, "the batch size must be a whole number") for value in (0, 2**31)],
        (("batch_size", "manual"), 7.5, "the batch size set by hand must be a whole number"),
        *[(("num_tokens", 0), value, "the tokens of a stream must be a whole number") for value in (-1, "1")],
        (("skipped",), [0], "zip"),
        *[(("weights", name), [1.0], "a list of 3 numbers") for name in ("manual", "evaluation_losses")],
        *[(("weights", "manual"), value, "the weights set by hand") for value in ([0.0] * 3, [1.0, -1.0, 1.0])],
        *[(("weights", "policy", "state"), value, "cannot be taken up") for value in ({}, 3)],
    ],
)
def test_what_is_not_what_was_written_is_refused(place: tuple[Any, ...], value: Any, said: str) -> None:
    state = saved_state()
    mixing = make_mixing(GroupDRO())
    with pytest.raises(ValueError) as info:  # noqa: PT011  # its words are compared below
        mixing.load_state_dict(changed(state, place, value))
    assert said in str(info.value)
    assert len(str(info.value)) < 1_000


def leaves(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, part in parts:
        yield (*place, name)
        yield from leaves(part, (*place, name))


@pytest.mark.parametrize("value", [None, "text", [[]], HUGE, True])
def test_no_place_of_a_state_gives_another_kind_of_error(value: Any) -> None:
    whole = saved_state(Floor(GroupDRO(), 0.1))
    num_refused = 0
    for place in leaves(whole):
        mixing = make_mixing(Floor(GroupDRO(), 0.1))
        try:
            mixing.load_state_dict(changed(json.loads(json.dumps(whole)), place, value))
        except ValueError as error:
            assert str(error)  # noqa: PT017
            num_refused += 1
        else:
            mixing.next_plan()
    assert num_refused > 20


class TestPolicyState:
    @pytest.mark.parametrize("state", [{}, 3, None, {"made up": 1}])
    def test_one_that_cannot_be_taken_up_starts_anew_where_that_is_allowed(self, state: Any) -> None:
        mixing = make_mixing(GroupDRO())
        mixing.load_state_dict(changed(saved_state(), ("weights", "policy", "state"), state), allow_inexact=True)
        fresh = make_mixing(GroupDRO())
        assert mixing.policy.state_dict() == fresh.policy.state_dict()
        assert mixing.clock.step == 3
        assert one_step(mixing).counts.sum() == 8

    def test_what_is_of_another_form_is_refused_though_it_could_be_taken_up(self) -> None:
        state = saved_state()
        alpha = state["weights"]["policy"]["state"]["alpha"]
        alpha["logs"] = list(map(str, alpha["logs"]))
        with refused("mixing"):
            make_mixing(GroupDRO()).load_state_dict(state)


class Rows(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)


@pytest.mark.parametrize("option", ["position", "passes", "pass_start", "longest_pass", "left", "undelivered"])
def test_counts_of_rows_are_whole_numbers(option: str) -> None:
    cursor = IterableCursor(Stream("rows", Rows()))
    for value in ("1", 1.5, -1, True, MOST_COUNT + 1):
        with refused(option):
            cursor.load_state_dict({**cursor.state_dict(), option: value})


def test_a_schedules_state_of_another_form_is_refused() -> None:
    size = BatchSize(LossChange(minimum=1, maximum=64), 8)
    state = json.loads(json.dumps(size.state_dict()))
    names = [name for name, value in state["state"].items() if isinstance(value, int | float | list)]
    assert names
    for name in names:
        with refused(f"LossChange: {name}"):
            size.load_state_dict({**state, "state": {**state["state"], name: "text"}})


@pytest.mark.parametrize(("values", "dtype"), [([4, 0.5], int), ([True], int), (["1.5"], float), (["nan"], float)])
def test_an_array_of_another_kind_is_not_cut_or_parsed(values: list[Any], dtype: type) -> None:
    with refused("state"):
        from_plain(values, -1, dtype=dtype)
    assert from_plain([4, None], -1).tolist()[0] == 4.0
    assert from_plain([[], []], 2, 0, dtype=int).shape == (2, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("running_losses", value) for value in ([], [[1]], "", 7)),
        *(("seconds", "x"), ("gradient_norm", []), ("epoch_stops", 1), ("recorder", 5), ("num_metrics", -1)),
        ("ledger_rows", {"clock": 0.5}),
    ],
)
def test_progress_of_another_kind_is_refused_by_name(name: str, value: Any) -> None:
    numbers: Any = {"seconds": 1.0, "running_losses": [HUGE_LOSS], "logged_loss": 2.0, "last_logged_step": 3}
    rates: Any = {"gradient_norm": None, "learning_rate": 0.1, "learning_rate_factor": 1.0}
    rest: Any = {"epoch_end_is_left": True, "epoch_stops": False, "training_stops": False, "num_evaluations": 0}
    progress = Progress(**numbers, **rates, **rest, num_metrics=0, recorder={}, methods={}, ledger_rows={"clock": 3})
    state = progress.state_dict()
    assert Progress.from_state(json.loads(json.dumps(state))) == progress
    with pytest.raises(ValueError, match=name):
        Progress.from_state({**state, name: value})
