"""Trains a classifier whose batch grows by one every few steps, as people do with the published extension."""

import functools

import datasets
import torch
from transformers import HfArgumentParser, TrainerCallback, TrainingArguments, default_data_collator

# isort: split
from mixer import AdaptiveBatchSizeTrainer


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.rows = torch.nn.Linear(1, 2), []

    def forward(self, number, labels):
        if self.training:
            self.rows.append(len(number))
        logits = self.layer(number[:, None])
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def scheduler(step, batch_size, interval=5, increment=1):
    return batch_size + increment if step > 0 and step % interval == 0 else batch_size


lines = []  # of what is logged


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            seen = (state.num_seen_train_examples, state.num_train_examples)
            shown = (logs["train_coverage"], state.train_coverage, logs["epoch"], *seen)
            lines.append([state.global_step, *shown])


(training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
rows = {"number": [0.1 * number for number in range(10)], "label": [0, 1] * 5, "index": list(range(10))}
trainer = AdaptiveBatchSizeTrainer(
    batch_size_scheduler=functools.partial(scheduler, interval=5, increment=1),
    callbacks=[Show()],
    model=Classifier(),
    args=training_args,
    train_dataset=datasets.Dataset.from_dict(rows),
    data_collator=default_data_collator,
)
trainer.train()
shown = {"lines": lines, "rows": trainer.model.rows}
