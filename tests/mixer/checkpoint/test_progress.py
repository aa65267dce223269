import json
import math

from mixer.trainer.save import Progress


def _progress(**changes: object) -> Progress:
    stops = {"epoch_end_is_left": True, "epoch_stops": False, "training_stops": False}
    rates = {"gradient_norm": 0.1, "learning_rate": None, "learning_rate_factor": 2**0.5}
    logged = {"running_losses": [0.1, 0.25], "logged_loss": 3.0, "last_logged_step": 4, "seconds": 12.5}
    counts = {"num_evaluations": 3, "recorder": {"counts": [1, 2]}, "methods": {}, "num_metrics": 0}
    return Progress(**{**stops, **rates, **logged, **counts, **changes})  # type: ignore[arg-type]


def test_what_is_saved_is_read_to_the_bit_and_losses_that_are_not_finite_too() -> None:
    progress = _progress(running_losses=[1 / 3, 1e-300, -0.0])
    assert Progress.from_state(json.loads(json.dumps(progress.state_dict(), allow_nan=False))) == progress
    progress = _progress(running_losses=[math.nan, math.inf, -math.inf], logged_loss=math.nan, gradient_norm=math.inf)
    again = Progress.from_state(json.loads(json.dumps(progress.state_dict(), allow_nan=False)))
    assert [str(loss) for loss in again.running_losses] == ["nan", "inf", "-inf"]
    assert math.isnan(again.logged_loss)
    assert again.gradient_norm == math.inf


def test_each_rank_has_its_own_loss_back_and_other_numbers_of_ranks_the_mean() -> None:
    assert [_progress().running_loss(rank, 2) for rank in range(2)] == [0.1, 0.25]
    assert [_progress(running_losses=[1.0, 2.0]).running_loss(0, world_size) for world_size in (1, 3)] == [1.5, 1.5]
