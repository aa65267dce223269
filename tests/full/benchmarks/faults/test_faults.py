import json
from pathlib import Path

import pytest

from benchmarks.faults import draws
from benchmarks.faults.command import main
from benchmarks.faults.inside import INSIDE
from benchmarks.faults.kinds import Kind, Known, Promise
from benchmarks.faults.outside import OUTSIDE
from benchmarks.faults.run import LENGTHS
from benchmarks.faults.table import KINDS


class TestTable:
    def test_every_kind_can_be_injected_and_has_a_promise_of_its_own_words(self) -> None:
        assert len({kind.name for kind in KINDS}) == len(KINDS)
        assert all(kind.how in OUTSIDE and (not kind.inside or kind.inside in INSIDE) for kind in KINDS)
        speaking = {Promise.NAMED, Promise.REFUSED, Promise.SECOND_REFUSED, Promise.NAMED_OR_EQUAL}
        assert all(kind.names for kind in KINDS if kind.promise in speaking)

    def test_at_least_200_faults_are_injected_on_two_and_four_ranks(self) -> None:
        assert sum(sum(kind.counts.values()) for kind in KINDS) >= 200
        assert all(kind.counts[2] and kind.counts[4] for kind in KINDS)

    def test_what_is_drawn_fills_in_what_errors_have_to_say(self) -> None:
        known = Known(4, lambda generator: {"step": 3, "delay": 0.0}, lambda: list(range(0, 60, 7)), LENGTHS["a"])
        for kind in KINDS:
            fault = kind.draw(draws.random.Random(kind.name), known)
            assert fault == kind.draw(draws.random.Random(kind.name), known)
            assert all(name.format(damaged="mixing.json", **fault) for name in kind.names)


KEPT = Kind("clock", "a clock that leaps", Promise.GOES_ON, draw=draws.clock, inside="leaping_clock")
BROKEN = {
    "DIFFERENT from the undisturbed run: weights": Kind(
        "differs", "other data", Promise.GOES_ON, draw=lambda *_: {"more": 8}, inside="other_length"
    ),
    "hung: ranks [0, 1] had to be killed": Kind(
        "hangs",
        "a step without end",
        Promise.GOES_ON,
        draw=lambda *_: {"step": 2},
        inside="held_step",
        limit_seconds=5.0,
    ),
    "does not name ['a word that is never said']": Kind(
        "names nothing",
        "a policy that raises",
        Promise.NAMED,
        draw=lambda *_: {"step": 4},
        names=("the policy lost its way", "a word that is never said"),
        inside="failing_policy",
    ),
}


class TestMain:
    def test_promises_that_are_kept_and_broken_are_told_apart(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        argv = ["--quick", "--folder", str(tmp_path / "runs"), "--json", str(tmp_path / "faults.json")]
        with pytest.raises(SystemExit) as end:
            main(argv, [KEPT, *BROKEN.values()])
        assert end.value.code == 1
        outcomes = json.loads((tmp_path / "faults.json").read_text())["outcomes"]
        assert [outcome["kind"] for outcome in outcomes if not outcome["broken"]] == ["clock"]
        told = {outcome["kind"]: "; ".join(outcome["broken"]) for outcome in outcomes}
        for what, kind in BROKEN.items():
            assert what in told[kind.name]
        assert not (tmp_path / "runs" / "ranks-2" / "clock-0").exists()
        output = capsys.readouterr().out
        assert "4 faults in" in output
        assert "3 promises broken" in output
        assert "python -m benchmarks faults --kinds differs --ranks 2 --only 0 --seed 0" in output
