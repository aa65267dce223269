"""Plans of runs, made of plain facts."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from mixer import Proportional, Stream, schedules
from mixer.loading.build import MixtureOptions
from mixer.mixture.bad_samples import Skipping
from mixer.run.config import MixingOptions
from mixer.run.plan import Facts, Options, RunPlan, plan_run

CONFIG = ("nonfinite", "max_tokens_per_micro_batch")


def options_of(**changes: Any) -> Options:
    """Makes options; those of `MixingOptions` and of the mixture by their names too."""
    config = MixingOptions(**{name: changes.pop(name) for name in CONFIG if name in changes})
    schedule = changes.pop("schedule", schedules.Constant(8))
    mixture = MixtureOptions(schedule, changes.pop("budget", None), None, (), "exact", 0)
    own = {"policy": Proportional(), "skipping": Skipping(frozenset(), 0.0), "methods": ()}
    nothing = dict.fromkeys(("probe", "target_splits", "evaluated_on_training_rows"))
    return Options(**{**own, **nothing, "mixture": mixture, "config": config, **changes})


def planned(
    streams: Sequence[Stream] | None = None,
    methods: Sequence[Any] = (),
    facts: Any = None,
    device: str = "cpu",
    **changes: Any,
) -> RunPlan:
    """Plans a run of one rank on the CPU, of one stream unless others are given."""
    streams = [Stream("a", [1, 2])] if streams is None else streams
    known = {"most_samples": 8, "tasks": (None,) * len(streams), **(facts or {})}
    args: Any = SimpleNamespace(world_size=1, max_steps=4, num_train_epochs=1, device=torch.device(device))
    return plan_run(streams, options_of(**changes), methods, args, Facts(**known))
