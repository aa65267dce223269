from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from mixer import MixingTrainer
from mixer.trainer import resume
from tests.helpers import On, Tokens, arguments, build_model
from tests.mixer.checkpoint import test_of_others as of_others
from tests.mixer.checkpoint.test_resume import Killed, build, end_of, go_on
from tests.mixer.trainer.runs import make
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

# Both ranks are killed at the same instant: at the n-th barrier (a checkpoint has three), or at the n-th of some event.
KILLS = {
    "steps": (("barrier", 3), ("on_step_begin", 6)),
    "changing": (("barrier", 4), ("on_step_begin", 7)),
    "epochs": (("barrier", 4), ("on_epoch_end", 0)),
}
_IN_THE_LEDGER = {"streams", "losses", "clock", "evaluations"}


class _KilledAt(TrainerCallback):
    def __init__(self, kind: str, number: int):
        self.kind, self.left = kind, number
        for event in ("on_save", "on_step_begin", "on_epoch_end"):
            setattr(self, event, lambda *_, name=event, **__: self.pass_by(name))

    def pass_by(self, kind: str) -> None:
        if kind == self.kind:
            if self.left == 0:
                raise Killed(kind)
            self.left -= 1


def _kill(folder: Path, name: str, kind: str, number: int) -> None:
    killed = _KilledAt(kind, number)
    trainer = build(folder, name, [killed])
    barrier = trainer.accelerator.wait_for_everyone

    def killing_barrier() -> None:
        barrier()
        killed.pass_by("barrier")

    trainer.accelerator.wait_for_everyone = killing_barrier
    with pytest.raises(Killed):
        trainer.train()


def kills(name: str, folder: Path) -> list[str]:
    """Names what differs between killed runs and one that was not."""
    whole, different = build(folder / name, name), []
    whole.train()
    # The ledger is the main process's: another one sees it as far as it is written.
    own = set() if whole.is_world_process_zero() else _IN_THE_LEDGER
    expected = {part: end for part, end in end_of(whole).items() if part not in own}
    for kind, number in KILLS[name]:
        place = folder / f"{name}-{kind}-{number}"
        _kill(place, name, kind, number)
        end = go_on(build(place, name))
        different += [f"{kind} {number}: {part}" for part in expected if end[part] != expected[part]]
    return different


def errors(folder: Path) -> list[str]:
    """What is said where there is nothing to go on from, and after files were torn; and what is chosen then."""
    nothing = message_of(lambda: build(folder / "nothing").train(resume_from_checkpoint=True))
    checkpoint = folder / "steps" / "checkpoint-8"
    if torch.distributed.get_rank() == 0:
        (checkpoint / "rng_state_1.pth").write_bytes(b"torn")
    torn = message_of(lambda: build(folder / "nothing").train(resume_from_checkpoint=str(checkpoint)))
    return [nothing, torn, Path(str(build(folder / "steps").newest_checkpoint())).name]


def on_two(folder: Path) -> str:
    """Saves a run of eight samples on each of two ranks."""
    build_on_any(folder / "two").train()
    return str(folder / "two" / "checkpoint-1")


def build_on_any(folder: Path, **changes: Any) -> MixingTrainer:
    saved = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 8}
    return make(folder, **{**saved, **changes})


def moved(folder: Path) -> dict[str, Any]:
    """A run of the plain Trainer goes on with a MixingTrainer, which begins there again if it is killed."""
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    args = arguments(folder / "run", **of_others.SAVES, **sizes)
    Trainer(build_model("llama"), args, train_dataset=Tokens(20, 1)).train()
    checkpoint = folder / "run" / f"checkpoint-{of_others.AT}"
    begun: list[int] = []

    def stop(state: Any, control: Any, **_: Any) -> None:
        begun.append(state.global_step)
        control.should_training_stop = state.global_step == of_others.AT + 1

    for requested in (str(checkpoint), True):  # the second goes back to where the first began
        trainer = of_others.make(folder / "own", **sizes, save_strategy="no")
        trainer.add_callback(On(step_end=stop))
        trainer.train(resume_from_checkpoint=requested)
    return {
        "begun": begun,
        "position": int(trainer.mixing.planner.positions.sum()),
        "from": trainer.newest_checkpoint(),
    }


results = launched(
    *(partial(kills, "steps"), errors, on_two, moved),
    rare=[partial(kills, "changing"), partial(kills, "epochs")],
)


@pytest.mark.parametrize("name", some(KILLS, ["steps"]))
def test_killed_runs_of_two_ranks_end_as_one_that_was_not(results: Results, name: str) -> None:
    assert [result[name] for result in results] == [[], []]


def test_errors_reach_all_ranks_and_all_choose_alike(results: Results) -> None:
    assert results[0]["errors"] == results[1]["errors"]
    nothing, torn, chosen = results[0]["errors"]
    assert nothing.startswith("InvalidValueError: No valid checkpoint found in output directory")
    assert "rng_state_1.pth is torn: it has 4 bytes instead of" in torn
    assert "The newest checkpoint that can be resumed from is" in torn
    assert chosen == "checkpoint-10"


def test_on_one_rank_the_saved_batch_size_goes_on_and_is_told(results, tmp_path, monkeypatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(resume.logger, "warning", lambda text, *values: told.append(text % values))
    checkpoint = results[0]["on_two"]
    trainer = build_on_any(tmp_path, max_steps=2)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.mixing.batch_size == 16
    assert any("batch_size was 16 when the run was saved" in line for line in told)
    again = build_on_any(tmp_path, max_steps=3)  # as often as the run is resumed in this way
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.mixing.batch_size == 16
    with pytest.raises(ValueError, match=r"batch_size was 16 .* is 4 now"):
        build_on_any(tmp_path, per_device_train_batch_size=4).train(resume_from_checkpoint=checkpoint)


def test_a_run_of_the_plain_trainer_goes_on_at_the_same_place_on_both(results: Results) -> None:
    first, second = (result["moved"] for result in results)
    assert first == second
    assert first["begun"] == [of_others.AT + 1, of_others.AT + 1]
    assert first["position"] >= (of_others.AT + 1) * 4
    assert first["from"].endswith(f"run/checkpoint-{of_others.AT}")
