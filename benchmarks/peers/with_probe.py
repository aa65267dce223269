"""This toolkit: the exact `GradientProbe`, which reads the backward that is done anyway."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.peak import Peak
from benchmarks.peers.gramian_work import measure, new_subject
from mixer.gradients.probe import GradientProbe


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Measures a step.

    Args:
        options: Of the contest.

    Returns:
        See `benchmarks.peers.gramian_work.measure`.
    """
    peak = Peak()
    torch.set_num_threads(options["threads"])
    subject, plain = new_subject(options), new_subject(options)
    probe = GradientProbe(subject.model, subject.num_streams, "exact", variance=False)
    stream_ids = subject.stream_ids.numpy()

    def step() -> Tensor:
        subject.model.zero_grad()
        probe.start(stream_ids)
        subject.losses().mean().backward()
        return torch.as_tensor(probe.finish().gram)

    return measure(plain, step, options, peak)
