"""Standard sequences of pictures, of small ones in folders."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from tasks.sequences import standard
from tasks.sources import labels_of
from tests.refusals import refused


def folder_of(path: Path, num_classes: int, counts: dict[str, int]) -> str:
    """Writes pictures of a colour for each class, so many for each split."""
    for split, count in counts.items():
        for number in range(num_classes):
            place = path / split / f"class-{number:03}"
            place.mkdir(parents=True)
            for shade in range(count):
                Image.new("RGB", (2, 2), (number, shade, 255)).save(place / f"{shade}.png")
    return str(path)


@pytest.mark.parametrize(
    ("name", "num_classes", "evaluated", "num_tasks"),
    [("seq-cifar10", 10, "test", 5), ("seq-cifar100", 100, "test", 10), ("seq-tiny-imagenet", 200, "valid", 10)],
)
def test_a_standard_name_is_its_number_of_tasks_of_new_classes(
    name: str, num_classes: int, evaluated: str, num_tasks: int, tmp_path: Path
) -> None:
    tasks = standard(name, folder_of(tmp_path, num_classes, {"train": 1, evaluated: 1}))
    each = num_classes // num_tasks
    assert tasks.scenario == "class"
    assert [task.classes for task in tasks] == [tuple(range(k * each, (k + 1) * each)) for k in range(num_tasks)]
    assert [len(task.evaluation) for task in tasks] == [each] * num_tasks
    row = tasks[1].evaluation[0]
    assert row["pixel_values"].shape[-1] == {"seq-tiny-imagenet": 64}.get(name, 32)
    expected = torch.tensor([row["labels"], 0, 255]) / 127.5 - 1  # the colour is that of the class
    torch.testing.assert_close(torch.as_tensor(row["pixel_values"])[:, 0, 0], expected)


def test_pictures_of_another_number_of_classes_are_refused(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 2, {"train": 1, "test": 1})
    with refused("path"):
        standard("seq-cifar10", path)


def test_imagenet_r_holds_a_fifth_out_and_has_five_ten_or_twenty_tasks(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 200, {"train": 10})
    for num_tasks in (None, 5, 20):
        tasks = standard("split-imagenet-r", path, num_tasks, size=4, seed=1993)
        assert len(tasks) == (num_tasks or 10)
        assert sum(len(task.train) for task in tasks) == 1_600
        assert sum(len(task.evaluation) for task in tasks) == 400
        assert tasks[0].classes != tuple(range(len(tasks[0].classes or ())))  # in the order of the seed
        assert set(labels_of(tasks[0].evaluation).tolist()) <= set(tasks[0].classes or ())


def test_what_is_no_standard_is_refused() -> None:
    with refused("name"):
        standard("seq-cifar", "nowhere")
    with refused("num_tasks"):
        standard("seq-cifar10", "nowhere", 3)
