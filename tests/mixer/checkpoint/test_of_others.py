"""A run of the plain Trainer goes on with a MixingTrainer, in the middle of its steps."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from mixer import MixingTrainer
from mixer.utils.errors import InvalidValueError
from tests.helpers import InOrder, On, Tokens, arguments, build_model, weights_of
from tests.refusals import refused

STEPS, AT = 12, 6
SAVES = {"save_strategy": "steps", "save_steps": AT, "optim": "adamw_torch", "learning_rate": 1e-2, "max_steps": STEPS}
# An epoch of 20 samples is five steps.
SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "warmup_steps": 3}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that never stopped."""
    folder = tmp_path_factory.mktemp("plain")
    trainer = Trainer(build_model("llama"), arguments(folder, **SAVES, **SIZES), train_dataset=Tokens(20, 1))
    trainer.train()
    return trainer


def make(folder: Path, data: Any = None, model: str = "llama", **changes: Any) -> MixingTrainer:
    data = Tokens(20, 1) if data is None else data
    return MixingTrainer(build_model(model), arguments(folder, **{**SAVES, **SIZES, **changes}), train_dataset=data)


def _goes_on(trainer: MixingTrainer, checkpoint: Any) -> dict[str, Any]:
    """Trains, and gives what it began with."""
    begun: dict[str, Any] = {}

    def look(state: Any, optimizer: Any, lr_scheduler: Any, **_: Any) -> None:
        begun.update(
            step=state.global_step,
            rate=lr_scheduler.get_last_lr(),
            optimizer=copy.deepcopy(optimizer.state_dict()),
            weights=weights_of(trainer.model).clone(),
            position=int(trainer.mixing.planner.positions.sum()),
        )

    trainer.add_callback(On(train_begin=look))
    trainer.train(resume_from_checkpoint=checkpoint)
    return begun


def _rates(trainer: Trainer, since: int = AT) -> list[float]:
    return [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry and entry["step"] > since]


def test_weights_optimizer_rate_and_step_go_on(plain: Trainer, tmp_path: Path, caplog: Any) -> None:
    checkpoint = Path(str(plain.args.output_dir)) / f"checkpoint-{AT}"
    trainer = make(tmp_path)
    with caplog.at_level("WARNING"):
        begun = _goes_on(trainer, str(checkpoint))
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    assert begun["step"] == AT
    assert begun["rate"] == torch.load(checkpoint / "scheduler.pt", weights_only=True)["_last_lr"]
    assert begun["optimizer"]["state"].keys() == saved["state"].keys()
    for number, state in saved["state"].items():
        assert all(torch.equal(begun["optimizer"]["state"][number][name], value) for name, value in state.items())
    model = build_model("llama").from_pretrained(checkpoint)
    assert torch.equal(begun["weights"], weights_of(model))
    # Four samples a step, and all steps as by the Trainer.
    assert begun["position"] == AT * 4
    rows = trainer.ledger.to_pandas()
    assert rows["step"].tolist() == list(range(AT + 1, STEPS + 1))
    assert rows["seen"].tolist() == [4 * step for step in rows["step"]]
    assert _rates(trainer) == _rates(plain)
    assert (trainer.state.global_step, trainer.state.epoch) == (plain.state.global_step, plain.state.epoch)
    assert str(checkpoint) in caplog.text
    assert "Not exact" in caplog.text


def test_it_goes_on_where_it_is_and_again_when_it_is_killed(plain: Trainer, tmp_path: Path) -> None:
    """The newest of a folder is taken; until the run has a checkpoint of its own it goes back there."""
    args = arguments(tmp_path, **{**SAVES, **SIZES, "max_steps": AT})
    Trainer(build_model("llama"), args, train_dataset=Tokens(20, 1)).train()

    def kill(state: Any, **_: Any) -> None:
        if state.global_step == AT + 2:
            raise KeyboardInterrupt

    trainer = make(tmp_path)
    trainer.add_callback(On(step_end=kill))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(resume_from_checkpoint=True)
    again = make(tmp_path)
    assert again.newest_checkpoint() == str(tmp_path / f"checkpoint-{AT}")
    assert _goes_on(again, True)["step"] == AT
    assert make(tmp_path).newest_checkpoint() == str(tmp_path / f"checkpoint-{STEPS}")


def test_several_streams_begin_where_their_mixture_would_be(plain: Trainer, tmp_path: Path) -> None:
    checkpoint = Path(str(plain.args.output_dir)) / f"checkpoint-{AT}"
    trainer = make(tmp_path, {"a": Tokens(15, 1), "b": Tokens(5, 2)})
    assert _goes_on(trainer, str(checkpoint))["position"] == AT * 4
    first = trainer.ledger.to_pandas().query(f"step == {AT + 1}")
    assert (first["seen"] - first["count"]).tolist() == [18, 6]


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"gradient_accumulation_steps": 4}, "batch_size"),
        ({"per_device_train_batch_size": 3}, "batch_size"),
        ({"data": Tokens(30, 1)}, "batch_size"),
        ({"data": InOrder(Tokens(20, 1))}, "resume_from_checkpoint"),
    ],
)
def test_another_amount_is_taken_if_told_to(changes: Any, option: str, plain: Trainer, tmp_path: Path) -> None:
    checkpoint = str(Path(str(plain.args.output_dir)) / f"checkpoint-{AT}")
    with pytest.raises(InvalidValueError) as error:
        make(tmp_path, **changes).train(resume_from_checkpoint=checkpoint)
    assert error.value.option == option
    trainer = make(tmp_path, **changes, allow_inexact=True)
    assert _goes_on(trainer, checkpoint)["step"] == AT
    assert _rates(trainer) == _rates(plain)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "model.safetensors"])
def test_what_is_not_whole_is_refused(name: str, plain: Trainer, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-6"
    checkpoint.mkdir()
    for path in (Path(str(plain.args.output_dir)) / "checkpoint-6").iterdir():
        if path.name != name:
            (checkpoint / path.name).write_bytes(path.read_bytes())
    for requested in (True, str(checkpoint)):
        with refused("resume_from_checkpoint"):
            make(tmp_path).train(resume_from_checkpoint=requested)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["global_step"] == AT
