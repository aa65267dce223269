"""The benchmarks by name: which question each answers, how long it takes, and how it runs small."""

from dataclasses import dataclass

# In the options of a quick run: a new folder for what it writes, and a folder of made-up data.
FOLDER, DATA = "FOLDER", "DATA"
_QUICK, _ONCE = ("--quick",), ("--seeds", "1")


@dataclass(frozen=True)
class Command:
    """A benchmark.

    Args:
        module: Its module under `benchmarks`, which has a `main(argv)`.
        question: The question that it answers.
        minutes: Measured minutes of a full run on two CPU cores; `None` where nobody measured it.
        quick: Options of a small run; `None` where there is none.
    """

    module: str
    question: str
    minutes: int | None
    quick: tuple[str, ...] | None

    @property
    def room(self) -> str:
        """Folder that it belongs to."""
        return self.module.split(".")[0]


COMMANDS = {
    "overhead": Command("speed.overhead", "What does a step cost over one of the Trainer?", 6, _QUICK),
    "data_path": Command(
        "speed.data_path",
        "How fast is loading, how far behind the weights, and resuming; how much is padding?",
        5,
        _QUICK,
    ),
    "aims": Command("speed.aims", "What do start, tools and loading take, and what are they to take?", None, _QUICK),
    "probe": Command("speed.probe", "What do measurements of the streams' gradients cost?", 10, _QUICK),
    "targets": Command("speed.targets", "What do measurements of an objective's targets cost?", 16, _QUICK),
    "gpu": Command("speed.gpu", "What do a step, measuring, loading and memory cost on GPUs?", None, None),
    "quality": Command(
        "quality.command",
        "Does adaptive mixing pay, where there is something to gain?",
        240,
        (
            *(*_QUICK, *_ONCE, "--parallel", "1", "--policy", "Uniform", "MarginalValue", "grid"),
            *("--scenario", "small_target", "--data-dir", DATA, "--folder", FOLDER),
        ),
    ),
    "swarms": Command("swarms.command", "Do fits find the best mixture from few runs?", None, _QUICK),
    "continual": Command(
        "continual.command",
        "Do published results of continual learning reproduce?",
        None,
        (
            *("--protocol", "clinc150", "--method", "er-ring", "--buffer", "6", *_ONCE),
            *("--data-dir", DATA, "--folder", FOLDER),
        ),
    ),
    "replay": Command(
        "continual.replay", "What does replay cost, and what is it good for?", None, (*_QUICK, "--folder", FOLDER)
    ),
    "forgetting": Command(
        "forgetting", "What is left of a chat model after fine-tuning, without its old data?", None, None
    ),
    "faults": Command("faults.command", "What does a fault on one rank lose?", 7, (*_QUICK, "--kinds", "kill-one")),
    "rewards": Command("rewards", "Does mixing prompts by rewards help the worst task of GRPO?", None, _QUICK),
    "peers": Command(
        "peers.command", "How does the same work go with other toolkits?", None, (*_QUICK, "--only", "interleave, map")
    ),
}
