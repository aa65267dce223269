import pytest

from mixer.distributed.collectives import RemoteError
from mixer.trainer import failures as other_ranks
from mixer.trainer.failures import explained


class TestExplained:
    @pytest.mark.parametrize(
        "message",
        ["Timed out waiting 5000ms for recv operation to complete", "Application timeout caused pair closure"],
    )
    def test_a_rank_that_does_not_come_in_time_is_told_in_all_words_of_the_backend(
        self, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(other_ranks, "_SECONDS_TO_BE_TOLD", 0.0)
        error = explained(RuntimeError(message), "in step 3", 1, 2, 5.0)
        assert isinstance(error, TimeoutError)
        assert "Rank 1 waited 5 seconds (ddp_timeout) for others in step 3. Nothing was heard of rank 0" in str(error)

    def test_an_error_of_ones_own_speaks_for_itself(self) -> None:
        assert explained(RuntimeError("shapes do not fit"), "in step 3", 1, 2, 5.0) is None
        assert explained(RemoteError("rank 0 failed"), "in step 3", 1, 2, 5.0) is None

    def test_one_rank_waits_for_nobody(self) -> None:
        assert explained(RuntimeError("Timed out"), "in step 3", 0, 1, 5.0) is None
