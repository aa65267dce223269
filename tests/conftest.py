import gc
import os

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("deterministic")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes what the imports and the collection made out of the collector's sight.

    Every run of the Trainer collects garbage, and would look through millions of objects that stay until the end, for
    half the time of a short run. What the tests make is collected as ever.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Gives them back, for the interpreter to end as it would."""
    gc.unfreeze()
