"""Fine-tunes a model on text classification, as the scripts that people have (after run_glue.py of transformers)."""

from dataclasses import dataclass, field

import datasets
import numpy as np
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    TrainingArguments,
    set_seed,
)

# isort: split
from transformers import Trainer


@dataclass
class OwnArguments:
    model_name_or_path: str = field(metadata={"help": "A folder with a config and a tokenizer."})
    train_file: str = field(metadata={"help": "Lines of JSON with a text, a label and a source."})
    validation_file: str = field(metadata={"help": "The same to evaluate on."})
    test_file: str = field(metadata={"help": "The same to predict."})
    max_seq_length: int = field(default=16, metadata={"help": "Longer texts are cut."})


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    guesses = np.argmax(prediction.predictions, axis=1)
    return {"accuracy": float((guesses == prediction.label_ids).mean())}


def main() -> None:
    own_args, training_args = HfArgumentParser((OwnArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)

    files = {"train": own_args.train_file, "validation": own_args.validation_file, "test": own_args.test_file}
    data = datasets.load_dataset("json", data_files=files)
    num_labels = len(set(data["train"]["label"]))
    config = AutoConfig.from_pretrained(own_args.model_name_or_path, num_labels=num_labels)
    tokenizer = AutoTokenizer.from_pretrained(own_args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_config(config)

    def preprocess(examples):
        return tokenizer(examples["text"], max_length=own_args.max_seq_length, truncation=True)

    with training_args.main_process_first(desc="dataset map pre-processing"):
        data = data.map(preprocess, batched=True)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )

    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        metrics = {**result.metrics, "train_samples": len(data["train"])}
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    if training_args.do_predict:
        predictions = trainer.predict(data["test"].remove_columns("label"), metric_key_prefix="predict").predictions
        np.savetxt(f"{training_args.output_dir}/predict_results.txt", np.argmax(predictions, axis=1), fmt="%d")


if __name__ == "__main__":
    main()
