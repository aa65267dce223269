import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from mixer.checkpoint.checkpoint_files import step_of
from mixer.distributed.signals import RunInterrupted, RunTerminated
from tests.helpers import Tokens
from tests.mixer.checkpoint.test_resume import KIND, build, end_of, go_on
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, run_warm


class At(TrainerCallback):
    def __init__(self, event: str, step: int, ranks: set[int], does: Callable[[Any], Any]):
        def happen(args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step and args.process_index in ranks:
                does(control)

        setattr(self, f"on_{event}", happen)


def _receive(number: signal.Signals) -> Callable[[Any], Any]:
    return lambda control: os.kill(os.getpid(), number)


def _ask(*flags: str) -> Callable[[Any], Any]:
    return lambda control: [setattr(control, flag, True) for flag in flags]


def as_usual() -> None:
    """Has signals do what they do to a process in the foreground."""
    for number, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        signal.signal(number, handler)


def signals(folder: Path) -> dict[str, Any]:
    """A signal that one rank has, or all, at different steps; and what is gone on with after it."""
    as_usual()
    whole = build(folder / "whole", max_steps=6)
    whole.train()
    # The ledger is the main process's: another one sees it as far as it is written.
    own = set() if whole.is_world_process_zero() else {"streams", "losses", "clock", "evaluations"}
    expected = {part: end for part, end in end_of(whole).items() if part not in own}
    results: dict[str, Any] = {}
    for name, ranks, number in (("one", {1}, signal.SIGTERM), ("all", {0, 1}, signal.SIGINT)):
        trainer = build(folder / name, callbacks=[At("step_begin", 3, ranks, _receive(number))], max_steps=6)
        try:
            trainer.train()
        except (RunTerminated, RunInterrupted) as ended:
            results[name] = [type(ended).__name__, str(ended).split(";")[0], trainer.state.global_step]
    end = go_on(build(folder / "one", max_steps=6))
    return {**results, "differs": [part for part in expected if end[part] != expected[part]]}


def controls(folder: Path) -> list[Any]:
    """What a callback asks for on one rank alone, or on one in an evaluation."""

    def trained(name: str, event: str, step: int, rank: int, *flags: str, **options: Any) -> Any:
        trainer = build(folder / name, callbacks=[At(event, step, {rank}, _ask(*flags))], **options)
        trainer.train()
        return trainer.state

    stopped = trained("stopped", "step_end", 3, 1, "should_training_stop").global_step
    asked = trained("asked", "step_end", 3, 1, "should_save", "should_evaluate", max_steps=4)
    late = trained("late", "evaluate", 2, 0, "should_training_stop").global_step
    evaluated = sorted({entry["step"] for entry in asked.log_history if "eval_loss" in entry})
    return [stopped, (folder / "asked" / "checkpoint-3" / "complete.json").is_file(), evaluated, late]


def full(folder: Path) -> list[Any]:
    """A disk that is full for the one rank that writes, at its second checkpoint, and has room again later."""
    whole = Trainer._save_optimizer_and_scheduler

    def save(trainer: Any, output_dir: str) -> None:
        if trainer.args.process_index == 0 and output_dir.endswith("checkpoint-4"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{output_dir}/optimizer.pt")
        whole(trainer, output_dir)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_save_optimizer_and_scheduler", save)
        message = message_of(build(folder / "full", save_steps=2, max_steps=6).train)
    resumed = build(folder / "full", save_steps=2, max_steps=6)
    from_step = step_of(Path(str(resumed.newest_checkpoint())))
    go_on(resumed)
    return [message, from_step, resumed.state.global_step]


def uneven(folder: Path) -> list[str]:
    """Evaluation sets of which one rank has more than the other, and of which all have as many."""
    trainer = build(folder / "uneven")
    several = {"a": Tokens(4, 1, KIND), "b": Tokens(4 + trainer.args.process_index, 1, KIND)}
    return [message_of(lambda: trainer.evaluate(several)), message_of(trainer.evaluate)]


def leaving(kind: str, folder: Path) -> None:

    def leave(control: Any) -> None:
        if kind == "vanish":
            os._exit(1)
        raise SystemExit("no more")

    rank = int(os.environ["RANK"])
    options = {"train_sampling_strategy": "batch_rebalance"} if (kind, rank) == ("make", 0) else {}
    message = message_of(lambda: build(folder, callbacks=[At("step_end", 2, {0}, leave)], **options).train())
    (folder / f"{kind}-{rank}.txt").write_text(message)


def failing(kind: str, folder: Path) -> None:
    """An error in the midst of a step, or a rank that stays away, on rank 1 alone."""

    def fail(control: Any) -> None:
        while kind == "late" and not (folder / "late-0.txt").exists():
            time.sleep(0.1)
        raise ValueError("a broken callback")

    event, step = ("train_end", 4) if kind == "end" else ("step_begin", 3)
    options = {"max_steps": 4} if kind == "end" else {}
    trainer = build(folder, callbacks=[At(event, step, {1}, fail)], ddp_timeout=4, **options)
    message, rank = message_of(trainer.train), trainer.args.process_index
    (folder / f"{kind}-{rank}.txt").write_text(message)
    os._exit(rank)


results = launched(signals, rare=[controls, uneven, full])


def test_a_signal_to_one_rank_or_both_ends_both_at_the_same_step_and_nothing_is_lost(results: Results) -> None:
    for result in (result["signals"] for result in results):
        assert result["one"] == ["RunTerminated", "SIGTERM ended the run after step 5", 5]
        assert result["differs"] == []
        assert result["all"] == ["RunInterrupted", "SIGINT ended the run after step 5", 5]


@pytest.mark.full
def test_what_a_callback_asks_for_on_one_rank_all_ranks_do(results: Results) -> None:
    assert [result["controls"] for result in results] == [[3, True, [0, 2, 3, 4], 2]] * 2


@pytest.mark.full
def test_a_full_disk_ends_both_ranks_with_what_is_safe_and_both_go_on(results: Results) -> None:
    for rank, (told, *ends) in enumerate(result["full"] for result in results):
        assert told.startswith(("", "RemoteError: rank 0 failed: ")[rank] + "WriteError: [Errno 28] ")
        assert "checkpoint-4, what the Trainer keeps, could not be written (No space left on device: " in told
        assert "full/checkpoint-2 with train(resume_from_checkpoint=True)" in told
        assert ends == [2, 6]


@pytest.mark.full
def test_evaluation_sets_of_different_length_are_refused_on_both_ranks(results: Results) -> None:
    for refused, even in (result["uneven"] for result in results):
        assert refused.startswith("InvalidValueError: eval_dataset has different lengths on the ranks, which would")
        assert "4 on rank 0, 5 on rank 1." in refused
        assert even == "no error"


@pytest.mark.parametrize(("kind", "when"), [("backward", "in step 4"), ("end", "after the last step, 4")])
def test_the_error_of_one_rank_is_told_by_the_one_that_waits_for_it(kind: str, when: str, tmp_path: Path) -> None:
    codes, output = run_warm(tmp_path, partial(failing, kind))
    assert codes == [0, 1], output[-4000:]
    told = (tmp_path / f"{kind}-0.txt").read_text()
    assert told == f"RemoteError: rank 1 failed {when}: ValueError: a broken callback"


@pytest.mark.full
def test_a_rank_that_stays_away_is_waited_for_as_long_as_is_said(tmp_path: Path) -> None:
    codes, output = run_warm(tmp_path, partial(failing, "late"))
    assert codes[0] == 0, output[-4000:]
    told = "TimeoutError: Rank 0 waited 4 seconds (ddp_timeout) for others in step 4. No message came from rank 1"
    assert (tmp_path / "late-0.txt").read_text().startswith(told)


LEFT = {
    "exit": "rank 0 failed in step 3: SystemExit: no more",
    "vanish": "rank 0 ended without an error message in step 3: by os._exit",
    "make": "rank 0 failed while the trainer was constructed: InvalidValueError: ",
}


@pytest.mark.full
@pytest.mark.parametrize("kind", LEFT)
def test_the_rank_that_keeps_the_store_is_named_though_it_takes_that_with_it(kind: str, tmp_path: Path) -> None:
    codes, output = run_warm(tmp_path, partial(leaving, kind), by_hand=True)
    assert (tmp_path / f"{kind}-1.txt").read_text().startswith(f"RemoteError: {LEFT[kind]}"), output[-4000:]
    assert codes[1] == 0
