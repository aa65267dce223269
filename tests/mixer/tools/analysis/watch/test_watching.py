"""`mixer watch` on a real terminal, while a run goes on."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mixer.tools.analysis.watch.gathered import WatchedRun
from mixer.tools.analysis.watch.view import view
from tests.helpers import shown
from tests.mixer.tools.analysis.watch.writing import begin, write
from tests.terminal import Terminal


def _drawn(folder: Path, columns: int, rows: int) -> list[str]:
    run = WatchedRun(folder)
    run.read()
    return shown(view(run, columns, rows), width=columns, height=rows).splitlines()


@pytest.mark.full
def test_a_terminal_follows_a_run_to_its_end(tmp_path: Path) -> None:
    ledger = begin(tmp_path / "run", 3, 50)
    ledger.flush()
    terminal = Terminal(["-m", "mixer", "watch", str(tmp_path / "run")])
    text = terminal.wait_for(lambda text: "25%  50/200 steps" in text and "stream-2" in text)
    lines = text.splitlines()
    assert lines[0] == "running  LossChange  run"
    assert "step 50, epoch 0.50, 300 samples, 3,000 tokens, 1 s/step" in lines[2]
    assert "loss 3.500 █" in lines[3]
    assert "loading 25%" in lines[3]
    row = next(line for line in lines if line.startswith("stream-2"))
    for part in ("████░░░░ 0.500", " 75% ", " 50% "):  # the weight, the coverage, the share of the samples
        assert part in row
    write(ledger, range(51, 101), 3)
    ledger.record_evaluation(100, {"stream-0": 1.5, "stream-1": 2.5})
    ledger.finish()  # a tail becomes a part under its eyes
    terminal.resize(120, 40)
    text = terminal.wait_for(lambda text: "evaluation at 100: mean 2.000, worst stream-1 2.500" in text)
    assert "100/200" in text
    assert "passes" in text
    ledger.end("finished")
    assert terminal.wait() == 0
    assert "finished  LossChange" in terminal.text
    assert terminal.written.count(b"\x1b[?25h") == 1  # the cursor is back
    terminal.close()


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (50, 15), (50, 6), (20, 3), (200, 9)])
def test_a_view_fits_its_terminal(tmp_path: Path, columns: int, rows: int) -> None:
    ledger = begin(tmp_path, 40, 5)
    ledger.record_evaluation(5, {"stream-3": 1.0})
    ledger.flush()
    lines = _drawn(tmp_path, columns, rows)
    assert len(lines) <= rows
    assert all(len(line) <= columns for line in lines)
    assert "running" in lines[0] or columns < 30
    if rows >= 15 and columns >= 50:
        num_shown = rows - 5 - 2  # lines above, the table's head and the line that counts the others
        assert lines[-1].startswith(f"… and {40 - num_shown} more of 40 streams, weight")
        assert any(line.startswith("stream-39 ") for line in lines)  # the heaviest
        assert not any(line.startswith("stream-0 ") for line in lines)


def test_without_a_terminal_it_shows_the_newest_task_once(tmp_path: Path, printed: Callable[..., str]) -> None:
    for name in ("01-first", "02-second"):
        begin(tmp_path / name, 2, 1)
        for path in (tmp_path / name / "ledger").rglob("*"):
            os.utime(path, (1e9 + int(name[:2]), 1e9 + int(name[:2])))
    once = printed("watch", tmp_path)
    assert "02-second" in once
    assert "1/200 steps" in once
    document = json.loads(printed("watch", tmp_path, "--json"))
    assert (document["state"], document["loading_share"]) == ("running", 0.25)
    assert document["clock"]["gradient_norm"] == 0.5
    assert [stream["stream"] for stream in document["streams"]] == ["stream-0", "stream-1"]
    assert document["streams"][1]["share"] == pytest.approx(2 / 3)


def test_what_is_no_number_is_not_what_is_not_known(tmp_path: Path, printed: Callable[..., str]) -> None:
    ledger = begin(tmp_path, 3, 1)
    write(ledger, range(2, 3), 3, broken=1)
    ledger.record_evaluation(2, {"stream-1": 2.0, "stream-0": float("nan")})
    ledger.flush()
    lines = _drawn(tmp_path, 80, 20)
    assert (lines[3][:9], lines[3][-12:]) == ("loss nan ", "gradient nan")
    assert "worst stream-0 nan" in lines[4]
    cells = [line.split() for line in lines[6:]]
    assert [(row[3], row[6]) for row in cells] == [("nan", "nan"), ("4.985", "2.000"), ("5.985", "-")]
    document = json.loads(printed("watch", tmp_path, "--json"))
    finite = [(stream["loss_is_finite"], stream["evaluation_is_finite"]) for stream in document["streams"]]
    assert finite == [(False, False), (True, True), (True, None)]
    told = ("loss_is_finite", "gradient_norm_is_finite", "loss")
    assert [document["clock"][name] for name in told] == [False, False, None]
