"""TorchJD: its autogram `Engine`, which gives the Gramian and leaves the backward to the user.

Settings: by rows (`batch_dim=0`, which its documentation recommends), where the Gramian of all rows is made and then
that of the streams, which are means of rows; or by streams (`batch_dim=None`) from the streams' losses. The gradient
of the mean loss follows from a backward of the same graph, as in the example of its documentation.
"""

from typing import Any

import torch
from torch import Tensor
from torchjd.autogram import Engine

from benchmarks.peak import Peak
from benchmarks.peers.gramian_work import measure, new_subject


def by_rows(options: dict[str, Any]) -> dict[str, Any]:
    """Measures a step by rows; see `benchmarks.peers.with_probe.training`."""
    return _training(options, batch_dim=0)


def by_streams(options: dict[str, Any]) -> dict[str, Any]:
    """Measures a step by streams; see `benchmarks.peers.with_probe.training`."""
    return _training(options, batch_dim=None)


def _training(options: dict[str, Any], batch_dim: int | None) -> dict[str, Any]:
    peak = Peak()
    torch.set_num_threads(options["threads"])
    subject = new_subject(options)
    plain = new_subject(options)  # the engine's hooks would slow the plain step down
    engine, shares = Engine(subject.model, batch_dim=batch_dim), subject.shares

    def step() -> Tensor:
        subject.model.zero_grad()
        losses = subject.losses()
        asked = losses if batch_dim is not None else shares @ losses
        gramian = engine.compute_gramian(asked)
        losses.mean().backward()
        return shares @ gramian @ shares.T if batch_dim is not None else gramian

    return measure(plain, step, options, peak)
