"""Errors of other ranks, told by notes that outlive the store they were left in; two ranks in one process' stead."""

from typing import Any

import pytest
from torch.distributed import HashStore

from mixer.distributed.collectives import RemoteError
from mixer.trainer import failures as notes
from mixer.trainer.failures import explain_error, find_missing_ranks, leave_note, read_note, remove_note


class Ranks:
    """Stands for this process as one of two ranks, with a store that may go down."""

    def __init__(self) -> None:
        self.rank = 0
        self.store: Any = HashStore()

    def get(self) -> Any:
        if self.store is None:
            raise ConnectionError
        return self.store


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    found = Ranks()
    for name, value in {"is_initialized": True, "get_world_size": 2}.items():
        monkeypatch.setattr(notes.dist, name, lambda value=value: value)
    monkeypatch.setattr(notes.dist, "get_rank", lambda: found.rank)
    monkeypatch.setattr(notes.distributed_c10d, "_get_default_store", found.get)
    for name, value in {"_POLL_SECONDS": 0.005, "_POLLS_TO_ANSWER": 20, "_heard": []}.items():
        monkeypatch.setattr(notes, name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return found


def test_nobody_waits_for_a_note_that_is_removed_while_it_is_read(ranks: Ranks) -> None:
    leave_note("rank 0 failed")
    store, check = ranks.store, ranks.store.check

    class Removing:
        """A store whose note is removed by another rank between a look and the reading."""

        def check(self, keys: list[str]) -> bool:
            found = check(keys)
            ranks.store = store
            remove_note()
            return found

        def get(self, key: str) -> bytes:
            assert check([key]), "it would wait for the note to come back"
            return store.get(key)

    ranks.store = Removing()
    assert read_note() is None


def test_who_does_not_answer_is_gone(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_missing_ranks() == [1]
    ranks.store.set(notes._here(1), "")
    assert find_missing_ranks() == []
    ranks.rank, ranks.store = 1, None
    assert find_missing_ranks() == [0]
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert find_missing_ranks() == []


@pytest.mark.parametrize("message", ["Timed out waiting 5000ms for recv", "Application timeout caused pair closure"])
def test_a_rank_that_does_not_come_in_time_is_told_and_an_error_of_ones_own_is_not(message, monkeypatch) -> None:
    monkeypatch.setattr(notes, "_SECONDS_TO_BE_TOLD", 0.0)
    error = explain_error(RuntimeError(message), "in step 3", 1, 2, 5.0)
    assert isinstance(error, TimeoutError)
    assert "Rank 1 waited 5 seconds (ddp_timeout) for others in step 3. No message came from rank 0" in str(error)
    assert explain_error(RuntimeError("shapes do not fit"), "in step 3", 1, 2, 5.0) is None
    assert explain_error(RemoteError("rank 0 failed"), "in step 3", 1, 2, 5.0) is None
    assert explain_error(RuntimeError(message), "in step 3", 0, 1, 5.0) is None  # one rank waits for nobody
