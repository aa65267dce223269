"""A Trainer's own loader is judged by what it does: read and carried over, or refused with a way out that works."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, WeightedRandomSampler
from transformers import Trainer, default_data_collator

from mixer import MixingMixin, Stream
from mixer.utils.errors import InvalidTypeError
from tests.helpers import Tokens, three_streams, weights_of
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused


def _seed_worker(worker_id: int) -> None:
    """As GLiNER has it, which seeds the generators of a worker."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    _MARKER.touch()


_MARKER = Path("never")


def loading(**changes: Any) -> Any:
    """A Trainer that makes its loader as GLiNER's does, but for some options, mixed."""

    class Theirs(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            options = {
                "batch_size": self._train_batch_size,
                "collate_fn": self.data_collator,
                "sampler": self._get_train_sampler(),
                "drop_last": self.args.dataloader_drop_last,
                "worker_init_fn": _seed_worker,
                **{name: value(self) if callable(value) else value for name, value in changes.items()},
            }
            dataset = options.pop("dataset", self.train_dataset)
            options = {name: value for name, value in options.items() if value is not None}
            return self.accelerator.prepare(DataLoader(dataset, **options))

    return Theirs


def mixed(theirs: Any) -> Any:
    return type("Mixed", (MixingMixin, theirs), {})


def sampling(sampler: Any) -> Any:
    """A Trainer with a sampler of its own."""
    return type("Theirs", (Trainer,), {"_get_train_sampler": lambda self, dataset: sampler(dataset)})


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights after a run of the mixture without such a loader."""
    return weights_of(train(tmp_path_factory.mktemp("stock")).model)


class TestCarriedOver:
    def test_a_loader_of_the_given_set_with_options_of_workers(
        self, tmp_path: Path, stock: torch.Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{__name__}._MARKER", tmp_path / "ran")
        trainer = train(tmp_path / "run", kind=mixed(loading(num_workers=1)))
        assert torch.equal(weights_of(trainer.model), stock)
        assert (tmp_path / "ran").exists()
        assert trainer.accelerator._dataloaders == []

    @pytest.mark.parametrize("place", ["above", "below"])
    def test_the_stock_one_with_more_around_it(self, tmp_path: Path, stock: torch.Tensor, place: str) -> None:
        def get_train_dataloader(self: Any) -> Any:
            loader = super(kind if place == "above" else below, self).get_train_dataloader()
            loaders.append(loader)
            return loader

        loaders: list[Any] = []
        own = {"get_train_dataloader": get_train_dataloader}
        below: Any = type("Below", (Trainer,), own if place == "below" else {})
        kind: Any = type("Mine", (MixingMixin, below), own if place == "above" else {})
        assert torch.equal(weights_of(train(tmp_path, kind=kind).model), stock)
        assert len(loaders) == (1 if place == "above" else 3)

    @pytest.mark.parametrize("sampler", [SequentialSampler, None])
    def test_rows_in_order(self, tmp_path: Path, sampler: Any) -> None:
        kind = mixed(sampling(sampler or (lambda _: None)))
        in_order = {name: Stream(name, data, shuffle=False) for name, data in three_streams().items()}
        own, expected = train(tmp_path / "own", kind=kind), train(tmp_path / "in_order", train_dataset=in_order)
        assert torch.equal(weights_of(own.model), weights_of(expected.model))

    def test_columns_that_it_keeps_and_its_collator(self, tmp_path: Path) -> None:
        rows = [{"words": ids.tolist()} for ids in torch.randint(1, 60, (12, 5), generator=torch.Generator())]

        def collate(samples: Any) -> Any:
            ids = torch.tensor([sample["words"] for sample in samples])
            return {"input_ids": ids, "labels": ids}

        data = {"a": datasets.Dataset.from_list(rows), "b": datasets.Dataset.from_list(rows[:5])}
        own = train(tmp_path / "own", kind=mixed(loading(collate_fn=lambda _: collate)), train_dataset=data)
        kept = {"remove_unused_columns": False, "data_collator": collate}
        expected = train(tmp_path / "kept", train_dataset=data, **kept)
        assert torch.equal(weights_of(own.model), weights_of(expected.model))
        assert own.data_collator is not collate  # evaluations have that of the trainer

    def test_lengths_are_not_read_for_it(self, tmp_path: Path) -> None:
        class Unread(Tokens):
            def __getitem__(self, index: int) -> Any:
                assert index == 0, "only the first sample shows what the rows are"
                return super().__getitem__(index)

        grouped = {"train_sampling_strategy": "group_by_length", "length_column_name": "none"}
        kind = mixed(sampling(RandomSampler))
        assert make(tmp_path, kind=kind, train_dataset={"a": Unread(40, 1)}, **grouped).streams[0].shuffle


class _Batches(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        yield from ([place, place] for place in range(3))


def _refused_loaders() -> dict[str, Any]:
    whole = {"sampler": None, "drop_last": None}
    return {
        "batch sampler": loading(
            **whole, batch_size=None, batch_sampler=lambda own: _Batches(range(len(own.train_dataset)), 2, False)
        ),
        "rows that are batches": type(
            "Theirs", (Trainer,), {"get_train_dataloader": lambda self: DataLoader(self.train_dataset, batch_size=None)}
        ),
        "another set": loading(dataset=lambda own: Subset(own.train_dataset, range(5)), sampler=None),
        "another batch size": loading(batch_size=3),
        "rows left out": loading(drop_last=True),
        "not a loader": type("Theirs", (Trainer,), {"get_train_dataloader": lambda self: [self.train_dataset[0]]}),
        "weights of rows": sampling(lambda data: WeightedRandomSampler([1.0] * len(data), len(data))),
        "rows repeated": sampling(lambda data: RandomSampler(data, replacement=True)),
        "some rows": sampling(lambda data: RandomSampler(data, num_samples=5)),
    }


@pytest.mark.parametrize("name", _refused_loaders())
def test_other_batches_are_refused_and_the_way_out_works(tmp_path: Path, name: str, stock: torch.Tensor) -> None:
    theirs = _refused_loaders()[name]
    [method] = vars(theirs).keys() & {"get_train_dataloader", "_get_train_sampler"}
    with refused(method, InvalidTypeError, stream="a") as caught:
        make(tmp_path, kind=mixed(theirs))
    assert f"class Plain(Theirs): {method} = Trainer.{method}" in str(caught.value)
    plain = type("Plain", (theirs,), {method: getattr(Trainer, method)})
    if name in ("batch sampler", "weights of rows"):  # one of each method
        assert torch.equal(weights_of(train(tmp_path, kind=mixed(plain)).model), stock)


def test_arguments_make_it_the_same(tmp_path: Path) -> None:
    kind, same = mixed(loading(batch_size=3, drop_last=True)), {"dataloader_drop_last": True}
    assert make(tmp_path, kind=kind, per_device_train_batch_size=3, **same)._rules.own_loader.drop_last


def test_rows_of_a_data_set_class_are_read_by_it(tmp_path: Path) -> None:
    class Made(datasets.Dataset):
        """As GReaT's, whose rows are made of those of the table, one at a time."""

        def _getitem(self, key: int, **_: Any) -> Any:
            ids = torch.full((4,), 1 + int(super()._getitem(key)["word"]))
            return {"input_ids": ids, "labels": ids}

        def __getitems__(self, keys: list[int]) -> Any:
            return [self._getitem(key) for key in keys]

    data = {name: Made.from_dict({"word": list(range(size))}) for name, size in {"a": 9, "b": 5}.items()}
    trainer = train(tmp_path, kind=mixed(loading()), train_dataset=data, data_collator=default_data_collator)
    assert trainer.ledger.to_pandas()["loss"].notna().all()
