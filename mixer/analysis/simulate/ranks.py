"""Training arguments as they are in a launch of several processes."""

from typing import Any, cast

from transformers import TrainingArguments


class _Launched:
    def __init__(self, args: TrainingArguments, num_ranks: int):
        self._args, self.world_size = args, num_ranks

    @property
    def train_batch_size(self) -> int:
        """Samples of a micro-batch: each of several processes has one device."""
        own = self._args
        return own.per_device_train_batch_size if self.world_size > 1 else own.train_batch_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)


def of_ranks(args: TrainingArguments, num_ranks: int) -> TrainingArguments:
    """Gives training arguments as each of so many processes would have them, without starting any.

    Args:
        args: The arguments.
        num_ranks: Number of processes.

    Returns:
        What stands for them.

    Raises:
        ValueError: If there is no process.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be at least 1, got {num_ranks}.")
    return cast(TrainingArguments, _Launched(args, num_ranks))
