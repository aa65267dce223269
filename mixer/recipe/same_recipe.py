"""Whether two recipes that were written train the same."""

from pathlib import Path

from mixer.recipe.written_recipe import filled_in, is_ignored, is_of_training

# What is kept on the way, which makes a difference where the model is in the end one of those that were kept.
_KEPT = ("save_",)
_BEST = ("training", "load_best_model_at_end")


def read_recipe(path: Path) -> str:
    """Reads a recipe that was written.

    Args:
        path: The file.

    Returns:
        What stands in it.

    Raises:
        ValueError: If it is no recipe, or was cut off.
    """
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        raise ValueError("it was cut off" if text else "it is empty")
    filled_in(text)
    return text


def differences(before: str, now: str) -> list[str]:
    """Compares what two recipes train; what they leave out is the default.

    Args:
        before: A recipe as YAML.
        now: Another one.

    Returns:
        Names of the fields that differ, in order, but for those that say where a run stands, what is told of it or how
        it loads.

    Raises:
        ValueError: If one of them is no recipe.
    """
    first, second = filled_in(before), filled_in(now)
    kept = () if first.get(_BEST) or second.get(_BEST) else _KEPT
    fields = (field for field in first.keys() | second.keys() if first.get(field) != second.get(field))
    return sorted(".".join(field) for field in fields if not (is_ignored(field) or is_of_training(field, kept)))
