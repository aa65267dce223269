"""How each option of `TrainingArguments` behaves with a mixture, as the documentation says; `REFUSED` has the rest."""

# The version of transformers that these tables describe; a test fails if the installed one has another option.
TRANSFORMERS = "5.23"

# Behave as in the Trainer.
AS_BY_THE_TRAINER = frozenset(
    (
        *("output_dir", "do_train", "do_eval", "do_predict", "resume_from_checkpoint", "local_rank", "use_cpu"),
        *("full_determinism", "learning_rate", "lr_scheduler_kwargs", "optim_args", "optim_target_modules"),
        *("weight_decay", "max_grad_norm", "label_smoothing_factor", "adam_beta1", "adam_beta2", "adam_epsilon"),
        *("bf16", "fp16", "bf16_full_eval", "fp16_full_eval", "tf32", "use_cache", "neftune_noise_alpha"),
        *("activation_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing"),
        *("gradient_checkpointing_kwargs", "torch_compile_backend", "torch_compile_mode", "liger_kernel_config"),
        *("torch_empty_cache_steps", "skip_memory_metrics", "logging_first_step"),
        *("log_on_each_node", "include_num_input_tokens_seen", "log_level", "log_level_replica"),
        *("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("eval_delay", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        *("batch_eval_metrics", "per_device_eval_batch_size", "prediction_loss_only", "include_for_metrics"),
        *("load_best_model_at_end", "greater_is_better", "save_only_model"),
        *("restore_callback_states_from_checkpoint", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy"),
        *("hub_always_push", "hub_revision", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_multiprocessing_context", "remove_unused_columns", "label_names", "length_column_name"),
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_backend", "ddp_timeout"),
    )
)

_SHARE = (
    "A whole number counts steps. A share below 1 is a share of the data, not of the steps, once the batch size "
    "changes or `budget=` is in samples or tokens."
)
# Supported, with a difference from the Trainer.
DIFFERENCES = {
    "per_device_train_batch_size": "The maximum number of samples in a micro-batch; a step has as many micro-batches "
    "as it needs. Without `batch_size=`, this times the ranks and `gradient_accumulation_steps` is also the batch size "
    "of a step.",
    "gradient_accumulation_steps": "Multiplies the batch size of a step if there is no `batch_size=`. Micro-batches "
    "are formed automatically, and callbacks see one step per optimizer step, without substeps.",
    "num_train_epochs": "An epoch has as many samples as all streams together, or `epoch_size=`; if one has no "
    "length, set `max_steps` (or a budget) instead. Then each pass over a single data set is an epoch, as in the "
    "Trainer, and the run of several is one. `budget=` takes precedence.",
    "max_steps": "Counts optimizer steps of any batch size, and ends a run that also has a `budget=`.",
    "lr_scheduler_type": "Follows the data trained on, not the steps, once the batch size changes or `budget=` is in "
    "samples or tokens. A batch-size schedule can scale it.",
    "warmup_steps": "A whole number counts steps. A share below 1 is a share of the data once the batch size changes "
    "or `budget=` is in samples or tokens.",
    "torch_compile": "Per-stream losses are computed from the logits. Steps whose gradients are probed run uncompiled.",
    "use_liger_kernel": "Its fused losses return no logits, so micro-batches contain one stream each, unless "
    '`liger_kernel_config` turns `"fused_linear_cross_entropy"` off and leaves `"cross_entropy"` off.',
    "auto_find_batch_size": "Halves the maximum micro-batch size and repeats the step with the same samples; the run "
    "does not start over.",
    "logging_steps": _SHARE,
    "eval_steps": _SHARE,
    "save_steps": _SHARE,
    "logging_nan_inf_filter": "Filters the loss of a whole step, not of a micro-batch. "
    '`nonfinite="warn" | "skip" | "raise"` decides what happens to the step.',
    "disable_tqdm": "The progress bar follows the data clock and shows coverage per stream. Without a terminal there "
    "is no bar. Log entries are printed as [one line each](watching.md#the-printed-log).",
    "report_to": "The Trainer's trackers get the entries of streams as `train/loss/NAME` and the like "
    "([names](watching.md#trackers)).",
    "eval_on_start": "Not repeated when a run resumes from a checkpoint.",
    "metric_for_best_model": 'With a dict of evaluation sets, `"loss"` is their mean (weighted by `eval_weights` if '
    'set), `"worst_loss"` the largest and `"NAME_loss"` the loss of one set; `"mean_METRIC"` is the mean of a metric, '
    '`"objective"` the declared objective. A loss of no set is refused at construction, a name that '
    "`compute_metrics` does not return at the first evaluation; a value that is not finite chooses no model.",
    "save_on_each_node": "For nodes with separate disks: each node keeps complete checkpoints, and a run resumes from "
    "the newest one that is complete on all nodes. Only the first node has the ledger. When training begins, True is "
    "refused if the nodes share the folder, and False if they do not.",
    "save_total_limit": "Older checkpoints are deleted only after the new one is complete. Incomplete checkpoints do "
    "not count.",
    "push_to_hub": "A checkpoint is pushed once it is complete. The ledger is in the output folder and is pushed with "
    "the model.",
    "ignore_data_skip": "No effect: streams resume at the exact sample without skipping through the data.",
    "seed": "Each stream is shuffled with a key of its own, so the order differs from the Trainer's. Random samples "
    "and collators use the seed as well, in whichever process they run. The value at the start of `train` applies.",
    "data_seed": "Replaces `seed` for all randomness of the data.",
    "accelerator_config": "`even_batches` and `use_seedable_sampler` affect evaluation only: in training the number of "
    "samples per rank is exact in any case, and shuffling is seeded per stream.",
    "dataloader_drop_last": "Drops the incomplete batch at the end of an epoch of the mixture, not of each stream. No "
    "effect if a stream is iterable.",
    "dataloader_num_workers": "Workers load the samples of coming steps under the assumption that the weights stay the "
    "same. Other samples are loaded in the training process, which also collates micro-batches.",
    "dataloader_prefetch_factor": "Counts portions as large as a micro-batch; for iterable streams, chunks of rows.",
    "train_sampling_strategy": '`"random"` and `"sequential"` order the samples within each stream. '
    '`"group_by_length"` '
    "draws each stream in groups of similar length (`docs/data_loading.md`).",
    "ddp_static_graph": "`auto_find_batch_size` cannot repeat steps with it.",
    "fsdp": "Trains as with DDP. Features that need gradients, weights or an optimizer step that the engine does not "
    "leave to each rank are refused (`docs/engines.md`).",
    "fsdp_config": "As `fsdp`.",
    "deepspeed": "As `fsdp`.",
    "debug": '`"underflow_overflow"` counts each micro-batch.',
}
