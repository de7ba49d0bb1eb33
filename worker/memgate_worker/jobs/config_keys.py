"""Keys of transformers configurations that are known for every model. Only names."""

from __future__ import annotations

#: say where a model came from, and take no part in building it
LEFT_OUT = frozenset(
    {
        *("_name_or_path", "name_or_path", "_commit_hash", "auto_map", "model_type"),
        *("architectures", "transformers_version", "custom_pipelines", "xla_device"),
        *("_attn_implementation", "_attn_implementation_autoset"),
        *("_attn_implementation_internal", "_flash_attn_2_enabled"),
    }
)

#: of the weights as they were stored; a job has its own in ``precision``
DTYPES = frozenset({"torch_dtype", "dtype"})

#: one of these is in every config.json that was published
PUBLISHED = frozenset({"model_type", "architectures", "transformers_version"})

#: how many, how wide: an unknown key among these is taken for a misspelt one
SIZES = frozenset(
    {
        *("n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_embd", "d_model"),
        *("hidden_size", "n_head", "n_heads", "num_heads", "num_attention_heads"),
        *("intermediate_size", "d_ff", "ffn_dim"),
    }
)

#: in published configurations, but no longer read by any version of transformers
_OF_OLD = frozenset(
    {
        *("n_ctx", "n_special", "predict_special_tokens", "output_past", "directionality"),
        *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type", "pretraining_tp", "position_embedding_type"),
    }
)

#: of every configuration of transformers 4: labels, outputs, and how text is generated
_OF_VERSION_4 = frozenset(
    {
        *("add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "bos_token_id"),
        *("chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id"),
        *("diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size"),
        *("eos_token_id", "exponential_decay_length_penalty", "finetuning_task"),
        *("forced_bos_token_id", "forced_eos_token_id", "id2label", "is_decoder"),
        *("is_encoder_decoder", "label2id", "length_penalty", "max_length", "max_new_tokens"),
        *("min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels"),
        *("num_return_sequences", "output_attentions", "output_hidden_states", "output_scores"),
        *("pad_token_id", "prefix", "problem_type", "pruned_heads", "remove_invalid_values"),
        *("repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id"),
        *("suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss"),
        *("tie_encoder_decoder", "tie_word_embeddings", "tokenizer_class", "top_k", "top_p"),
        *("torchscript", "typical_p", "use_bfloat16", "use_cache", "use_return_dict"),
        *("renormalize_logits", "cache_implementation", "loss_type", "gradient_checkpointing"),
        *("tie_last_hidden_states", "rope_theta", "rope_scaling"),
    }
)

#: known to every configuration
COMMON = (
    LEFT_OUT | DTYPES | _OF_OLD | _OF_VERSION_4 | {"attn_implementation", "quantization_config"}
)


def is_token(name: str) -> bool:
    """Say whether a key is the number of a token, which changes no sizes."""
    return name.endswith(("_token_id", "_token_ids", "_token_index"))
