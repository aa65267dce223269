"""Files of a user, or of another package, under the names of this library's packages."""

import subprocess
import sys
from pathlib import Path

import pytest

import mixer
from mixer.tools.cli.entry import main

ROOT = Path(mixer.__file__).parents[1]


def _python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python as a user does in a folder with files of their own, which comes before the library."""
    code = "import sys; sys.path[:0] = sys.argv.pop(1).split('|'); exec(sys.argv.pop(1))"
    path = f"{folder}|{ROOT}"
    return subprocess.run([sys.executable, "-c", code, path, *words], cwd=folder, capture_output=True, text=True)


def test_a_command_that_a_file_hides_names_the_file_and_does_not_run_it(tmp_path: Path) -> None:
    own = tmp_path / "tasks.py"
    own.write_text("print('I ran')")
    done = _python(tmp_path, "from mixer.tools.cli.entry import main; main(['continual', '--help'])")
    assert (done.returncode, done.stdout) == (2, "")
    assert "command continual of adaptive-mixer cannot be loaded (ModuleNotFoundError: Python" in done.stderr
    assert f"'tasks' at {own}, which hides" in done.stderr
    assert "Rename your own file" in done.stderr
    listed = _python(tmp_path, "from mixer.tools.cli.entry import main; main(['--help'])")
    assert "I ran" not in listed.stdout
    assert f"command continual of adaptive-mixer is skipped (ModuleNotFoundError: Python finds 'tasks' at {own}" in (
        listed.stderr
    )


def test_an_import_across_packages_names_the_file_that_it_met(tmp_path: Path) -> None:
    (tmp_path / "replay.py").touch()
    done = _python(tmp_path, "from tasks.sources import digits")
    assert f"Python finds 'replay' at {tmp_path / 'replay.py'}, which hides" in done.stderr.splitlines()[-1]
    (tmp_path / "replay.py").rename(tmp_path / "mixer.py")
    for package in ("replay", "tasks"):
        last = _python(tmp_path, f"import {package}").stderr.splitlines()[-1]
        assert f"{package} needs the package 'mixer' of adaptive-mixer" in last
        assert str(tmp_path / "mixer.py") in last


def test_commands_notice_another_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delattr(mixer, "lazy_names")  # another face is installed over ours
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"Python finds 'mixer' at {mixer.__file__}" in capsys.readouterr().err
