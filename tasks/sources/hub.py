"""Data sets of the Hugging Face hub, by name."""

from mixer.recipe.data.source import load_hub
from tasks.sources.splits import Splits, with_numbered_labels


def hub(
    name: str,
    config: str | None = None,
    *,
    train_split: str = "train",
    evaluation_split: str = "test",
    label_column: str | None = None,
    revision: str | None = None,
) -> Splits:
    """Loads a data set by its name on the hub, or from a folder that is laid out like one.

    Args:
        name: `"owner/name"`, or the folder.
        config: Which of its configurations.
        train_split: What is trained on; slices such as `"train[:80%]"` too.
        evaluation_split: What is evaluated on.
        label_column: Column of the classes, which becomes `label` and is numbered if they are words.
        revision: Commit or tag, so that the data stay the same.

    Returns:
        Two `datasets.Dataset`.

    Raises:
        ConnectionError: If the hub cannot be reached.
        FileNotFoundError: If there is no such data set or revision.
        ValueError: If there is no such configuration, split or column.
    """
    train, evaluation = load_hub(name, [train_split, evaluation_split], "hub", config, revision)
    return with_numbered_labels(Splits(train, evaluation), label_column)
