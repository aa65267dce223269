"""Launch of ranks: rendezvous, joint start and joint end."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
import yaml
from jsonargparse import ArgumentParser, Namespace
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from mixer.distributed.consistency import difference, refusal, shared_options, written
from mixer.utils.errors import wrong_value

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LEAST_SECONDS, _SECONDS_TO_BE_READ = 1.0, 10.0
Result = TypeVar("Result")
_WORDS = (None, "auto", "must", "never")


class Rendezvous:
    """All ranks of a launch, which can communicate before there is a process group.

    Args:
        store: Store for messages.
        rank: This rank.
        world_size: Number of ranks.
        timeout_seconds: Timeout for messages.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout_seconds: float):
        self._store, self._rank, self.world_size = store, rank, world_size
        self._timeout_seconds = timeout_seconds

    def check_same(self, run: Mapping[str, Any]) -> None:
        """Refuses ranks with different runs; all ranks must call it.

        Args:
            run: This rank's run, as nested mappings.

        Raises:
            ValueError: On all ranks, if runs differ; the message names the differences.
        """
        if self.world_size == 1:
            return
        own = written(run)
        if self._rank == 0:
            self._store.set("run", own)
        different = self._exchange("run", difference(own, self._get("run")))
        if different:
            raise ValueError(refusal(different))

    def run_on_all(self, build: Callable[[], Result]) -> Result:
        """Runs work that may fail on one rank, and fails on all ranks if it does; all ranks must call it.

        Args:
            build: This rank's part.

        Returns:
            Its result.

        Raises:
            ValueError: With other ranks' errors; a failed rank raises its own.
        """
        if self.world_size == 1:
            return build()
        try:
            built = build()
        except Exception as error:
            self._exchange("build", f"{type(error).__name__}: {error}", waits=False)
            raise
        failed = self._exchange("build", "")
        if failed:
            raise ValueError(f"another rank could not start: {failed}")
        return built

    def _exchange(self, topic: str, own: str, waits: bool = True) -> str:
        """Exchanges messages of all ranks.

        Args:
            topic: Topic of the messages.
            own: This rank's message.
            waits: Whether to wait for those of the others.

        Returns:
            Messages by rank; an empty string if there are none.
        """
        self._store.set(f"{topic}/{self._rank}", own)
        if self._rank > 0:
            message = self._get(f"{topic}/all") if waits else ""
            self._store.set(f"{topic}/{self._rank}/read", "")
            return message
        end = time.monotonic() + self._timeout_seconds
        texts = [own, *(self._receive(topic, rank, end) for rank in range(1, self.world_size) if waits)]
        message = "; ".join(f"on rank {rank} {text}" for rank, text in enumerate(texts) if text)
        self._store.set(f"{topic}/all", message)
        if message:  # wait until all have read it: the store may end with this process
            keys = [f"{topic}/{rank}/read" for rank in range(1, self.world_size)]
            with contextlib.suppress(dist.DistError):
                self._store.wait(keys, timedelta(seconds=_SECONDS_TO_BE_READ))
        return message

    def _receive(self, topic: str, rank: int, end: float) -> str:
        try:
            return self._get(f"{topic}/{rank}", max(end - time.monotonic(), _LEAST_SECONDS))
        except dist.DistStoreError:
            return f"there was no answer within {self._timeout_seconds:g} seconds"

    def _get(self, key: str, seconds: float | None = None) -> str:
        # Twice the first rank's timeout, so that its message about the others arrives.
        limit = 2 * self._timeout_seconds + _LEAST_SECONDS if seconds is None else seconds
        self._store.wait([key], timedelta(seconds=limit))
        return str(self._store.get(key).decode())


def meet_ranks(timeout_seconds: float) -> Rendezvous:
    """Waits for all ranks of a launch, by torchrun, `accelerate launch` or environment variables.

    Args:
        timeout_seconds: Timeout.

    Returns:
        Rendezvous; of a single rank if there are no others, or they have met already.

    Raises:
        ValueError: If environment variables are missing, or ranks could not be restarted.
        TimeoutError: If ranks are missing; the message names timeout, number of ranks and address.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    _check_environment(world_size)
    if world_size == 1 or dist.is_initialized():
        return Rendezvous(dist.HashStore(), 0, 1, timeout_seconds)  # type: ignore[attr-defined]
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=timedelta(seconds=timeout_seconds)))
    except (dist.DistError, RuntimeError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TimeoutError(
            f"rank {os.environ['RANK']} waited {timeout_seconds:g} seconds for {world_size} ranks at {place}, but not "
            f"all connected ({str(error).splitlines()[0]}). Check that all were started, with the same WORLD_SIZE, and "
            "reach MASTER_ADDR:MASTER_PORT. training.ddp_timeout sets the seconds."
        ) from None
    return Rendezvous(PrefixStore("mixer", store), rank, world_size, timeout_seconds)


def _check_environment(world_size: int) -> None:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if world_size > 1 and missing:
        text = f"={world_size}, but {', '.join(missing)} missing from the environment: export RANK, WORLD_SIZE, "
        text += "LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process, or launch with torchrun."
        raise wrong_value("WORLD_SIZE", text)
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if world_size > 1 and restarts > 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise wrong_value(
            "max_restarts",
            f"={restarts}: new ranks could try to connect to addresses of the previous ones. Export "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun, on every node, and pass --rdzv_backend c10d or "
            "--standalone; or pass --max_restarts 0.",
        )
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and "WORLD_SIZE" not in os.environ:
        raise wrong_value(
            "SLURM_STEP_NUM_TASKS",
            f"={tasks}: each task of srun would train separately. In each task export RANK=$SLURM_PROCID "
            "WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID, and MASTER_ADDR and MASTER_PORT of the first node; or "
            "let srun start one torchrun per node (--ntasks-per-node=1).",
        )


def build_together(
    parser: ArgumentParser, config: Namespace, resume: str | None, build: Callable[[], Result]
) -> Result:
    """Builds on all ranks of a launch, or fails on all if one fails.

    Args:
        parser: Parser of the command.
        config: Parsed options, including `training`.
        resume: Resume option; nodes may have a checkpoint in their own folders.
        build: Builds this rank's trainer.

    Raises:
        ValueError: If options differ between ranks, or one of them could not build.
        TimeoutError: If ranks are missing.
    """
    joined = meet_ranks(config.training.ddp_timeout)
    if joined.world_size > 1:
        run = yaml.safe_load(parser.dump(config, skip_validation=True))
        run["training"], run["--resume"] = shared_options(run["training"]), resume if resume in _WORDS else "PATH"
        joined.check_same({name: value for name, value in run.items() if name != "recipe"})
    return joined.run_on_all(build)
