"""What reads files that anybody may have written, each given valid files that were changed."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.tools.fuzz.mutations import AWFUL_NAMES, changed_bytes, changed_data, changed_json, changed_text
from mixer.analysis.explanation import explain
from mixer.checkpoint.checkpoint_files import MARKER_FILE, STATE_FILE, complete, find_problem
from mixer.cli.registry import load_command
from mixer.cli.watch import place_of
from mixer.ledger.decisions import Level, rows_of
from mixer.ledger.folder import read_description
from mixer.ledger.ledger import Ledger
from mixer.ledger.summary import summarise
from mixer.measurements import GradientNorm, LearningRate, Loss, MeanLoss
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Decision, Policy
from mixer.policies.registry import built_in_policies
from mixer.recipe.fields import check_recipe
from mixer.recipe.recipe import Recipe
from mixer.schedules import Schedule, schedule_classes
from mixer.trainer.save import Progress
from mixer.utils.files import folder_name, read_json
from mixer.utils.text import printable
from replay import OnDisk, ReplayBuffer
from replay.storage.codec import Row, decode, encode
from tasks.metrics.score_matrix import ScoreMatrix

Case = Callable[[Random], None]

_RECIPES = Path(__file__).parents[3] / "recipes"
_NAMES = ("a", "b", "c")
_SHARE_UNDIGESTED = 0.5
_LOSSES = np.array([1.0, 2.0, 0.5])


def controllers() -> Case:
    """Gives a case of a controller that takes up a changed state and plans on."""
    rules = [(policy, None) for policy in _by_losses(built_in_policies())]
    rules += [("Uniform", schedule) for schedule in _by_losses(schedule_classes())]
    saved: list[tuple[Callable[[], Mixing], dict[str, Any]]] = []
    for policy, schedule in rules:
        mixing = _mixing(policy, schedule)
        for _ in range(5):
            _update(mixing)
        saved.append((lambda policy=policy, schedule=schedule: _mixing(policy, schedule), mixing.state_dict()))

    def case(random: Random) -> None:
        make, state = random.choice(saved)
        mixing = make()
        mixing.load_state_dict(changed_data(state, random), random.random() < 0.3)
        for _ in range(2):
            _update(mixing)

    return case


def progresses() -> Case:
    """Gives a case of the training loop's own progress."""
    numbers = {"seconds": 1.0, "running_losses": [1.0], "logged_loss": 2.0, "last_logged_step": 3}
    rates = {"gradient_norm": None, "learning_rate": 0.1, "learning_rate_factor": 1.0}
    flags = {"epoch_end_is_left": True, "epoch_stops": False, "training_stops": False}
    rest = {"num_evaluations": 0, "num_metrics": 0, "recorder": {}, "methods": {}, "ledger_rows": {"clock": 3}}
    progress = Progress(**numbers, **rates, **flags, **rest).state_dict()
    return lambda random: Progress.from_state(changed_data(progress, random)).running_loss(0, 1) and None


def recipes(folder: Path) -> Case:
    """Gives a case of a recipe as text, read by the command that it is for."""
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(_RECIPES.glob("*.yaml"))]
    path = folder / "recipe.yaml"
    commands = {name: load_command(name) for name in ("train", "continual")}

    def case(random: Random) -> None:
        name, text = random.choice(texts)
        command = commands["continual" if name.startswith("continual") else "train"]
        path.write_text(changed_text(text, random), encoding="utf-8", errors="surrogatepass")
        check_recipe(command.recipe_class or Recipe, ["--recipe", str(path)], command.parser._option_string_actions)

    return case


def ledgers(folder: Path) -> Case:
    """Gives a case of a ledger: its note, its tail and its sealed parts."""
    valid = folder / "valid"
    _write_ledger(valid / "ledger")
    names = [path.relative_to(valid) for path in valid.rglob("*") if path.is_file()]
    contents = {name: (valid / name).read_bytes() for name in names}
    changing = folder / "changing"
    for name, content in contents.items():
        (changing / name).parent.mkdir(parents=True, exist_ok=True)
        (changing / name).write_bytes(content)

    def case(random: Random) -> None:
        name = random.choice(names)
        is_note = name.name == "ledger.json"
        content = contents[name]
        known = _undigested(content) if random.random() < _SHARE_UNDIGESTED else content
        changed = changed_json(json.loads(content), random) if is_note else changed_bytes(known, random)
        (changing / name).write_bytes(changed)
        try:
            _read_run(changing, random)
        finally:
            (changing / name).write_bytes(content)

    return case


