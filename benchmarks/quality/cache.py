"""What a run of `benchmarks.quality` is, and where its result is kept: by a digest of all that matters.

A new result has a file of its own in a working folder. Those that count stand in `results/` too, a file a scenario
with one line per run, so that the tables of the documentation can be printed from the repository.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.quality.code import code_of
from benchmarks.quality.scenarios import Scenario

PROTOCOL = 3  # to be raised when results of earlier runs do not count any more
KEPT = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """What a run is; another one has another file.

    Args:
        scenario: The scenario.
        name: Name of the competitor.
        class_name: Class of its policy.
        settings: Arguments of the policy, plain data.
        seed: Seed of the weights and of the order of the samples.
    """

    scenario: Scenario
    name: str
    class_name: str
    settings: Mapping[str, Any]
    seed: int

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, but the name, which is only what it is called."""
        own = {name: value for name, value in asdict(self).items() if name != "name"}
        own["scenario"] = self.scenario.content
        own["code"] = code_of(self.class_name)
        plain: dict[str, Any] = json.loads(json.dumps({"protocol": PROTOCOL, **own}))
        return plain

    @property
    def digest(self) -> str:
        """A digest of the key."""
        return hashlib.blake2b(json.dumps(self.key(), sort_keys=True).encode(), digest_size=6).hexdigest()

    def path(self, folder: Path) -> Path:
        """Names the file of the result in the working folder."""
        called = "".join(sign if sign.isalnum() else "-" for sign in self.name)
        return _folder_of(self.scenario, folder) / f"{called}-{self.seed}-{self.digest}.json"

    def result(self, folder: Path) -> Mapping[str, Any] | None:
        """Reads the result of an earlier run, `None` if there is none, from the working folder or the repository."""
        path = self.path(folder)
        if path.is_file():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        return _kept(self.scenario).get((self.name, self.digest))

    def write(self, folder: Path, result: Mapping[str, Any]) -> None:
        """Writes the result to the working folder."""
        own = {"class_name": self.class_name, "settings": self.settings, "seed": self.seed}
        content = {"digest": self.digest, "name": self.name, **own, **result}
        write_whole(self.path(folder), json.dumps(content, indent=2).encode())


def results(scenario: Scenario, folder: Path) -> Iterable[Mapping[str, Any]]:
    """Reads all results of a scenario, those of policies that were changed since too.

    Args:
        scenario: The scenario.
        folder: The working folder.

    Returns:
        What `Run.write` wrote.
    """
    new = [json.loads(path.read_text()) for path in sorted(_folder_of(scenario, folder).glob("*.json"))]
    return (_kept(scenario) | _by_run(new)).values()


def keep(scenario: Scenario, found: Iterable[Mapping[str, Any]]) -> None:
    """Puts results into the repository, in place of those that stood there.

    Args:
        scenario: The scenario.
        found: Its results.
    """
    lines = [json.dumps(own) for own in sorted(found, key=lambda own: (own["name"], own["seed"]))]
    short = [json.dumps(json.loads(line, parse_float=lambda text: float(f"{float(text):.6g}"))) for line in lines]
    write_whole(_file_of(scenario), "".join(f"{line}\n" for line in short).encode())


@cache
def _kept(scenario: Scenario) -> dict[tuple[str, str], Mapping[str, Any]]:
    path = _file_of(scenario)
    return _by_run(map(json.loads, path.read_text().splitlines() if path.is_file() else ()))


def _by_run(found: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Results by name and digest: a run that gives the time only is otherwise the same as one of uniform mixing."""
    return {(result["name"], result["digest"]): result for result in found}


def _file_of(scenario: Scenario) -> Path:
    return KEPT / scenario.size / f"{scenario.name}.jsonl"


def _folder_of(scenario: Scenario, folder: Path) -> Path:
    return folder / scenario.size / scenario.name


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is never there in part.

    Args:
        path: The file; its folder is made.
        content: What it holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
