"""What becomes of each option of `TrainingArguments` in the training of a mixture: data for the check and the page."""

# The version whose options these are; the page is made with it, and a test fails for an option that is new.
TRANSFORMERS = "5.23"

# Mean to a mixture what they mean to the Trainer.
AS_BY_THE_TRAINER = frozenset(
    (
        *("output_dir", "do_train", "do_eval", "do_predict", "resume_from_checkpoint", "local_rank", "use_cpu"),
        *("full_determinism", "learning_rate", "lr_scheduler_kwargs", "optim_args", "optim_target_modules"),
        *("weight_decay", "max_grad_norm", "label_smoothing_factor", "adam_beta1", "adam_beta2", "adam_epsilon"),
        *("bf16", "fp16", "bf16_full_eval", "fp16_full_eval", "tf32", "use_cache", "neftune_noise_alpha"),
        *("activation_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing"),
        *("gradient_checkpointing_kwargs", "torch_compile_backend", "torch_compile_mode", "liger_kernel_config"),
        *("torch_empty_cache_steps", "skip_memory_metrics", "logging_strategy", "logging_first_step"),
        *("log_on_each_node", "include_num_input_tokens_seen", "log_level", "log_level_replica"),
        *("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "eval_strategy"),
        *("eval_delay", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        *("batch_eval_metrics", "per_device_eval_batch_size", "prediction_loss_only", "include_for_metrics"),
        *("load_best_model_at_end", "greater_is_better", "save_strategy", "save_only_model"),
        *("restore_callback_states_from_checkpoint", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy"),
        *("hub_always_push", "hub_revision", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_multiprocessing_context", "remove_unused_columns", "label_names", "length_column_name"),
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_backend", "ddp_timeout"),
    )
)

_SHARE = (
    "Steps are steps; a share below 1 is one of the data, and not of the steps, once the batch size changes or "
    "`budget=` is in samples or tokens."
)
_SHARDS = (
    "Trains as with DDP. What needs gradients, weights or a step that the engine does not leave to each rank is "
    "refused beside it (`docs/engines.md`)."
)

# Honoured, but not to the letter.
DIFFERENCES = {
    "per_device_train_batch_size": "The most samples of a micro-batch; a step has as many micro-batches as it "
    "needs. Without `batch_size=`, times ranks and `gradient_accumulation_steps` it is the size of a step too.",
    "gradient_accumulation_steps": "Multiplies the size of a step where there is no `batch_size=`. Micro-batches "
    "are made by themselves, and callbacks see one step a step, without substeps.",
    "num_train_epochs": "An epoch has as many samples as all streams together, or `epoch_size=`; `budget=` goes first.",
    "max_steps": "Steps, of whatever size; it ends a run beside any `budget=`.",
    "lr_scheduler_type": "Goes by the data done once the batch size changes or `budget=` is in samples or tokens; a "
    "batch-size schedule can multiply it.",
    "warmup_steps": "A share is one of the data once the batch size changes or `budget=` is in samples or tokens; a "
    "number counts steps.",
    "torch_compile": "Losses by stream are computed of the logits; a step whose gradients are probed runs uncompiled.",
    "use_liger_kernel": "Its losses leave no logits, so that micro-batches are of one stream each; not where "
    '`liger_kernel_config` switches `"fused_linear_cross_entropy"` off and leaves `"cross_entropy"` off.',
    "auto_find_batch_size": "Halves the most samples of a micro-batch and repeats the step, whose samples stay; "
    "the run does not begin anew.",
    "logging_steps": _SHARE,
    "eval_steps": _SHARE,
    "save_steps": _SHARE,
    "logging_nan_inf_filter": "Leaves out the loss of a whole step, not that of a micro-batch. What becomes of its "
    'step says `nonfinite="warn" | "skip" | "raise"`.',
    "disable_tqdm": "The bar goes by the data clock and shows the streams' coverage; without a terminal there is none.",
    "report_to": "TensorBoard, Weights & Biases, MLflow and Trackio show streams in [groups](watching.md#trackers).",
    "eval_on_start": "Not once more where a run goes on from a checkpoint.",
    "metric_for_best_model": 'Over a dict of evaluation sets `"loss"` is their plain mean, or that by `eval_weights`, '
    '`"worst_loss"` the largest, and `"NAME_loss"` that of one of them; a loss of no set is refused at construction.',
    "save_on_each_node": "Each node, on a disk of its own, keeps whole checkpoints, and a run goes on from the newest "
    "one that is whole on all; the ledger is on the first node alone. Where nodes share the folder it is refused when "
    "training begins; where they do not, leaving it off is.",
    "save_total_limit": "Older checkpoints go only once the new one is whole; one that was cut off does not count.",
    "push_to_hub": "A checkpoint is pushed once it is whole; the ledger, which stands in the output folder, with the "
    "model.",
    "ignore_data_skip": "Has no effect: streams go on at the very sample, without passing over any.",
    "seed": "Draws each stream's order by a key of its own, another order than the Trainer's; random samples and "
    "collators draw by it too, whoever loads them. What it is when `train` begins rules.",
    "data_seed": "In place of `seed` for all that it draws of the data.",
    "accelerator_config": "`even_batches` and `use_seedable_sampler` act on evaluation alone: a mixture's counts on "
    "the ranks are exact in any case, and its orders have keys.",
    "dataloader_drop_last": "Drops the rest of an epoch of the mixture, not of each stream; nothing where a stream "
    "is iterable.",
    "dataloader_num_workers": "Load what coming steps will need if the weights stay; what was not foreseen is "
    "loaded in the training process, where micro-batches are collated too.",
    "dataloader_prefetch_factor": "Counts as many samples as a micro-batch has; of iterable streams, chunks of rows.",
    "train_sampling_strategy": '`"random"` and `"sequential"` are orders within each stream; `"group_by_length"` '
    "puts similar lengths of one step into the same micro-batches.",
    "ddp_static_graph": "`auto_find_batch_size` cannot repeat steps beside it.",
    "fsdp": _SHARDS,
    "fsdp_config": _SHARDS,
    "deepspeed": _SHARDS,
    "debug": '`"underflow_overflow"` counts each micro-batch, and first the trial forwards that find out how the '
    "loss is normalised.",
}

# Refused at construction, in whole or for some values: the value, the reason and the way out.
REFUSED = {
    "max_steps": "max_steps=0 trains nothing: give -1 to train num_train_epochs (or a budget), or 1 or more.",
    "optim": "optim: one that changes weights in the midst of a backward (LOMO, AdaLomo, layer-wise ones) would make "
    "a step for each micro-batch of a step. Take one that steps once a step; adafactor needs little memory too. "
    "Or have steps of one micro-batch: a batch_size that stays, of at most per_device_train_batch_size times the "
    "ranks, without max_tokens_per_micro_batch.",
    "gradient_accumulation_steps": "batch_size is the total of a step, so gradient_accumulation_steps above 1 "
    "beside it has nothing to multiply. Give one of the two.",
    "average_tokens_across_devices": "average_tokens_across_devices=False weighs the ranks' losses by rank instead "
    "of by item: with unequal counts on the ranks the gradient would not be that of the mixture. Leave it at True.",
    "enable_jit_checkpoint": "enable_jit_checkpoint=True writes checkpoints in the middle of a step, whose "
    "samples would be lost when the run goes on. Leave it off: at a SIGTERM train() saves by itself, after the step "
    "in progress, and a run that is killed at any instant goes on exactly from its newest checkpoint (save_steps).",
    "ignore_data_skip": "ignore_data_skip=True would have rows of iterable streams that were trained on come again. "
    "Leave it off: a stream with a state goes on at once, and of one without, rows are read again and passed over. To "
    "begin the data anew, load the weights and start a new run.",
    "save_on_each_node": "save_on_each_node=True: FSDP and DeepSpeed write a checkpoint in parts, and no node would "
    "have the whole on its own disk. Leave it off, with output_dir on a file system that all nodes share.",
    "accelerator_config": "accelerator_config: split_batches and dispatch_batches are ways to share one loader among "
    "ranks; mixing plans every rank's samples itself. Leave both unset.",
    "parallelism_config": "parallelism_config: tensor, context and sequence parallelism have groups of ranks that "
    "share one batch, which mixing does not support yet. Leave the size of each at 1.",
    "dataloader_in_order": "dataloader_in_order=False takes whichever samples a worker has ready first, but a plan "
    "says which ones a step has. Leave it at True: workers are well ahead, and one that is late is seldom waited "
    "for.",
    "train_sampling_strategy": "train_sampling_strategy='batch_rebalance' is not supported by mixing, which deals "
    "samples out to ranks itself; use 'group_by_length', which groups each step's own samples (over ranks too where "
    "the data has a column of lengths), 'random' or 'sequential'.",
    "ddp_static_graph": "ddp_static_graph=True needs a first step of one micro-batch: torch fails where gradients "
    "are synchronised after several. Leave it out, or begin with a batch_size of at most per_device_train_batch_size "
    "times the ranks, without max_tokens_per_micro_batch.",
    "fsdp_config": "fsdp_config: version 1 of FSDP, which torch has replaced and transformers will drop, is not "
    'supported by mixing. Leave "version" out, or set it to 2 (fsdp_version: 2 in a configuration of accelerate).',
    "deepspeed": "deepspeed: its configuration has a scheduler, which goes step by step, but with a batch size that "
    "changes, or a budget in samples or tokens, the learning rate follows the data. Leave the entry scheduler out and "
    "set lr_scheduler_type.",
}
