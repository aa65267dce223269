"""The training that `benchmarks.scale.long_runs` watches.

`python -m benchmarks.scale.long_trained FOLDER STEPS WORKERS`, by torchrun. Two streams and a replay buffer
under an adaptive policy with a probe, log entries, evaluations and checkpoints of which few are kept. Each rank writes
`rank-N.json`: what it held over the run, and how long a step took.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments, default_data_collator

from benchmarks.scale.process_state import ProcessState, as_rows, begin, growth, sample
from benchmarks.speed.competitors import Rows
from mixer import MixingTrainer, PiKE
from replay import ReplayBuffer, ReplayRatio

_NUM_SAMPLES, _NUM_CHECKPOINTS = 80, 20
_VOCABULARY, _LENGTH = 512, 64
_SILENT: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": 0}


class Watching(TrainerCallback):
    """Samples what the process holds, and takes the time of blocks of steps.

    Args:
        interval_steps: How often.
    """

    def __init__(self, interval_steps: int):
        self._interval_steps = interval_steps
        self.states: list[ProcessState] = []
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins."""
        begin()
        self._last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Samples, if it is time to; what that takes counts in no step."""
        if state.global_step % self._interval_steps == 0:
            self.seconds.append((time.perf_counter() - self._last) / self._interval_steps)
            self.states.append(sample(state.global_step))
            self._last = time.perf_counter()


def _rows(num_samples: int, seed: int) -> Rows:
    """Random tokens of a part of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return Rows(torch.randint(1, _VOCABULARY >> seed, (num_samples, _LENGTH), generator=generator))


def build(folder: Path, num_steps: int, num_workers: int) -> MixingTrainer:
    """Builds the trainer.

    Args:
        folder: The output folder.
        num_steps: Number of steps.
        num_workers: Worker processes that load samples.

    Returns:
        The trainer.
    """
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=_VOCABULARY, **sizes, num_key_value_heads=2, pad_token_id=0)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=num_steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=max(10, num_steps // 200),  # the Trainer keeps all entries, and copies them for each checkpoint
        eval_strategy="steps",
        eval_steps=max(1, num_steps // 10),
        save_strategy="steps",
        save_steps=max(1, num_steps // _NUM_CHECKPOINTS),
        save_total_limit=2,
        dataloader_num_workers=num_workers,
        ddp_find_unused_parameters=False,
        **_SILENT,
    )
    torch.manual_seed(0)
    # A pass over the data ends, and workers are forked anew, within the warm-up: after 19 % of a run on two ranks.
    data = {name: _rows(num_steps << number, number) for number, name in enumerate("ab")}
    return MixingTrainer(
        LlamaForCausalLM(config),
        args,
        train_dataset={**data, "memory": ReplayBuffer(500)},
        eval_dataset={name: _rows(8, number) for number, name in enumerate("ab")},
        mixing=ReplayRatio(0.2, PiKE(interval_steps=20)),
        data_collator=default_data_collator,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Trains and writes what was seen.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    folder, num_steps, num_workers = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)
    trainer = build(Path(folder), int(num_steps), int(num_workers))
    watching = Watching(max(1, int(num_steps) // _NUM_SAMPLES))
    trainer.add_callback(watching)
    trainer.train()
    states = as_rows(watching.states)
    found = {
        **growth(states, watching.seconds),
        "states": states,
        "block_seconds": watching.seconds,
    }
    (Path(folder) / f"rank-{trainer.args.process_index}.json").write_text(json.dumps(found))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
