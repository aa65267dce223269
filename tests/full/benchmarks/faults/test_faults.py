import json
from pathlib import Path

import pytest

from benchmarks.faults import controls, data, draws, waits
from benchmarks.faults.command import main
from benchmarks.faults.kinds import Kind, Promise

KEPT = Kind("clock", "a clock that leaps", Promise.GOES_ON, draw=draws.clock, inside=waits.leaping_clock)
BROKEN = {
    "DIFFERENT from the undisturbed run: weights": Kind(
        "differs", "other data", Promise.GOES_ON, draw=lambda *_: {"more": 8}, inside=data.other_length
    ),
    "hung: ranks [0, 1] had to be killed": Kind(
        "hangs",
        "a step without end",
        Promise.GOES_ON,
        draw=lambda *_: {"step": 2},
        inside=waits.held_step,
        limit_seconds=5.0,
    ),
    "does not name ['a word that is never said']": Kind(
        "names nothing",
        "a policy that raises",
        Promise.NAMED,
        draw=lambda *_: {"step": 4},
        names=("the policy lost its way", "a word that is never said"),
        inside=controls.failing_policy,
    ),
}


class TestMain:
    def test_kept_and_broken_promises_are_told_apart(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
