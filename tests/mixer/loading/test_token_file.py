"""Token files, written here byte by byte as their formats say."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import MixingTrainer, Stream, TokenFile
from tests.helpers import weights_of
from tests.mixer.trainer.runs import make
from tests.refusals import refused

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14, 15]]  # the second and third are one document of two sequences


def megatron(folder: Path, code: int = 8, kind: Any = np.uint16) -> Path:
    """Writes `tokens.bin` and `tokens.idx` as Megatron-LM's `IndexedDatasetBuilder` lays them out."""
    lengths = [len(document) for document in DOCUMENTS]
    size = np.dtype(kind).itemsize
    pointers = [size * sum(lengths[:number]) for number in range(len(lengths))]
    ends = [0, 1, 3, 4]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(ends))
    index += struct.pack("<4i", *lengths) + struct.pack("<4q", *pointers) + struct.pack("<4q", *ends)
    (folder / "tokens.idx").write_bytes(index)
    np.concatenate(DOCUMENTS).astype(kind).tofile(folder / "tokens.bin")
    return folder / "tokens.bin"


@pytest.mark.parametrize(("code", "kind"), [(8, np.uint16), (4, np.int32)])
def test_blocks_are_the_file_in_order_and_labels_know_the_documents(code: int, kind: Any, tmp_path: Path) -> None:
    path = megatron(tmp_path, code, kind)
    data = TokenFile(path, 5)
    assert (len(data), data.num_tokens) == (2, 11)
    assert [row["input_ids"].tolist() for row in data] == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    assert [row["labels"].tolist() for row in data] == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    apart = TokenFile(path, 5, separate_documents=True)
    assert [row["labels"].tolist() for row in apart.__getitems__([0, 1])] == [
        [-100, 6, 7, -100, 9],
        [10, 11, 12, -100, 14],
    ]
    data[0]
    assert pickle.loads(pickle.dumps(data))[-1]["input_ids"].tolist() == [10, 11, 12, 13, 14]  # noqa: S301
    assert len(pickle.dumps(data)) < 2_000


def test_a_flat_file_is_trained_on_and_resumed(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 64, 8 * 50).astype(np.uint32)
    tokens.tofile(tmp_path / "train.bin")
    data = TokenFile(tmp_path / "train.bin", 8, "uint32")
    np.testing.assert_array_equal(np.stack([row["input_ids"] for row in data]), tokens.reshape(50, 8))

    def trainer() -> MixingTrainer:
        streams = [Stream("web", data)]
        return make(tmp_path, train_dataset=streams, max_steps=4, save_strategy="steps", save_steps=2)

    whole, resumed = trainer(), trainer()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))


@pytest.mark.parametrize(
    ("damage", "options", "option"),
    [
        (lambda path: None, {"dtype": "uint16"}, "dtype"),
        (lambda path: path.with_suffix(".idx").unlink(), {}, "dtype"),
        (lambda path: path.with_suffix(".idx").unlink(), {"dtype": "float32"}, "dtype"),
        (
            lambda path: path.with_suffix(".idx").unlink(),
            {"dtype": "uint16", "separate_documents": True},
            "separate_documents",
        ),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), {}, "path"),
        (lambda path: None, {"sequence_length": 12}, "path"),
        (lambda path: None, {"sequence_length": 1}, "sequence_length"),
        (lambda path: path.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + bytes(30)), {}, "path"),
        (lambda path: _cut(path.with_suffix(".idx"), 60), {}, "path"),
    ],
)
def test_files_and_arguments_that_do_not_fit_are_refused(damage, options, option, tmp_path) -> None:
    path = megatron(tmp_path)
    damage(path)
    with refused(option):
        TokenFile(path, **{"sequence_length": 4, **options})
    path.unlink()
    with pytest.raises(FileNotFoundError):
        TokenFile(path, sequence_length=4)


def _cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
