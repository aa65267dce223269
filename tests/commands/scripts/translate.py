"""Fine-tunes an encoder-decoder model, as the scripts that people have (after run_translation.py of transformers)."""

from dataclasses import dataclass, field

import datasets
import numpy as np
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainingArguments,
    set_seed,
)

# isort: split
from transformers import Seq2SeqTrainer


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "Lines of JSON with a text, its translation and a source."})
    validation_file: str = field(metadata={"help": "The same to evaluate on."})
    max_source_length: int = field(default=16, metadata={"help": "Longer texts are cut."})
    max_target_length: int = field(default=12, metadata={"help": "Longer translations are cut."})


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "A folder with a config and a tokenizer."})


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataArguments, Seq2SeqTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    data = datasets.load_dataset("json", data_files=files)
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_config(config)

    def preprocess(examples):
        inputs = tokenizer(examples["text"], max_length=data_args.max_source_length, truncation=True)
        labels = tokenizer(text_target=examples["target"], max_length=data_args.max_target_length, truncation=True)
        return {**inputs, "labels": labels["input_ids"]}

    data = data.map(preprocess, batched=True, remove_columns=["text", "target", "label"])

    def compute_metrics(prediction):
        ids = prediction.predictions, prediction.label_ids
        guesses, labels = (np.where(part == -100, tokenizer.pad_token_id, part) for part in ids)
        guesses = tokenizer.batch_decode(guesses, skip_special_tokens=True)
        labels = tokenizer.batch_decode(labels, skip_special_tokens=True)
        words = [set(guess.split()) & set(label.split()) for guess, label in zip(guesses, labels, strict=True)]
        return {"found": float(np.mean([len(common) for common in words]))}

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=compute_metrics if training_args.predict_with_generate else None,
    )
    trainer.train()
    trainer.save_model()
    metrics = trainer.evaluate(max_length=data_args.max_target_length, num_beams=2, metric_key_prefix="eval")
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_state()


if __name__ == "__main__":
    main()
