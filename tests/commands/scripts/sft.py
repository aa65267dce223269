"""Fine-tunes a model on conversations, as users write it with TRL."""

import sys

from datasets import concatenate_datasets
from trl import SFTConfig

# isort: split
from trl import SFTTrainer

from tests.mixer.trainer.trl.cases import chats, model_of, tokenizer

folder = sys.argv[2]
math, code = chats(24, 1), chats(16, 2)
options = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "logging_steps": 1, "learning_rate": 1e-2}
options |= {"assistant_only_loss": True, "save_strategy": "epoch", "eval_strategy": "epoch"}
trainer = SFTTrainer(
    model=model_of(),
    args=SFTConfig(folder, report_to="none", use_cpu=True, bf16=False, **options),
    train_dataset=concatenate_datasets([math, code]),
    eval_dataset={"math": chats(6, 3), "code": chats(6, 4)},
    processing_class=tokenizer(),
)
trainer.train()
trainer.save_model(folder + "/final")
trainer.save_state()