def _undigested(content: bytes) -> bytes:
    """Gives a table's file as one would write it who wants it read: with other words in the place of digests' names.

    As long as the digest is there it stops nearly every change before Arrow reads anything.
    """
    return content.replace(b"mixer-crc32=", b"mixer-crc3_=").replace(b"crc32", b"crc3_")


def _read_run(folder: Path, random: Random) -> None:
    kind = random.randrange(4)
    if kind == 0:
        summarise(folder)
    elif kind == 1:
        explain(folder, random.randint(1, 8))
        read_description(folder)
    elif kind == 2:
        place_of(folder)
    else:
        ledger = Ledger(folder / "ledger")
        ledger.clock()
        ledger.evaluations()


def buffers(folder: Path) -> Case:
    """Gives a case of a saved buffer, of each storage and some selections, that is loaded and read."""
    kinds = [("Reservoir", "memory"), ("ClassBalanced", "memory"), ("Ring", "disk"), ("LossAware", "references")]
    saved = [_saved_buffer(*kind, folder, number) for number, kind in enumerate(kinds)]

    def case(random: Random) -> None:
        make, place, files = random.choice(saved)
        name = random.choice(list(files))
        changed = _unsealed(files[name], random) if name.endswith(".json") else changed_bytes(files[name], random)
        (place / name).write_bytes(changed)
        if not name.endswith(".json"):
            content = json.loads(files["buffer.json"])
            (place / "buffer.json").write_bytes(json.dumps(_without_digests(content)).encode())
        try:
            buffer = make(False)
            buffer.load(place)
            for slot in range(min(len(buffer), 3)):
                buffer[slot]
        finally:
            for own in (name, "buffer.json"):
                (place / own).write_bytes(files[own])

    return case


def _saved_buffer(
    selection: str, storage: str, folder: Path, number: int
) -> tuple[Callable[..., ReplayBuffer], Path, dict[str, bytes]]:
    """Saves a buffer; gives what makes one like it, where it is, and its files."""
    place, make = folder / f"buffer-{number}", _buffer_maker(selection, storage, folder / f"rows-{number}")
    make().save(place)
    files = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for path in place.rglob("rows-*.arrow"):  # that is linked to the working folder
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    return make, place, files


def _unsealed(content: bytes, random: Random) -> bytes:
    """Changes JSON as one would who knows how it is sealed: without the digests."""
    return changed_json(_without_digests(json.loads(content)), random)


def _without_digests(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in ("crc32", "digests")}


def markers(folder: Path) -> Case:
    """Gives a case of the marker of a whole checkpoint."""
    checkpoint = folder / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    (checkpoint / STATE_FILE).write_text('{"format": 2}')
    (checkpoint / "model.bin").write_bytes(b"x" * 50)
    complete(checkpoint)
    marker = _without_digests(json.loads((checkpoint / MARKER_FILE).read_text()))

    def case(random: Random) -> None:
        (checkpoint / MARKER_FILE).write_bytes(changed_json(marker, random))
        find_problem(checkpoint)
        read_json(checkpoint / MARKER_FILE)

    return case


def scores(folder: Path) -> Case:
    """Gives a case of a continual run's scores."""
    path = folder / "scores.json"
    matrix = ScoreMatrix(["first", "second"], path=path)
    for after in range(3):
        matrix.record(after, {"first": 0.5, "second": 0.25 * after})
    matrix.record_step(1, 2, {"first": 0.5})
    content = json.loads(path.read_text())

    def case(random: Random) -> None:
        path.write_bytes(changed_json(content, random))
        ScoreMatrix.from_file(path).to_pandas()

    return case


def rows() -> Case:
    """Gives a case of the bytes of a buffer's row."""
    sample = {"ids": np.arange(6).reshape(2, 3), "text": "Grüße", "mask": [1, 1, 0], "deep": (None, {"x": 0.5}, b"ab")}
    content = encode(Row(sample, {"logits": np.ones(4, dtype=np.float32)}))

    def case(random: Random) -> None:
        decode(changed_bytes(content, random))

    return case


