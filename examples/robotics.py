"""Trains a policy on the episodes of two robots, in the form of LeRobot's data sets, in a fixed ratio.

    python examples/robotics.py

`Episodes` stands in for `LeRobotDataset`: a row is a frame, with `observation.state`, a chunk of actions by
`delta_timestamps`, `action_is_pad` where the chunk passes the episode's end, `episode_index`, `frame_index` and
`timestamp`. With LeRobot, pass `LeRobotDataset(repo_id, delta_timestamps=...)` for each robot; `dataset.meta.stats` has
the statistics, `dataset.meta.episodes` where an episode ends. `loader` takes the place of the script's `DataLoader`.
"""

import argparse
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from mixer import MixingDataLoader, Stream

FPS, CHUNK = 10, 8
DELTA_TIMESTAMPS = {"action": [step / FPS for step in range(CHUNK)]}
Row = dict[str, Any]


class Episodes(Dataset[Row]):
    """A robot that moves to a goal: the state is position and goal, the action a step towards it.

    Args:
        num_episodes: Number of episodes.
        speed: Share of the way that a step covers, by which robots differ.
        seed: Seed of starts, goals and lengths.
        delta_timestamps: Seconds from a frame to each action of its chunk.
    """

    def __init__(self, num_episodes: int, speed: float, seed: int, delta_timestamps: Mapping[str, list[float]]):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(15, 30, (num_episodes,), generator=generator)
        self._places = [(episode, frame) for episode, size in enumerate(self.lengths.tolist()) for frame in range(size)]
        self._offsets = [round(seconds * FPS) for seconds in delta_timestamps["action"]]
        ends = torch.rand(num_episodes, 2, 2, generator=generator) * 20  # start and goal of each
        left = (1 - speed) ** torch.arange(30)[:, None]
        self._paths = [goal + left * (start - goal) for start, goal in ends]
        self._goals, self._speed = ends[:, 1], speed

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        episode, frame = self._places[index]
        path, goal, last = self._paths[episode], self._goals[episode], int(self.lengths[episode]) - 1
        frames = [min(frame + offset, last) for offset in self._offsets]  # the last frame is repeated
        return {
            "observation.state": torch.cat([path[frame], goal]),
            "action": self._speed * (goal - path[frames]),
            "action_is_pad": torch.tensor([frame + offset > last for offset in self._offsets]),
            "episode_index": torch.tensor(episode),
            "frame_index": torch.tensor(frame),
            "timestamp": torch.tensor(frame / FPS),
        }


def without_last_frames(dataset: Episodes, num_frames: int) -> Subset[Row]:
    """Leaves out the last frames of each episode, as LeRobot's `EpisodeAwareSampler` does."""
    ends = dataset.lengths.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return Subset(
        dataset, [row for start, end in zip(starts, ends, strict=True) for row in range(start, end - num_frames)]
    )


def statistics(dataset: Dataset[Row]) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns mean and deviation of states and actions; with LeRobot they are in `dataset.meta.stats`."""
    rows = [dataset[index] for index in range(len(dataset))]  # type: ignore[arg-type]
    columns = {
        name: torch.stack([row[name] for row in rows]).flatten(0, -2) for name in ("observation.state", "action")
    }
    return {name: (values.mean(dim=0), values.std(dim=0)) for name, values in columns.items()}


def normalized(row: Row, stats: Mapping[str, tuple[Tensor, Tensor]]) -> Row:
    """Scales states and actions by the statistics of the row's own robot."""
    return row | {name: (row[name] - mean) / deviation for name, (mean, deviation) in stats.items()}


def chunk_losses(policy: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the mean error of each row's chunk of actions, without padding: `[num_rows]`."""
    is_real = ~batch["action_is_pad"]
    errors = (policy(batch["observation.state"]).view_as(batch["action"]) - batch["action"]).abs().mean(dim=-1)
    return (errors * is_real).sum(dim=1) / is_real.sum(dim=1)


def main() -> None:
    """Trains, prints the losses of each robot and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/examples/robotics"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--num_workers", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(0)
    robots = {"recorded": Episodes(20, 0.3, 1, DELTA_TIMESTAMPS), "simulated": Episodes(100, 0.1, 2, DELTA_TIMESTAMPS)}
    weights = {"recorded": 1, "simulated": 1}  # half of every batch, though a sixth of the rows
    streams = []
    for name, episodes in robots.items():
        preprocess = partial(normalized, stats=statistics(episodes))
        streams.append(Stream(name, without_last_frames(episodes, 2), weight=weights[name], preprocess=preprocess))
    loader = MixingDataLoader(streams, batch_size=32, num_workers=options.num_workers)
    policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2 * CHUNK))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    history: dict[str, list[float]] = {name: [] for name in robots}
    batches = (batch for _ in itertools.count() for batch in loader)  # one epoch after the other
    for _, batch in zip(range(options.steps), batches, strict=False):
        row_losses = chunk_losses(policy, batch)
        (row_losses.mean() * loader.loss_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses = {name: row_losses[loader.stream_ids == number].mean() for number, name in enumerate(robots)}
        for name, loss in losses.items():
            history[name].append(loss.item())
        loader.observe(losses)
    for (name, own), seen in zip(history.items(), loader.mixing.seen.tolist(), strict=True):
        print(f"{name}: loss {own[0]:.3f} -> {sum(own[-20:]) / 20:.3f}, {seen} rows")
    options.output_dir.mkdir(parents=True, exist_ok=True)
    state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(state, options.output_dir / "checkpoint.pt")


if __name__ == "__main__":
    main()
