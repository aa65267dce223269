import json
from pathlib import Path

import pytest

from benchmarks.faults import damages, draws
from benchmarks.faults.case import Case, MissedError
from benchmarks.faults.command import main, markdown_of, rows_of
from benchmarks.faults.damages import _DAMAGES
from benchmarks.faults.inside import INSIDE
from benchmarks.faults.kinds import Kind, Known, Promise
from benchmarks.faults.outcome import Outcome
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


class TestDamages:
    @pytest.mark.parametrize("how", _DAMAGES)
    @pytest.mark.parametrize("place", [0, 3, 7])
    def test_damage_is_where_it_was_drawn(self, how: str, place: int) -> None:
        content = b"abcdefgh"
        damaged = _DAMAGES[how](content, place, 1)
        assert damaged != content
        assert damaged[:place] == content[:place]
        assert len(damaged) == (place if how == "truncated" else len(content))

    @pytest.mark.parametrize("place", [0, 2, 5, 11])
    def test_zeros_are_put_where_there_are_none_yet(self, place: int) -> None:
        content = b"\0\0\0abc\0\0\0d\0\0"
        damaged = _DAMAGES["zeroed"](content, place, 0)
        changed = [at for at, (before, after) in enumerate(zip(content, damaged, strict=True)) if before != after]
        assert changed == [{0: 3, 2: 3, 5: 5, 11: 3}[place]]

    def test_a_file_of_zeros_alone_is_not_said_to_be_damaged(self, tmp_path: Path) -> None:
        file = tmp_path / "cut-short" / "disk" / "run" / "zeros"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(9))
        kind = Kind("zeroed", "", Promise.NAMED_OR_EQUAL, "damaged")
        fault = {"how": "zeroed", "where": ["run/zeros"], "file": 0.0, "place": 0.5, "bit": 3, "resume": "newest"}
        with pytest.raises(MissedError):
            damages.damaged(Case(kind, 2, 0, fault, tmp_path / "case", tmp_path / "cut-short"))


class TestTables:
    OUTCOMES = (
        Outcome("clock", 2, 0, {}, has_survived=True, is_equal=True, lost="nothing"),
        Outcome("clock", 2, 1, {}, broken=["DIFFERENT"], has_survived=True, is_equal=False, lost="weights"),
        Outcome("clock", 2, 2, {}, was_injected=False),
    )

    def test_what_was_not_injected_counts_nowhere(self) -> None:
        (row,) = rows_of(self.OUTCOMES, [KEPT])
        assert row == ["clock", "2", "2", "2", "1", "nothing; weights", "0", "0.0", "1"]

    def test_every_line_of_the_markdown_has_a_cell_for_each_heading(self) -> None:
        lines = markdown_of(self.OUTCOMES, [KEPT]).splitlines()
        assert lines[0].split(" | ")[-1] == "broken |"
        assert len({line.count("|") for line in lines}) == 1
        assert lines[2].endswith("| 1 |")


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
