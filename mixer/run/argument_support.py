"""Options of `TrainingArguments` that a mixture refuses: texts for the checks and for the documentation."""

# Refused at construction, always or for some values: the value, the reason and the way out. Where a step turns out to
# have several micro-batches, `check_one_pass` refuses `optim` and `ddp_static_graph` there.
REFUSED = {
    "max_steps": "max_steps=0 trains nothing: set -1 to train for num_train_epochs (or a budget), or 1 or more.",
    "optim": "optim: an optimizer that updates weights during the backward pass (LOMO, AdaLomo, layer-wise ones) would "
    "update once per micro-batch. Use one that updates once per step; adafactor also needs little memory. Or keep "
    "steps to one micro-batch: a constant batch_size of at most per_device_train_batch_size times the ranks, without "
    "max_tokens_per_micro_batch.",
    "gradient_accumulation_steps": "batch_size is the total of a step, so gradient_accumulation_steps above 1 "
    "has nothing to multiply. Set only one of the two.",
    "average_tokens_across_devices": "average_tokens_across_devices=False weights losses per rank instead "
    "of per item: with unequal counts on the ranks the gradient would not be that of the mixture. Leave it at True.",
    "enable_jit_checkpoint": "enable_jit_checkpoint=True writes checkpoints in the middle of a step, whose "
    "samples would be lost on resume. Leave it off: at a SIGTERM train() saves after the step "
    "in progress, and a run that is killed at any time resumes exactly from its newest checkpoint (save_steps).",
    "ignore_data_skip": "ignore_data_skip=True would repeat rows of iterable streams that were already trained on. "
    "Leave it off: a stream with a state resumes at once, and one without reads its rows again and skips them. To "
    "start the data from the beginning, load the weights and start a new run.",
    "save_on_each_node": "save_on_each_node=True: FSDP and DeepSpeed write a checkpoint in parts, so no node would "
    "have a complete one on its own disk. Leave it off, with output_dir on a file system that all nodes share.",
    "accelerator_config": "accelerator_config: split_batches and dispatch_batches share one loader among "
    "ranks, but mixing plans the samples of every rank. Leave both unset.",
    "parallelism_config": "parallelism_config: with tensor, context or sequence parallelism several ranks "
    "share one batch, which mixing does not support yet. Leave the size of each at 1.",
    "dataloader_in_order": "dataloader_in_order=False takes whichever samples a worker has ready first, but a plan "
    "fixes the samples of each step. Leave it at True: workers load ahead, so a slow one rarely delays training.",
    "train_sampling_strategy": "train_sampling_strategy='batch_rebalance' is not supported by mixing, which assigns "
    "samples to ranks itself. Use 'group_by_length', which draws each stream in groups of similar length, 'random' "
    "or 'sequential'.",
    **dict.fromkeys(
        ("eval_strategy", "save_strategy", "logging_strategy"),
        "'epoch' with several streams, one of unknown length, would act once: the whole run is one epoch. Set 'steps', "
        "or epoch_size to the samples of an epoch.",
    ),
    "ddp_static_graph": "ddp_static_graph=True needs a first step of one micro-batch: torch fails if gradients "
    "are synchronised after several. Leave it out, or start with a batch_size of at most per_device_train_batch_size "
    "times the ranks, without max_tokens_per_micro_batch.",
    "fsdp_config": "fsdp_config: version 1 of FSDP, which torch has replaced and transformers will drop, is not "
    'supported by mixing. Leave "version" out, or set it to 2 (fsdp_version: 2 in an accelerate configuration).',
    "deepspeed": "deepspeed: its configuration has a scheduler, which counts steps, but with a batch size that "
    "changes, or a budget in samples or tokens, the learning rate follows the data. Remove the scheduler entry and "
    "set lr_scheduler_type.",
}
