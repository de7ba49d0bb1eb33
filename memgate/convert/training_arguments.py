"""What is known of the fields of transformers' ``TrainingArguments``, which three tools share."""

from __future__ import annotations

from memgate.convert.fields import Knowledge, names

#: of ``fsdp_config``, with and without the name before them: what is divided by layer, as we do
_FSDP_HARMLESS = (
    *("auto_wrap_policy", "transformer_layer_cls_to_wrap", "state_dict_type"),
    *("final_state_dict_type", "cpu_ram_efficient_loading", "sync_module_states", "version"),
    *("use_orig_params", "min_num_params", "forward_prefetch_policy"),
)

KNOWN = Knowledge(
    harmless=names(
        """
        fsdp_transformer_layer_cls_to_wrap learning_rate lr_scheduler_type lr_scheduler_kwargs
        warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon num_train_epochs
        max_steps seed data_seed full_determinism dataset dataset_name dataset_config
        dataset_config_name datasets dataset_train_split dataset_test_split dataset_text_field
        train_file validation_file test_file validation_split_percentage streaming max_train_samples
        max_eval_samples dataset_num_proc dataset_kwargs preprocessing_num_workers overwrite_cache
        cache_dir tokenizer_name dataset_streaming shuffle_dataset truncation_mode
        chat_template_path eos_token pad_token config_name use_fast_tokenizer keep_linebreaks
        dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor
        dataloader_persistent_workers label_names dataloader_in_order
        dataloader_multiprocessing_context ignore_data_skip remove_unused_columns length_column_name
        train_sampling_strategy assistant_only_loss completion_only_loss trust_remote_code token
        model_revision low_cpu_mem_usage use_auth_token output_dir overwrite_output_dir
        do_train do_predict run_name eval_steps eval_delay eval_on_start eval_do_concat_batches
        logging_dir logging_strategy logging_steps logging_first_step logging_nan_inf_filter
        log_level log_level_replica log_on_each_node save_strategy save_steps save_total_limit
        save_only_model save_safetensors save_on_each_node load_best_model_at_end
        metric_for_best_model greater_is_better resume_from_checkpoint
        restore_callback_states_from_checkpoint enable_jit_checkpoint report_to project
        trackio_space_id trackio_bucket_id debug push_to_hub hub_model_id hub_strategy hub_token
        hub_private_repo hub_always_push hub_revision disable_tqdm skip_memory_metrics
        include_num_input_tokens_seen include_tokens_per_second include_for_metrics local_rank
        ddp_timeout ddp_backend average_tokens_across_devices prediction_loss_only group_by_length
"""
    )
    | frozenset(
        {
            *(f"fsdp_config.{name}" for name in _FSDP_HARMLESS),
            *(f"fsdp_config.fsdp_{name}" for name in _FSDP_HARMLESS),
        }
    ),
    matters={
        "auto_find_batch_size": "the batch is made smaller where it does not fit",
        "optim_args": "arguments of the optimizer",
        "optim_target_modules": "which layers the optimizer projects",
        "label_smoothing_factor": "the loss is computed in another way",
        "neftune_noise_alpha": "noise as large as the embeddings is made",
        "torch_empty_cache_steps": "cached memory is given back between steps",
        "eval_accumulation_steps": "outputs of an evaluation are moved to the host",
        "batch_eval_metrics": "outputs of an evaluation are kept",
        "bf16_full_eval": "the model is evaluated in bf16",
        "fp16_full_eval": "the model is evaluated in fp16",
        "predict_with_generate": "an evaluation generates",
        "liger_kernel_config": "which layers are replaced by liger-kernel's",
        "use_cpu": "the job does not train on a GPU",
        "use_cache": "keys and values are kept",
        "accelerator_config": "how batches are divided",
        "parallelism_config": "how the model is divided",
        "fsdp_config": "how FSDP divides the model",
        "ddp_find_unused_parameters": "how gradients are sent",
        "ddp_bucket_cap_mb": "the size of the buffers in which gradients are sent",
        "ddp_broadcast_buffers": "how buffers are sent",
        "ddp_static_graph": "how gradients are sent",
        "task_name": "the task, by which a script chooses the model's head",
        "model_init_kwargs": "how the model is made",
        "config_overrides": "how the model is made",
        "loss_type": "the loss is computed in another way",
        "router_aux_loss_coef": "a further loss is computed",
        "padding_free": "samples are laid end to end",
        "pad_to_multiple_of": "batches are longer",
        "packing_strategy": "how samples are laid end to end",
        "eval_packing": "evaluations have samples laid end to end, or have not",
        "use_vllm": "another engine on the same GPU",
    },
)

#: how FSDP divides what, by the first word of ``fsdp``
FSDP = {
    "full_shard": "fsdp",
    "shard_grad_op": "fsdp",
    "hybrid_shard": "hsdp",
    "hybrid_shard_zero2": "hsdp",
    "no_shard": "ddp",
}
