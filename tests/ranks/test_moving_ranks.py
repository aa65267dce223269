"""A run of the plain Trainer on two ranks goes on with a MixingTrainer, which begins there again if it is killed."""

from pathlib import Path
from typing import Any

from transformers import Trainer

from tests.helpers import On, Tokens, arguments, build_model
from tests.mixer.checkpoint.test_of_others import AT, SAVES, make
from tests.ranks.warm import Results, launched

SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}


def moved(folder: Path) -> dict[str, Any]:
    plain = Trainer(build_model("llama"), arguments(folder / "run", **SAVES, **SIZES), train_dataset=Tokens(20, 1))
    plain.train()
    checkpoint = folder / "run" / f"checkpoint-{AT}"
    begun: list[int] = []

    def stop(state: Any, control: Any, **_: Any) -> None:
        begun.append(state.global_step)
        control.should_training_stop = state.global_step == AT + 1

    for requested in (str(checkpoint), True):  # the second goes back to where the first began
        trainer = make(folder / "own", **SIZES, save_strategy="no")
        trainer.add_callback(On(step_end=stop))
        trainer.train(resume_from_checkpoint=requested)
    return {
        "begun": begun,
        "position": int(trainer.mixing.planner.positions.sum()),
        "from": trainer.newest_checkpoint(),
    }


results = launched(moved)


def test_both_ranks_go_on_at_the_same_place(results: Results) -> None:
    first, second = (rank["moved"] for rank in results)
    assert first == second
    assert first["begun"] == [AT + 1, AT + 1]
    assert first["position"] >= (AT + 1) * 4
    assert first["from"].endswith(f"run/checkpoint-{AT}")
