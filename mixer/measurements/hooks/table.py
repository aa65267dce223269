"""All hooks that measure."""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from mixer.measurements import BY_NAME, hooks as hook_files
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer
from mixer.run.plan import RunPlan
from mixer.utils.errors import wrong_value


def new_hooks(passes: AuxiliaryPasses) -> list[Observer]:
    """Makes the hooks that measure what policy and schedule ask for: those of the files here that have `new_hook`."""
    files = [import_module(f"{hook_files.__name__}.{file.name}") for file in iter_modules(hook_files.__path__)]
    hooks = [file.new_hook(passes) for file in files if hasattr(file, "new_hook")]
    return [hook for hook in hooks if hook is not None]


def check_measured(plan: RunPlan, hooks: Sequence[Observer]) -> None:
    """Refuses requests that nothing measures.

    Args:
        plan: The plan of the run.
        hooks: All hooks of the run, those of the user too.

    Raises:
        ValueError: With the request.
    """
    own = {kind for kind in BY_NAME.values() if "generated completions" not in kind.requires}
    known = own | {kind for hook in hooks for kind in hook.measures}
    if unknown := [need for need in plan.needs if type(need) not in known]:
        hint = (
            "take MixingGRPOTrainer"
            if "generated completions" in unknown[0].requires
            else f"pass a hook with measures = ({type(unknown[0]).__name__},) in methods=[...]"
        )
        text = f"={plan.policy.name} or its batch_size needs {unknown[0]!r}, which nothing measures: {hint}."
        raise wrong_value("mixing", text)