def names() -> Case:
    """Gives a case of names that become folders, files, and texts on a terminal."""

    def case(random: Random) -> None:
        parts = random.choices([*AWFUL_NAMES, "a", ".", "/", "\\", " "], k=random.randint(1, 4))
        name = "".join(parts)
        folder, root = folder_name(name), Path("/root/of")
        assert (root / folder).resolve().parent == root, f"{folder!r} leaves its folder"
        assert len(folder.encode()) < 250
        assert folder_name(folder + "x") != folder
        assert printable(name).isprintable() or not name

    return case


# ---- What is changed ----


def _by_losses(classes: Mapping[str, Any]) -> list[str]:
    """Names the rules that can be made without arguments and need losses alone."""
    found = []
    for name, kind in classes.items():
        try:
            needs = kind().needs
        except (TypeError, ValueError):
            continue
        if {*needs} <= {Loss()}:
            found.append(name)
    return found


def _mixing(policy: str, schedule: str | None) -> Mixing:
    streams = [Stream("a", range(20)), Stream("b", range(30)), Stream("c", range(50), max_epochs=3)]
    made: Policy = built_in_policies()[policy]()
    clock = Clock(8, 100, Budget(epochs=5), is_constant=schedule is None)
    size = None
    if schedule is not None:
        rule: Schedule = schedule_classes()[schedule]()
        size = BatchSize(rule, 8, 2)
    return Mixing(Planner(streams, 0), made, clock, size)


def _update(mixing: Mixing) -> None:
    if mixing.clock.progress >= 1.0:
        return
    plan = mixing.next_plan()
    if plan is not None:
        mixing.planner.rank_share(plan, 0, 2)
        measured = {Loss: _LOSSES, MeanLoss: 1.0, GradientNorm: 1.0, LearningRate: lambda at: 1.0}
        mixing.observe(plan, plan.counts * 5, measured)


def _write_ledger(folder: Path) -> None:
    ledger = Ledger(folder, is_writer=True)
    table = [
        {"name": name, "kind": "data", "num_samples": 9, "weight": None, "enters_at": 0.0, "loss_weight": 1.0}
        for name in _NAMES
    ]
    run = {"streams": table, "mixing": {"class_path": "Uniform", "init_args": {}}, "batch_size": None, "groupings": []}
    run |= {"initial_batch_size": 3, "world_size": 1, "budget": {"steps": 8}}
    ledger.begin(None, {"streams": list(_NAMES), "policy": "Uniform", "batch_size": "Constant", "run": run})
    for step in range(1, 9):
        _record(ledger, step)
        if step == 4:
            ledger.finish()
    ledger.flush()


def _record(ledger: Ledger, step: int) -> None:
    whole = ("count", "items", "tokens", "seen", "unique", "staleness", "undelivered", "skipped")
    columns: dict[str, Any] = {name: np.full(3, step, dtype=np.int64) for name in whole}
    shares = ("weight", "loss", "coverage", "epoch", "policy_weight", "loss_weight", "owed")
    columns |= {name: np.full(3, 1 / step) for name in shares}
    ledger.record_streams(step, _NAMES, {**columns, "active": np.ones(3, dtype=bool)})
    clock = dict.fromkeys(("samples", "tokens", "batch_size", "total"), step)
    rates = ("epoch", "learning_rate", "learning_rate_factor", "loss", "gradient_norm")
    ledger.record_clock(step=step, progress=step / 8, **clock, **dict.fromkeys(rates, 0.5))
    timings = dict.fromkeys(("load_seconds", "train_seconds", "probe_seconds"), 0.1)
    ledger.record_timings(step=step, total=3, micro_batches=1, hits=0, misses=0, **timings)
    ledger.record_evaluation(step, {"a": 0.5, "b": 0.25})
    decision = Decision(np.full(3, 1 / step))
    ledger.record_decision(rows_of(step, [Level("ODM", _NAMES, decision, {"reward": 0.5})], _NAMES))


def _buffer_maker(selection: str, storage: str, folder: Path) -> Callable[..., ReplayBuffer]:
    samples = [{"x": np.arange(number % 5 + 1), "label": number % 3} for number in range(30)]

    def make(is_filled: bool = True) -> ReplayBuffer:
        shutil.rmtree(folder, ignore_errors=True)
        kept: Any = OnDisk(folder, rows_per_segment=4) if storage == "disk" else storage
        buffer = ReplayBuffer(10, selection, kept, seed=1)
        if is_filled:
            buffer.remember("first", samples, labels=[one["label"] for one in samples], losses=np.linspace(0, 1, 30))
        elif storage == "references":
            buffer.remember("first", samples, [])
        return buffer

    return make
