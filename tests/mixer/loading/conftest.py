from collections.abc import Iterator

import pytest


@pytest.fixture
def no_workers_stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test ends its workers; that one died is looked for ten times as often as usual."""
    from torch.utils.data import dataloader

    from tests.mixer.loaders import OTHERS, children

    OTHERS.clear()
    OTHERS.update(children())
    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.5,))
    yield
    assert children() == set()
