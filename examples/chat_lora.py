r"""Tunes adapters (LoRA) on three sources of conversations, in the manner of TRL's sft.py.

Here (`python -m examples.data` writes the conversations and a small base model):

    python examples/chat_lora.py --output_dir runs/examples/chat_lora --use_peft --lora_target_modules all-linear \
        --max_steps 120 --learning_rate 1e-2 --logging_steps 20 --bf16 false --report_to none

For the real thing: `--model_name_or_path Qwen/Qwen3-1.7B-Base --learning_rate 2e-4 --num_train_epochs 1 --bf16 true`,
`--gradient_checkpointing true --max_length 4096 --batch_size 128 --per_device_train_batch_size 8`, your files in
`--chats`, or in `load_chats` data sets of the hub, such as `load_dataset("HuggingFaceH4/ultrachat_200k",
split="train_sft")`. `assistant_only_loss` needs a chat template with `{% generation %}` marks; the base model here has
one. On several GPUs: `torchrun --nproc_per_node 8` in place of `python`; `--batch_size` is that of all together.
"""

from dataclasses import dataclass, field

from datasets import DatasetDict, load_dataset
from transformers import AutoTokenizer
from trl import ModelConfig, SFTConfig, TrlParser, get_peft_config

from mixer import MixingSFTTrainer


@dataclass
class ChatArguments:
    """What to learn from, and how much of each source in a step."""

    chats: list[str] = field(
        default_factory=lambda: [f"{name}=data/examples/chat/{name}.jsonl" for name in ("numpy", "pandas", "torch")],
        metadata={"help": "NAME=PATH of each source: JSON lines with a column messages."},
    )
    validation_share: float = field(default=0.05, metadata={"help": "Share of each source that is held out."})
    mixing: str = field(default="Temperature", metadata={"help": "The policy, one of `mixer policies`."})
    batch_size: int = field(default=16, metadata={"help": "Conversations of a step, over all sources and devices."})


def load_chats(path: str, validation_share: float, seed: int) -> DatasetDict:
    """Reads a source, and holds a share of it out."""
    return load_dataset("json", data_files=path, split="train").train_test_split(validation_share, seed=seed)


def main() -> None:
    """Trains the adapters and saves them."""
    parser = TrlParser((ChatArguments, SFTConfig, ModelConfig))
    chat_args, training_args, model_args = parser.parse_args_and_config()
    training_args.assistant_only_loss = True  # questions are read, and not learned
    model = model_args.model_name_or_path or "data/examples/base"

    paths = dict(entry.split("=", 1) for entry in chat_args.chats)
    chats = {name: load_chats(path, chat_args.validation_share, training_args.seed) for name, path in paths.items()}

    trainer = MixingSFTTrainer(
        model=model,
        args=training_args,
        train_dataset={name: source["train"] for name, source in chats.items()},
        eval_dataset={name: source["test"] for name, source in chats.items()},
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=get_peft_config(model_args),
        mixing=chat_args.mixing,
        batch_size=chat_args.batch_size,
    )
    before = trainer.evaluate()
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    after = trainer.evaluate()
    trainer.save_model()

    if trainer.is_world_process_zero():
        counts = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
        for name in chats:
            losses = before[f"eval_{name}_loss"], after[f"eval_{name}_loss"]
            print("{}: loss {:.3f} -> {:.3f}, {} conversations".format(name, *losses, counts[name]))


if __name__ == "__main__":
    main()
