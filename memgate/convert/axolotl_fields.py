"""What is known of the fields of axolotl that a spec has no place for."""

from __future__ import annotations

from memgate.convert import training_arguments
from memgate.convert.fields import Knowledge, names

_KERNEL = "axolotl's own kernels for adapters, which keep less"

KNOWN = (
    Knowledge(
        harmless=names(
            """
        test_datasets pretraining_dataset dataset_prepared_path val_set_size push_dataset_to_hub
        dataset_processes dataset_keep_in_memory chat_template chat_template_jinja
        chat_template_kwargs special_tokens tokens eot_tokens tokenizer_type tokenizer_config
        tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common tokenizer_save_jinja_files
        processor_type processor_kwargs default_system_message model_type base_model_config
        type_of_model is_llama_derived_model is_mistral_derived_model is_falcon_derived_model
        is_qwen_derived_model revision_of_model base_model_ignore_patterns hf_use_auth_token strict
        num_epochs lr_scheduler cosine_min_lr_ratio cosine_constant_lr_ratio lr_quadratic_warmup
        lr_div_factor lr_groups loraplus_lr_ratio loraplus_lr_embedding adam_eps embedding_lr
        embedding_lr_scale adam_beta3 adam_epsilon2 eta_min train_on_inputs train_on_eos
        train_on_eot evals_per_epoch eval_strategy evaluation_strategy saves_per_epoch
        save_first_step early_stopping_patience loss_watchdog_threshold loss_watchdog_patience
        auto_resume_from_checkpoints shuffle_merged_datasets shuffle_before_merging_datasets
        skip_prepare_dataset dataset_exact_deduplication dataset_shard_num dataset_shard_idx roles
        streaming_multipack_buffer_size pretrain_multipack_buffer_size sample_packing_eff_est
        sample_packing_group_size sample_packing_bin_size sample_packing_sequentially
        sample_packing_mp_start_method total_num_tokens sample_packing_seq_len_multiplier
        curriculum_sampling min_sample_len preprocess_shards excess_length_strategy batch_size
        full_finetune wandb_project wandb_entity wandb_watch wandb_name wandb_log_model wandb_run_id
        wandb_mode use_wandb project_name use_tensorboard trackio_project_name trackio_run_name
        use_trackio use_mlflow use_comet mlflow_tracking_uri mlflow_experiment_name mlflow_run_name
        comet_api_key hf_mlflow_log_artifacts comet_workspace comet_project_name comet_mode
        use_otel_metrics otel_metrics_host otel_metrics_port profiler_steps profiler_steps_start
        use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode
        swanlab_log_completions swanlab_workspace swanlab_completion_log_interval
        swanlab_completion_max_buffer swanlab_log_model lora_model_dir lora_fan_in_fan_out
        lora_on_cpu peft_init_lora_weights torchdistx_path gptq_groupsize gptq_model_v1
        gptq_disable_exllama max_packed_sequence_len gc_steps ray_run_name merge_lora secrets gpu
        provider node_count volumes branch dockerfile_commands memory timeout memory_preprocess
        timeout_preprocess gpu_count world_size include_tkps save_sliding_window device ddp
        generate_samples
"""
        ),
        matters={
            "plugins": "a plugin that changes how the model is run",
            "overrides_of_model_config": "how the model is made",
            "model_config": "how the model is made",
            "overrides_of_model_kwargs": "how the model is made",
            "cls_model_config": "how the model is made",
            "rope_scaling": "how the model is made",
            "num_labels": "the size of the model's head",
            "resize_token_embeddings_to_32x": "embeddings are made larger",
            "shrink_embeddings": "embeddings are made smaller",
            "reinit_weights": "the model is made anew",
            "unfrozen_parameters": "some weights are frozen",
            "freeze_mm_modules": "the part that looks at images is frozen",
            "lora_target_parameters": "adapters of single parameters",
            "lora_qkv_kernel": _KERNEL,
            "lora_mlp_kernel": _KERNEL,
            "lora_o_kernel": _KERNEL,
            "lora_embedding_kernel": _KERNEL,
            "peft": "more settings of the adapter",
            "peft_layer_replication": "layers are used again",
            "peft_trainable_token_indices": "rows of the embeddings are trained",
            "peft_autocast_adapter_dtype": "the type of the adapter",
            "relora": "adapters are merged while training",
            "relora_cpu_offload": "adapters are merged on the host",
            "relora_prune_ratio": "what is kept of the optimizer",
            "lisa_n_layers": "a few layers are trained at a time",
            "quantize_moe_experts": "experts are quantised while they are loaded",
            "model_quantization_config": "another quantisation",
            "model_quantization_config_kwargs": "another quantisation",
            "gptq": "another quantisation",
            "qat": "weights are quantised in each step",
            "quantization": "weights are quantised",
            "fp8": "arithmetic in 8 bits",
            "bnb_config_kwargs": "more settings of the quantisation",
            "llmcompressor": "weights are pruned",
            "use_onebitllms": "weights of one bit",
            "embeddings_skip_upcast": "embeddings stay narrow",
            "fp32_norms": "norms in fp32",
            "cut_cross_entropy": "a loss that never has all logits",
            "chunked_cross_entropy": "a loss that never has all logits",
            "tiled_mlp": "layers are computed in pieces",
            "selective_checkpointing": "some activations are kept",
            "dynamic_checkpoint": "checkpoints at certain steps",
            "layer_offloading": "layers are kept in the host's memory",
            "gradio_title": "an inference, not a training",
            "flash_attn_cross_entropy": "flash-attn's loss",
            "flash_attn_rms_norm": "flash-attn's norms",
            "flash_attn_fuse_mlp": "flash-attn's layers",
            "flash_optimum": "another attention",
            "s2_attention": "another attention",
            "sdpa_varlen": "another attention",
            "fused_attn_kernel": "another attention",
            "gemma4_hybrid_attn_impl": "another attention",
            "flex_attn_compile_kwargs": "how flex attention is compiled",
            "large_head_attention": "another attention",
            "use_kernels": "kernels from the hub",
            "use_scattermoe": "another implementation of experts",
            "use_sonicmoe": "another implementation of experts",
            "experts_implementation": "another implementation of experts",
            "llama4_linearized_experts": "another implementation of experts",
            "expert_parallel_size": "experts are divided",
            "tensor_parallel_size": "weights are divided",
            "context_parallel_size": "sequences are divided",
            "sequence_parallel_degree": "sequences are divided",
            "dp_shard_size": "how the model is divided",
            "dp_replicate_size": "how the model is divided",
            "device_map": "the model is spread over GPUs",
            "max_memory": "how much of each GPU is used",
            "gpu_memory_limit": "how much of each GPU is used",
            "experimental_skip_move_to_device": "where weights are loaded",
            "pad_to_multiple_of": "batches are longer",
            "eval_sequence_len": "evaluations have other lengths",
            "eval_table_size": "an evaluation generates",
            "do_causal_lm_eval": "an evaluation generates",
            "eval_max_new_tokens": "an evaluation generates",
            "eval_causal_lm_metrics": "an evaluation generates",
            "do_bench_eval": "another evaluation",
            "noisy_embedding_alpha": "noise as large as the embeddings is made",
            "diffusion": "another loss",
            "use_eaft": "another loss",
            "trainer_cls": "another trainer",
            "trl": "settings of another trainer",
            "vllm": "another engine",
            "torch_compile_options": "how the model is compiled",
            "deepcompile": "DeepSpeed compiles the model",
            "gc_collect_steps": "cached memory is given back between steps",
        },
    )
    | training_arguments.KNOWN
)
