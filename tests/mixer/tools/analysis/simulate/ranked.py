"""Recipes whose plans depend on the number of ranks, if only by rounding."""

from typing import Any

from mixer import Budget, schedules
from mixer.tools.recipe.streams import StreamRecipe
from tests.mixer.tools.analysis.simulate.runs import HERE, stream, three

CASES: dict[str, dict[str, Any]] = {
    "default size": {
        "mixing": {"a": 2, "b": 1, "c": 1},
        "training": {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "dataloader_drop_last": True},
    },
    "growing": {
        "streams": three(b={"max_epochs": 1.2}),
        "budget": Budget(tokens=1200),
        "batch_size": lambda: schedules.Ramp(17, 800, initial=5, learning_rate="sqrt"),
    },
    "rows": {
        "streams": {"a": stream(30, 1), "rows": StreamRecipe(f"{HERE}.Endless")},
        "mixing": {"a": 1, "rows": 2},
        "training": {"max_steps": 8},
    },
}
