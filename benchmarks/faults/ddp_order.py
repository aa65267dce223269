"""Whether plain DDP adds up a gradient in the same order in a process's first backward as in later ones.

`python -m benchmarks ddp_order` trains nothing and uses nothing of this project: each rank takes the gradient of
the same weights on the same samples three times. A run that is resumed has a first backward where the run that was
never stopped has a later one, so that it can only be equal to the bit where these are equal.
"""

import argparse
import os
import socket
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_WORLD_SIZES = (2, 3, 4)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a table of ranks, DDP's option and how many numbers of the gradient differ.

    Args:
        argv: Command line, without options; `None` takes the process's own.
    """
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    mp.set_forkserver_preload([__name__, "torch._dynamo"])  # imported once; DDP needs the second
    print("| ranks | find_unused_parameters | first backward and second | second and third |")
    print("|---:|---|---:|---:|")
    for world_size in _WORLD_SIZES:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        mp.start_processes(_be_a_rank, (world_size, port), world_size, start_method="forkserver")  # type: ignore[attr-defined]


def _be_a_rank(rank: int, world_size: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    samples = torch.randn(8, 37, generator=torch.Generator().manual_seed(rank))
    for finds_unused in (True, False):
        torch.manual_seed(0)
        layers = nn.Linear(37, 41), nn.Tanh(), nn.Linear(41, 29), nn.Tanh(), nn.Linear(29, 5)
        model = DistributedDataParallel(nn.Sequential(*layers), find_unused_parameters=finds_unused)
        first, second, third = (_gradient(model, samples) for _ in range(3))
        if rank == 0:
            differ = (int((one != other).sum()) for one, other in ((first, second), (second, third)))
            cells = " | ".join(f"{number:,} of {first.numel():,}" for number in differ)
            print(f"| {world_size} | {finds_unused} | {cells} |", flush=True)
    dist.destroy_process_group()


def _gradient(model: DistributedDataParallel, samples: Tensor) -> Tensor:
    model.zero_grad()
    model(samples).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
