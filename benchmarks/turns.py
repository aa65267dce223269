"""Several trainers in turns, some steps each, in one process."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from benchmarks.common import rotated


class Turns(TrainerCallback):
    """Runs a trainer some steps at a time, so that several can take turns in one process.

    Args:
        trainer: The trainer; it runs in a thread of its own, and only while it has its turn.
        prepare: Called at the start of that thread.
        synchronise: Waits until the device has done its work.
        clock: Gives seconds; called in that thread.
    """

    def __init__(
        self,
        trainer: Trainer,
        prepare: Callable[[], None],
        synchronise: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._clock = clock
        self._prepare, self._synchronise, self._train = prepare, synchronise, trainer.train
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._left, self._is_last = 0, False
        self._error: Exception | None = None
        self._started = self._seconds = 0.0
        trainer.add_callback(self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, num_steps: int) -> float:
        """Has the trainer do some steps.

        Args:
            num_steps: How many.

        Returns:
            Milliseconds a step, all of the training loop included.

        Raises:
            RuntimeError: If training failed or ended.
        """
        self._left = num_steps
        self._hand_over()
        return self._seconds / num_steps * 1e3

    def end(self) -> None:
        """Has the trainer do one more step and finish."""
        self._left, self._is_last = 2, True
        self._hand_over()
        self._thread.join()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stops the clock after the last step of a turn and waits for the next turn."""
        control.should_training_stop = control.should_training_stop or self._is_last
        self._left -= 1
        if self._left == 0:
            self._synchronise()
            self._seconds = self._clock() - self._started
            self._done.release()
            self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        self._started = self._clock()

    def _hand_over(self) -> None:
        self._go.release()
        self._done.acquire()
        if self._error is not None or (self._left and not self._is_last):
            raise RuntimeError("Training failed or ended before the benchmark did.") from self._error

    def _run(self) -> None:
        self._prepare()
        self._wait()
        try:
            self._train()
        except Exception as error:  # is raised where the turns are given
            self._error = error
        finally:
            self._done.release()


def take_turns(
    trainers: Mapping[str, Trainer],
    lead_steps: Mapping[str, int],
    num_rounds: int,
    block: int,
    num_threads: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Has all trainers do their steps, a block each in every round.

    Args:
        trainers: The trainers by name; they begin in this order.
        lead_steps: Steps of each trainer that come before and do not count.
        num_rounds: Number of rounds.
        block: Steps of a turn.
        num_threads: torch's threads.
        clock: Gives seconds; called in the thread of a trainer.

    Returns:
        Milliseconds a step of each round, by name.
    """
    device = next(iter(trainers.values())).args.device
    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def prepare() -> None:
        torch.set_num_threads(num_threads)
        if device.type == "cuda":  # each thread has a current device of its own
            torch.cuda.set_device(device)

    turns = {name: Turns(trainer, prepare, synchronise, clock) for name, trainer in trainers.items()}
    for name in trainers:
        turns[name].take(lead_steps[name])
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(num_rounds):
        for name in rotated(list(trainers), number):
            times[name].append(turns[name].take(block))
    for name in trainers:
        turns[name].end()
    return times
