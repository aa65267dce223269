"""A run's folder that somebody else wrote: nothing in it runs code, leaves the folder or breaks what shows it."""

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from mixer.checkpoint.checkpoint_files import find_problem
from mixer.ledger.ledger import Ledger
from mixer.tools.analysis.explanation import explain
from mixer.tools.analysis.fit.recipes import check_recipes
from mixer.tools.analysis.fit.runs import FittedRun
from mixer.tools.cli import main
from mixer.tools.cli.watch import place_of
from mixer.tools.records.run import Run
from mixer.tools.report import write_report
from tests.fixtures.runs import NUM_STEPS, SAVED_STEP, make_trainer
from tests.mixer.tools.report.ledgers import write_run
from tests.refusals import refused

FIXTURE = Path(__file__).parents[1] / "fixtures" / "0.1.0"
AWFUL = ["..", "../../x", "/etc/x", "\x1b[31mred\x1b[0m", "[red]a[/red]", "\u202eabc", "a\nb", "{{7*7}}", "a|b", "CON"]
AWFUL += ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "=HYPERLINK(1)", "![x](javascript:1)"]
AWFUL += ["y" * 3_000]


class _Marks:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self.path, "code was run")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(FIXTURE / "run", tmp_path / "run")
    return tmp_path / "run"


def _checkpoint(run: Path) -> Path:
    """The checkpoint, its marker as whoever changes its files would write it: with their sizes and no digests."""
    checkpoint = run / f"checkpoint-{SAVED_STEP}"
    marker = json.loads((checkpoint / "complete.json").read_text())
    files = {name: (checkpoint / name).stat().st_size for name in _files(checkpoint) - {"complete.json"}}
    (checkpoint / "complete.json").write_text(json.dumps({"format": marker["format"], "files": files}))
    return checkpoint


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# Files of a checkpoint, and what somebody put in place of them.
PUT_IN_PLACE = {
    "torch": ["rng_state.pth", "optimizer.pt", "model.safetensors"],
    "pickle": ["scheduler.pt", "trainer_state.json", "config.json", "mixing.json", "complete.json"],
    "objects": ["methods/memory/buffer.npz"],
}
PUT_IN_PLACE["pickle"] += ["methods/memory/buffer.json", "methods/memory/rows/rows.arrow"]


def _put_payload(path: Path, form: str, mark: Path) -> None:
    if form == "pickle":
        path.write_bytes(pickle.dumps(_Marks(mark)))
    elif form == "objects":
        np.savez(path, **{"entries/address": np.array([_Marks(mark)], dtype=object)})
    else:
        torch.save({"state": _Marks(mark), "param_groups": []}, path)


def _unseal_buffer(checkpoint: Path) -> None:
    state = checkpoint / "methods" / "memory" / "buffer.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({key: value for key, value in content.items() if key not in ("crc32", "digests")}))


@pytest.mark.parametrize(("name", "form"), [(name, form) for form, names in PUT_IN_PLACE.items() for name in names])
def test_a_malicious_file_of_a_checkpoint_runs_nothing_and_is_named(name, form, run, tmp_path) -> None:
    mark = tmp_path / "mark"
    checkpoint = _checkpoint(run)
    _unseal_buffer(checkpoint)
    _put_payload(checkpoint / name, form, mark)
    if name != "complete.json":
        _checkpoint(run)
    with pytest.raises(ValueError, match=re.escape(Path(name).name)) as info:
        make_trainer(run).train(resume_from_checkpoint=str(checkpoint))
    assert str(info.value).isprintable()
    assert not mark.exists()


@pytest.mark.parametrize(
    ("place", "value"), [(("progress",), 5), (("weights", "policy", "state", "policy", "num_observations"), [4, 0.5])]
)
def test_a_number_of_another_kind_in_the_mixture_is_refused_and_the_checkpoint_named(place, value, run) -> None:
    path = run / f"checkpoint-{SAVED_STEP}" / "mixing.json"
    content = inner = json.loads(path.read_text())
    content.pop("crc32", None)
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"Cannot resume the mixture from {path.parent}"):
        make_trainer(run).train(resume_from_checkpoint=str(_checkpoint(run)))


@pytest.mark.parametrize("allow_inexact", [False, True])
@pytest.mark.parametrize("part", ["../outside.safetensors", "/etc/outside.safetensors"])
def test_an_index_of_weights_that_lists_files_outside_of_the_checkpoint_is_refused(part, allow_inexact, run) -> None:
    checkpoint = _checkpoint(run)
    weights = checkpoint / "model.safetensors"
    weights.rename(checkpoint.parent / "outside.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": part}}))
    problem = find_problem(_checkpoint(run), allow_inexact)
    assert problem is not None
    assert repr(part) in problem


def test_training_arguments_of_a_checkpoint_are_not_read(run: Path, tmp_path: Path) -> None:
    _put_payload(run / f"checkpoint-{SAVED_STEP}" / "training_args.bin", "pickle", tmp_path / "mark")
    trainer = make_trainer(run)
    trainer.train(resume_from_checkpoint=str(_checkpoint(run)))
    assert trainer.state.global_step == NUM_STEPS
    assert not (tmp_path / "mark").exists()


