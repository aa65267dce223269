"""Trains a classifier whose batch grows by one every few steps, as people do with the published extension."""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import torch
from transformers import (
    AutoTokenizer,
    BertForSequenceClassification,
    HfArgumentParser,
    TrainerCallback,
    TrainingArguments,
)

# isort: split
from mixer import AdaptiveBatchSizeTrainer


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "A folder with a model and a tokenizer."})


def scheduler(step, batch_size, interval=5, increment=1):
    return batch_size + increment if step > 0 and step % interval == 0 else batch_size


class Show(TrainerCallback):
    """Keeps what is logged, and how many rows each forward of this rank has."""

    def __init__(self):
        self.lines, self.rows = [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            seen = (state.num_seen_train_examples, state.num_train_examples)
            shown = (logs["train_coverage"], state.train_coverage, logs["epoch"], *seen)
            self.lines.append([state.global_step, *shown])

    def watch(self, model):
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model, args, kwargs):
        if model.training:
            self.rows.append(len(kwargs["input_ids"]))


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = BertForSequenceClassification.from_pretrained(model_args.model_name_or_path, num_labels=2)
    indices = set()

    def collate(batch):
        encodings = tokenizer([item["text"] for item in batch], padding=True, return_tensors="pt")
        encodings["labels"] = torch.tensor([item["label"] for item in batch])
        encodings["indices"] = torch.tensor([item["index"] for item in batch])
        indices.update(item["index"] for item in batch)
        return encodings

    texts = ["red one two", "blue three", "green", "one", "two four", "red blue", "three", "four", "one two", "blue"]
    rows = {"text": texts, "label": [number % 2 for number in range(10)], "index": list(range(10))}
    show = Show()
    show.watch(model)
    trainer = AdaptiveBatchSizeTrainer(
        batch_size_scheduler=functools.partial(scheduler, interval=5, increment=1),
        callbacks=[show],
        model=model,
        args=training_args,
        train_dataset=datasets.Dataset.from_dict(rows),
        data_collator=collate,
    )
    trainer.train()
    found = {"lines": show.lines, "rows": show.rows, "indices": sorted(indices)}
    Path(training_args.output_dir, f"shown-{training_args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
