"""What replay costs, and what it is good for.

`python -m benchmarks replay [PART ...]`. `steps`: a training step with replay over one without. `tasks`: what is
forgotten of an old domain while a new one is trained on. What each measures and why in this way is said in the module
`benchmarks.continual.replay_<part>`.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from transformers.utils import logging

from benchmarks.common import new_parser, write_json
from benchmarks.continual import replay_steps, replay_tasks

_PARTS: dict[str, ModuleType] = {"steps": replay_steps, "tasks": replay_tasks}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the tables and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="what is measured; default: all")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads while steps are timed")
    parser.add_argument("--folder", type=Path, help="a folder on the disk that is measured; default: the system's")
    parser.add_argument("--step-rounds", type=int, default=40, help="turns of training steps")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of tasks, from 1 on")
    parser.add_argument("--parallel", type=int, default=2, help="processes of tasks, of one thread each")
    args = parser.parse_args(argv)
    if args.quick:
        args.step_rounds, args.seeds, args.parallel, args.threads = 2, 1, 1, 1
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(args.threads)
    figures = {}
    for name in args.parts or _PARTS:
        figures[name] = _PARTS[name].measure(args)
        _PARTS[name].show_figures(figures[name])
    write_json(args.json, {"arguments": {**vars(args), "folder": str(args.folder)}, **figures})
