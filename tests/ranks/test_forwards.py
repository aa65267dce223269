"""Two ranks make the forwards of their training and no other."""

from pathlib import Path

from tests.helpers import build_model, three_streams
from tests.mixer.trainer.runs import train
from tests.ranks.warm import Results, launched


def num_forwards(folder: Path) -> int:
    forwards, model = [], build_model("llama")
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    train(folder, model, train_dataset=three_streams(), max_steps=2)
    return len(forwards)


results = launched(num_forwards)


def test_two_steps_are_two_forwards_of_each_rank(results: Results) -> None:
    assert [result["num_forwards"] for result in results] == [2, 2]
