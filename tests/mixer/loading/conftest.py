from collections.abc import Callable, Iterator

import psutil
import pytest


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """Gives the workers a test began, and sees that it ends them; their death is looked for ten times as often."""
    from torch.utils.data import dataloader

    def living() -> list[int]:
        found = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        return [child.pid for child in found if "resource_tracker" not in " ".join(child.cmdline())]

    others = set(living())

    def own() -> list[int]:
        return sorted(set(living()) - others)

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.5,))
    yield own
    assert own() == []


@pytest.fixture
def in_process() -> Iterator[None]:
    """Workers whose jobs are loaded in this process, one after the other."""
    from tests.mixer.loaders import InProcess

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixer.loading.workers.DataLoader", InProcess)
        patch.setattr("mixer.loading.workers.get_worker_info", lambda: InProcess.worker)
        yield