def test_what_a_ledger_or_a_recipe_describes_imports_nothing(run, tmp_path, monkeypatch) -> None:
    (tmp_path / "modules").mkdir()
    text = f"from pathlib import Path\nPath({str(tmp_path / 'mark')!r}).write_text('run')\nclass Policy: ...\n"
    (tmp_path / "modules" / "mark_when_imported.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    written: dict[str, Any] = {"class_path": "mark_when_imported.Policy", "init_args": {}}
    note = run / "ledger" / "ledger.json"
    content = json.loads(note.read_text())
    content["run"]["mixing"] = content["run"]["batch_size"] = written
    note.write_text(json.dumps(content))
    explain(run, SAVED_STEP)
    write_report([run], tmp_path / "report.html")
    stream = {"factory": "x.y", "arguments": {"x": written}}
    recipe = {"model": {"config": {}}, "streams": {"a": stream}, "training": {"output_dir": "o"}, "mixing": written}
    folders = {name: tmp_path / name for name in ("one", "two")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "methods": [written]}))
    assert check_recipes(folders, allow_different=False) == []
    assert not (tmp_path / "mark").exists()
    for folder in folders.values():
        os.truncate(folder / "recipe.yaml", 2**27)  # without an end
    with refused(str(folders["one"] / "recipe.yaml")):
        check_recipes(folders, allow_different=False)


@pytest.fixture
def _ends() -> Iterator[None]:

    def end(*_: Any) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


PUT: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero")}
READERS: dict[str, Callable[[Path, Path], Any]] = {
    "report": lambda run, out: write_report([run], out / "report.html"),
    "compare": lambda run, out: Run(run).as_data(),
    "explain": lambda run, out: explain(run, SAVED_STEP),
    "watch": lambda run, out: place_of(Run(run)),
    "ledger": lambda run, out: Ledger(run / "ledger").to_pandas(),
    "go on": lambda run, out: Ledger(run / "ledger").num_rows(),
    "fit": lambda run, out: FittedRun(run, "run", "samples"),
}
TABLES = ("clock", "decisions", "memories", "streams", "timings")
FILES = ["ledger.json", "clock/tail-000007.arrow", *(f"{table}/part-000000.parquet" for table in TABLES)]


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize("put", PUT)
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_a_device_in_place_of_a_file_is_never_read(name: str, put: str, run: Path, tmp_path: Path) -> None:
    (run / "ledger" / name).unlink(missing_ok=True)
    PUT[put](run / "ledger" / name)
    refused = {}
    for reader, read in READERS.items():
        try:
            read(run, tmp_path)
        except ValueError as error:
            refused[reader] = str(error)
    assert refused
    said = ("it is not a regular file", "it has no ledger/ledger.json")
    assert all(any(part in message for part in said) for message in refused.values()), refused


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize("name", ["trainer_state.json", "methods/memory/buffer.npz", "methods/memory/rows/rows.arrow"])
def test_a_pipe_in_a_checkpoint_is_never_read(name: str, run: Path) -> None:
    checkpoint = run / f"checkpoint-{SAVED_STEP}"
    _unseal_buffer(checkpoint)
    (checkpoint / name).unlink()
    PUT["pipe"](checkpoint / name)
    with pytest.raises(ValueError, match=re.escape(name)):
        make_trainer(run).train(resume_from_checkpoint=str(_checkpoint(run)))


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """The folder of a run whose ledger has awful names, as no trainer would write it."""
    write_run(run := tmp_path / "named", tuple(AWFUL), num_steps=3, measure_every=1)
    note = run / "ledger" / "ledger.json"
    note.write_text(json.dumps({"format": 1, "run": {"mixing": "\x1b[31m[bold]evil[/bold]"}}))
    return run


def test_the_terminal_shows_no_escapes_and_no_markup(named: Path, printed: Callable[..., str]) -> None:
    text = printed("watch", named)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "[bold]evil[/bold]" in text


# ---- Links in a run's folder that lead out of it ----


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("kept")
    return tmp_path / "outside"


def _train(run: Path, is_fresh: bool) -> None:
    checkpoint = None if is_fresh else str(run / f"checkpoint-{SAVED_STEP}")
    make_trainer(run).train(resume_from_checkpoint=checkpoint)


@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        *("ledger/ledger.json.tmp", "ledger/streams/part-000000.tmp", "ledger/streams/tail-000001.arrow"),
        *("checkpoint-8/mixing.json.tmp", "checkpoint-8/complete.json.tmp", "checkpoint-8/model.safetensors"),
        *("checkpoint-8/optimizer.pt", "_run.lock"),
        *("ledger/", "ledger/streams/", "checkpoint-8/"),
    ],
)
def test_a_link_in_place_of_a_file_or_a_folder_is_not_followed(name, is_fresh, run, outside) -> None:
    link = run / name
    if name.endswith("/"):
        shutil.rmtree(link, ignore_errors=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside if name.endswith("/") else outside / "precious")
    with contextlib.suppress(ValueError, OSError):  # it may be refused
        _train(run, is_fresh)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"precious": "kept"}


def test_links_that_the_user_made_above_a_run_work(run: Path, tmp_path: Path) -> None:
    (tmp_path / "by-link").symlink_to(run)
    _train(tmp_path / "by-link", is_fresh=False)
    assert (run / f"checkpoint-{NUM_STEPS}" / "complete.json").is_file()


def test_a_link_in_the_ledger_is_named_with_the_way_out(run: Path, outside: Path) -> None:
    shutil.rmtree(run / "ledger" / "streams")
    (run / "ledger" / "streams").symlink_to(outside)
    with pytest.raises(OSError, match=f"streams is a link to {outside}.*{run}"):
        _train(run, is_fresh=False)


@pytest.mark.parametrize("name", ["\x1b[31mred", "\u202eabc", "a\nb"])
def test_folder_names_are_printed_without_escapes(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run.rename(run.with_name(name))
    main(["report", str(run)])
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
    with pytest.raises(SystemExit):
        main(["report", str(run / name)])
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))
