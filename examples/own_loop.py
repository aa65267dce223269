"""Trains a language model of bytes in a plain PyTorch loop, of which only the batch sampler is this project's.

`python -m examples.data` writes the texts. Then:

    python examples/own_loop.py
    python examples/own_loop.py --steps 400    # goes on from the checkpoint, with the very next batch
    python examples/own_loop.py --mixing LossChange --output_dir runs/examples/losses    # a policy that reads losses
    torchrun --nproc_per_node 2 examples/own_loop.py --output_dir runs/examples/two_ranks

The batch size is that of all ranks together: two ranks train on the same batches as one.
"""

import argparse
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from mixer import AdaptiveBatchSampler

BLOCK = 64  # bytes of a row


class ByteModel(nn.Module):
    """Predicts each byte from those before it."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.embed, self.read = nn.Embedding(256, width), nn.GRU(width, width, batch_first=True)
        self.predict = nn.Linear(width, 256)

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the mean loss of each row."""
        logits = self.predict(self.read(self.embed(rows[:, :-1]))[0])
        return nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").mean(dim=1)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    texts = ["english=data/examples/text/english/train.txt", "python=data/examples/text/python/train.jsonl"]
    parser.add_argument("--texts", nargs="+", default=texts, help="NAME=FILE of each source.")
    parser.add_argument("--mixing", help="A policy; without, three rows of the first source for one of the others.")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/examples/own_loop"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save_steps", type=int, default=50)
    parser.add_argument("--batch_size", type=int, default=32)
    return parser.parse_args()


def rows_of(path: str) -> Tensor:
    """Cuts the bytes of a file into rows: int64 `[num_rows, BLOCK]`."""
    content = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    return content[: len(content) // BLOCK * BLOCK].view(-1, BLOCK).long()


def losses_by_stream(row_losses: Tensor, sampler: AdaptiveBatchSampler) -> Tensor:
    """Returns the mean loss of each stream in the batch, over all ranks; NaN without a row."""
    sums = torch.zeros(2, len(sampler.streams))
    if not sampler.is_padding:  # a row that only keeps a rank busy
        ids = torch.from_numpy(sampler.stream_ids)
        sums[0].index_add_(0, ids, row_losses.detach())
        sums[1].index_add_(0, ids, torch.ones(len(ids)))
    if dist.is_initialized():
        dist.all_reduce(sums)
    return sums[0] / sums[1]


def save(path: Path, **parts: object) -> None:
    """Writes a checkpoint that replaces the one before only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(parts, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    """Trains, prints the losses and saves."""
    options = parse_arguments()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = {name: rows_of(path) for name, path in (entry.split("=", 1) for entry in options.texts)}
    weights = dict.fromkeys(data, 1.0) | {next(iter(data)): 3.0}
    sampler = AdaptiveBatchSampler(data, options.batch_size, mixing=options.mixing or weights)
    loader = DataLoader(sampler.dataset, batch_sampler=sampler)
    model: nn.Module = ByteModel()
    optimizer, checkpoint = torch.optim.AdamW(model.parameters(), lr=3e-3), options.output_dir / "checkpoint.pt"
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        start = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.load_state_dict(saved["sampler"])
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    batches = (rows for _ in itertools.count() for rows in loader)  # one epoch after the other
    for step, rows in zip(range(start + 1, options.steps + 1), batches, strict=False):
        row_losses = trained(rows)
        (row_losses.mean() * sampler.loss_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses = losses_by_stream(row_losses, sampler)
        sampler.observe(losses)
        if sampler.rank == 0 and step % options.save_steps == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(checkpoint, step=step, sampler=sampler.state_dict(), **parts)
            shares = zip(data, losses.tolist(), sampler.mixing.seen.tolist(), strict=True)
            print(step, *(f"{name}: loss {loss:.3f}, {seen} rows" for name, loss, seen in shares), sep="  ")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
