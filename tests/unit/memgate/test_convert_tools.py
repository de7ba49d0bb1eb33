"""Configs of each tool become the spec that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.convert import Beside, ConfigKind, Conversion, Usage, convert
from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import parse_job_spec

LLAMA = "meta-llama/Llama-3.2-1B"

HF = {
    "model_name_or_path": "gpt2",
    "max_seq_length": 512,
    "per_device_train_batch_size": 4,
    "output_dir": "out",
    "optim": "adamw_torch",
    "torch_dtype": "float32",
}
TRL = {"model_name_or_path": LLAMA, "max_length": 2048, "output_dir": "out"}
AXOLOTL = {"base_model": LLAMA, "sequence_len": 2048, "micro_batch_size": 2}
FACTORY = {
    "stage": "sft",
    "model_name_or_path": LLAMA,
    "finetuning_type": "lora",
    "cutoff_len": 1024,
    "per_device_train_batch_size": 1,
    "optim": "adamw_torch",
}
TORCHTUNE = {
    "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 1024},
    "batch_size": 2,
    "dtype": "bf16",
}


def _convert(document: dict[str, Any], **beside: Any) -> Conversion:
    return convert(document, beside=Beside(**beside))


def _spec(document: dict[str, Any], **beside: Any) -> dict[str, Any]:
    """Return the spec as it is after a check, so that every field is one of ours."""
    spec = _convert(document, **beside).spec
    parse_job_spec(dict(spec))
    return dict(spec)


def _unused(conversion: Conversion) -> set[str]:
    return {field.name for field in conversion.unused}


def _why(conversion: Conversion, name: str) -> str:
    (field,) = [one for one in conversion.fields if one.name == name]
    assert field.use is Usage.NOT_SUPPORTED
    return field.note


class TestTransformers:
    """``TrainingArguments``, with a model."""

    def test_the_plain_case(self) -> None:
        """Batch of a device, length, optimizer and the Trainer's own clipping."""
        conversion = _convert(HF)

        assert conversion.kind is ConfigKind.HF
        assert conversion.spec == {
            "model": {"source": "transformers", "name": "gpt2"},
            "input": {"sequence_length": 512},
            "batch_size": 4,
            "trainer": "hf",
            "optimizer": {"name": "AdamW"},
            "clip_grad_norm": 1.0,
        }
        assert conversion.is_whole

    def test_defaults_are_the_trainers(self) -> None:
        """And are said: 8 samples, fused AdamW; the type of weights is not certain."""
        conversion = _convert({"model_name": "gpt2", "block_size": 128, "learning_rate": 1e-4})

        assert conversion.spec["batch_size"] == 8
        assert conversion.spec["optimizer"] == {"name": "AdamW", "kwargs": {"fused": True}}
        matters = {one.field: one.can_matter for one in conversion.assumptions}
        assert matters == {"batch_size": False, "optimizer": False, "precision": True}
        assert not conversion.is_whole

    def test_what_is_given_beside_goes_first(self) -> None:
        """A model and a length of the command line."""
        spec = _spec(HF, model="opt", sequence_length=64)

        assert spec["model"]["name"] == "opt"
        assert spec["input"] == {"sequence_length": 64}

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ({"bf16": True}, "amp-bf16"),
            ({"fp16": True}, "amp-fp16"),
            ({"bf16": "true"}, "amp-bf16"),
            ({"bf16": True, "torch_dtype": "bfloat16"}, "bf16"),
            ({"torch_dtype": "float16"}, "fp16"),
            ({"tf32": True}, "tf32"),
            ({}, None),
        ],
    )
    def test_precision_is_that_of_weights_and_arithmetic(
        self, given: dict[str, Any], want: str | None
    ) -> None:
        """Autocast leaves weights as they were loaded."""
        assert _spec(HF | given).get("precision") == want

    def test_weights_as_they_were_saved_are_not_certain(self) -> None:
        """Only the files know."""
        (assumed,) = _convert(HF | {"torch_dtype": "auto", "bf16": True}).assumptions

        assert assumed.field == "precision"
        assert assumed.can_matter

    def test_what_a_trainer_does_besides(self) -> None:
        """Checkpointing, attention, liger, compile, accumulation, evaluation."""
        spec = _spec(
            HF
            | {
                "gradient_accumulation_steps": 4,
                "gradient_checkpointing": True,
                "gradient_checkpointing_kwargs": {"use_reentrant": False},
                "attn_implementation": "flash_attention_2",
                "bf16": True,
                "use_liger_kernel": True,
                "torch_compile": True,
                "torch_compile_mode": "max-autotune",
                "eval_strategy": "steps",
                "per_device_eval_batch_size": 2,
                "max_grad_norm": 0,
            }
        )

        assert spec["gradient_accumulation_steps"] == 4
        assert spec["gradient_checkpointing"] is True
        assert spec["attention"] == "flash"
        assert spec["liger"] is True
        assert spec["compile"] == {"mode": "max-autotune"}
        assert spec["eval"] == {"batch_size": 2}
        assert spec["clip_grad_norm"] == 0

    @pytest.mark.parametrize(
        ("given", "has_evaluation"),
        [({"do_eval": True}, True), ({"eval_strategy": "no", "do_eval": True}, False), ({}, False)],
    )
    def test_an_evaluation_is_there_if_it_is_asked_for(
        self, given: dict[str, Any], has_evaluation: bool
    ) -> None:
        """The strategy decides where there is one."""
        assert ("eval" in _spec(HF | given)) is has_evaluation

    def test_compiling_without_arguments_is_true(self) -> None:
        """As ``torch.compile`` itself."""
        assert _spec(HF | {"torch_compile": True})["compile"] is True

    def test_an_optimizer_that_is_not_ours_keeps_its_name(self) -> None:
        """And is named, so that no estimate is for another."""
        conversion = _convert(HF | {"optim": "lomo"})

        assert conversion.spec["optimizer"] == {"name": "lomo"}
        assert "no optimizer of a spec" in _why(conversion, "optim")

    def test_another_implementation_of_an_optimizer_is_said(self) -> None:
        """Adafactor of torch is not that of transformers."""
        conversion = _convert(HF | {"optim": "adafactor"})

        assert conversion.spec["optimizer"] == {"name": "Adafactor"}
        assert not conversion.is_whole

    def test_an_attention_that_we_do_not_have_is_named(self) -> None:
        """The spec then leaves it to the library."""
        conversion = _convert(HF | {"attn_implementation": "flex_attention"})

        assert "attention" not in conversion.spec
        assert _unused(conversion) == {"attn_implementation"}

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ("full_shard auto_wrap", "fsdp"),
            (["hybrid_shard"], "hsdp"),
            (["auto_wrap"], "fsdp"),
            (True, "fsdp"),
            (["no_shard"], "ddp"),
        ],
    )
    def test_fsdp_is_how_a_job_is_divided(self, given: Any, want: str) -> None:
        """By the words that transformers has for it."""
        spec = _spec(HF | {"fsdp": given}, world_size=8)

        assert spec["distributed"] == {"strategy": want, "world_size": 8}

    def test_the_second_fsdp_is_another(self) -> None:
        """Its number is in its config."""
        given = {"fsdp": ["full_shard"], "fsdp_config": {"fsdp_version": 2}}

        assert _spec(HF | given, world_size=2)["distributed"]["strategy"] == "fsdp2"

    def test_over_how_many_gpus_is_the_launchers(self) -> None:
        """One is assumed, and that can matter."""
        conversion = _convert(HF | {"fsdp": "full_shard"})

        assert conversion.spec["distributed"]["world_size"] == 1
        assert [one.field for one in conversion.assumptions if one.can_matter] == ["distributed"]

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ({"fsdp": "shard_grad_op"}, "fsdp"),
            ({"fsdp": ["full_shard", "offload"]}, "fsdp"),
            (
                {"fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": False}},
                "fsdp_config.reshard_after_forward",
            ),
            (
                {"fsdp": "full_shard", "fsdp_config": {"offload_params": True}},
                "fsdp_config.offload_params",
            ),
        ],
    )
    def test_what_fsdp_does_otherwise_is_named(self, given: dict[str, Any], name: str) -> None:
        """A spec means that all is divided, and on the GPU."""
        assert _unused(_convert(HF | given, world_size=2)) == {name}

    def test_wrong_words_of_fsdp_are_refused(self) -> None:
        """With how they are written."""
        with pytest.raises(InputError, match=r"fsdp is 3: it must be a list such as"):
            _convert(HF | {"fsdp": 3})

    def test_no_fsdp_is_none(self) -> None:
        """An empty list is transformers' own default."""
        assert "distributed" not in _spec(HF | {"fsdp": []})


class TestTrl:
    """``SFTConfig`` with ``ModelConfig``, as ``trl sft --config`` takes it."""

    def test_its_own_defaults(self) -> None:
        """bf16 with weights in fp32, checkpointing, 1,024 tokens."""
        conversion = _convert({"model_name_or_path": LLAMA, "packing": True, "optim": "sgd"})

        assert conversion.kind is ConfigKind.TRL
        assert conversion.spec["trainer"] == "trl-sft"
        assert conversion.spec["precision"] == "amp-bf16"
        assert conversion.spec["gradient_checkpointing"] is True
        assert conversion.spec["packing"] is True
        assert conversion.spec["input"] == {"sequence_length": 1024}

    def test_an_adapter_on_quantised_weights(self) -> None:
        """NF4 is TRL's own choice."""
        spec = _spec(
            TRL
            | {
                "use_peft": True,
                "lora_r": 32,
                "lora_alpha": 16,
                "lora_dropout": 0.05,
                "lora_target_modules": "all-linear",
                "lora_modules_to_save": ["lm_head"],
                "use_dora": True,
                "load_in_4bit": True,
                "use_bnb_nested_quant": True,
                "bnb_4bit_compute_dtype": "bfloat16",
                "dtype": "bfloat16",
                "activation_offloading": True,
            }
        )

        assert spec["lora"] == {
            "method": "dora",
            "rank": 32,
            "alpha": 16.0,
            "dropout": 0.05,
            "target_modules": "all-linear",
            "kwargs": {"modules_to_save": ["lm_head"]},
        }
        assert spec["quantization"] == {
            "method": "nf4",
            "double": True,
            "compute": "bf16",
        }
        assert spec["precision"] == "bf16"
        assert spec["offload"] == {"activations": True}

    def test_eight_bits_have_no_settings(self) -> None:
        """``load_in_8bit`` is int8."""
        spec = _spec(TRL | {"lora_r": 8, "load_in_8bit": True})

        assert spec["quantization"] == {"method": "int8"}

    def test_quantised_weights_without_an_adapter_are_named(self) -> None:
        """They cannot be trained; the spec would be refused."""
        conversion = _convert(TRL | {"load_in_4bit": True})

        assert "quantization" not in conversion.spec
        assert _unused(conversion) == {"load_in_4bit"}

    def test_two_methods_at_once_are_named(self) -> None:
        """A spec has one."""
        conversion = _convert(TRL | {"lora_r": 8, "use_dora": True, "use_rslora": True})

        assert _unused(conversion) == {"use_rslora"}

    def test_another_trainer_of_trl_is_refused(self) -> None:
        """Preferences need a second model: that is not this job."""
        with pytest.raises(UnsupportedJobError, match=r"max_prompt_length: .* memgate run"):
            _convert(TRL | {"max_prompt_length": 512})

    def test_an_unknown_type_is_refused(self) -> None:
        """With those that there are."""
        with pytest.raises(InputError, match="torch_dtype is 'float64': it must be one of"):
            _convert(TRL | {"torch_dtype": "float64"})


class TestAxolotl:
    """axolotl's YAML."""

    def test_a_full_fine_tuning(self) -> None:
        """Weights are loaded in the type of the training."""
        spec = _spec(
            AXOLOTL
            | {
                "bf16": True,
                "optimizer": "adamw_bnb_8bit",
                "gradient_accumulation_steps": 4,
                "sample_packing": True,
                "flash_attention": True,
                "val_set_size": 0.05,
            }
        )

        assert spec["precision"] == "bf16"
        assert spec["optimizer"] == {"name": "bitsandbytes.AdamW8bit"}
        assert spec["packing"] is True
        assert spec["attention"] == "flash"
        assert spec["eval"] == {"batch_size": 2}
        assert spec["trainer"] == "hf"

    def test_qlora(self) -> None:
        """Double quantisation is axolotl's own choice; what it widens is made narrow again."""
        given = {
            "adapter": "qlora",
            "load_in_4bit": True,
            "lora_r": 32,
            "lora_target_linear": True,
            "attn_implementation": "flash_attention_2",
            "bf16": "auto",
        }
        conversion = _convert(AXOLOTL | given)

        assert conversion.spec["lora"] == {
            "method": "lora",
            "rank": 32,
            "target_modules": "all-linear",
        }
        assert conversion.spec["quantization"] == {
            "method": "nf4",
            "double": True,
            "prepare": False,
        }
        (assumed,) = conversion.assumptions
        assert assumed.field == "precision"
        assert conversion.is_whole

    def test_settings_of_the_quantisation_are_used(self) -> None:
        """And the older switches of attention."""
        given = {
            "adapter": "lora",
            "load_in_4bit": True,
            "peft_use_rslora": True,
            "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False},
            "sdp_attention": True,
            "fp16": True,
            "bf16": "auto",
        }
        spec = _spec(AXOLOTL | given)

        assert spec["lora"] == {"method": "rslora"}
        assert spec["quantization"] == {"method": "nf4", "prepare": False}
        assert (spec["attention"], spec["precision"]) == ("sdpa", "fp16")

    @pytest.mark.parametrize(
        ("given", "is_certain"),
        [
            ({"bf16": True}, False),
            ({"bf16": True, "flash_attention": True}, True),
            ({"bf16": True, "adapter": "lora"}, True),
            ({}, True),
        ],
    )
    def test_what_stays_wide_is_said(self, given: dict[str, Any], is_certain: bool) -> None:
        """Embeddings and norms of a full fine-tuning without flash-attention."""
        assert _convert(AXOLOTL | given).is_whole is is_certain

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ({"bfloat16": True}, "bf16"),
            ({"float16": True}, "fp16"),
            ({"adapter": "lora", "load_in_8bit": True}, "fp16"),
            ({"tf32": True}, "tf32"),
            ({"float32": True}, None),
        ],
    )
    def test_the_type_of_weights(self, given: dict[str, Any], want: str | None) -> None:
        """As its code decides it."""
        assert _spec(AXOLOTL | given).get("precision") == want

    def test_accumulation_may_follow_from_the_whole_batch(self) -> None:
        """As axolotl itself computes it."""
        assert _spec(AXOLOTL | {"batch_size": 8})["gradient_accumulation_steps"] == 4
        assert "gradient_accumulation_steps" not in _spec(AXOLOTL | {"batch_size": 2})

    @pytest.mark.parametrize(
        ("given", "checkpoints", "offloads"),
        [
            ({"gradient_checkpointing": True}, True, False),
            ({"gradient_checkpointing": "offload"}, True, True),
            ({"activation_offloading": True}, False, True),
            ({}, False, False),
        ],
    )
    def test_activations_are_computed_again_or_kept_elsewhere(
        self, given: dict[str, Any], checkpoints: bool, offloads: bool
    ) -> None:
        """Both are fields of a spec."""
        spec = _spec(AXOLOTL | given)

        assert ("gradient_checkpointing" in spec) is checkpoints
        assert ("offload" in spec) is offloads

    def test_a_disk_is_not_the_hosts_memory(self) -> None:
        """So that is named."""
        conversion = _convert(AXOLOTL | {"gradient_checkpointing": "offload_disk"})

        assert _unused(conversion) == {"gradient_checkpointing"}

    def test_liger_is_all_of_it(self) -> None:
        """Its fused loss is what saves memory."""
        given = {
            "plugins": ["axolotl.integrations.liger.LigerPlugin"],
            "liger_rope": True,
            "liger_fused_linear_cross_entropy": True,
        }
        conversion = _convert(AXOLOTL | given)

        assert conversion.spec["liger"] is True
        assert conversion.is_whole

    def test_liger_without_its_loss_is_named(self) -> None:
        """Layer by layer."""
        given = {"plugins": "axolotl.integrations.liger.LigerPlugin", "liger_rope": True}
        conversion = _convert(AXOLOTL | given)

        assert "liger" not in conversion.spec
        assert _unused(conversion) == {"liger_rope"}

    def test_other_plugins_are_named(self) -> None:
        """By their class."""
        given = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}

        assert "CutCrossEntropyPlugin" in _why(_convert(AXOLOTL | given), "plugins")

    def test_other_attention_is_named(self) -> None:
        """Old switches, too."""
        assert _unused(_convert(AXOLOTL | {"xformers_attention": True})) == {"xformers_attention"}

    def test_an_evaluation_with_other_batches_is_named(self) -> None:
        """Where there is one."""
        packed = AXOLOTL | {"sample_packing": True, "eval_sample_packing": False}

        assert _convert(packed).is_whole
        assert _unused(_convert(packed | {"val_set_size": 0.1})) == {"eval_sample_packing"}

    def test_fsdp_by_its_config_alone(self) -> None:
        """As its second version is written, with checkpointing in it."""
        given = {
            "fsdp_version": 2,
            "fsdp_config": {"activation_checkpointing": True, "reshard_after_forward": True},
        }
        spec = _spec(AXOLOTL | given, world_size=4)

        assert spec["distributed"] == {"strategy": "fsdp2", "world_size": 4}
        assert spec["gradient_checkpointing"] is True

    def test_fsdp_by_its_words(self) -> None:
        """As its first version is written."""
        given = {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_use_orig_params": True}}
        conversion = _convert(AXOLOTL | given, world_size=4)

        assert conversion.spec["distributed"]["strategy"] == "fsdp"
        assert conversion.is_whole

    @pytest.mark.parametrize("name", ["rl", "reward_model"])
    def test_other_tasks_are_refused(self, name: str) -> None:
        """With the command that answers for them."""
        with pytest.raises(UnsupportedJobError, match=f"{name} is .* memgate run"):
            _convert(AXOLOTL | {name: "dpo"})


class TestLlamaFactory:
    """LLaMA-Factory's YAML."""

    def test_lora(self) -> None:
        """All linear layers, checkpointing on, the frozen model in bf16."""
        conversion = _convert(FACTORY | {"bf16": True, "lora_target": "all", "lora_rank": 16})

        assert conversion.kind is ConfigKind.LLAMA_FACTORY
        assert conversion.spec["lora"] == {"rank": 16, "target_modules": "all-linear"}
        assert conversion.spec["gradient_checkpointing"] is True
        assert conversion.spec["precision"] == "bf16"
        assert conversion.spec["trainer"] == "hf"
        assert conversion.is_whole

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ({"bf16": True}, "amp-bf16"),
            ({"fp16": True}, "amp-fp16"),
            ({"pure_bf16": True}, "bf16"),
            ({}, None),
        ],
    )
    def test_what_is_trained_is_widened(self, given: dict[str, Any], want: str | None) -> None:
        """Unless pure_bf16 is set."""
        full = FACTORY | {"finetuning_type": "full"}

        assert _spec(full | given).get("precision") == want

    def test_what_people_add(self) -> None:
        """Lists with commas, DoRA, packing, attention, liger, no checkpointing."""
        spec = _spec(
            FACTORY
            | {
                "lora_target": "q_proj, v_proj",
                "additional_target": "embed_tokens",
                "use_dora": True,
                "neat_packing": True,
                "flash_attn": "fa2",
                "bf16": True,
                "enable_liger_kernel": True,
                "disable_gradient_checkpointing": True,
            }
        )

        assert spec["lora"]["target_modules"] == ["q_proj", "v_proj"]
        assert spec["lora"]["kwargs"] == {"modules_to_save": ["embed_tokens"]}
        assert spec["lora"]["method"] == "dora"
        assert spec["packing"] is True
        assert spec["attention"] == "flash"
        assert "gradient_checkpointing" not in spec

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ({"quantization_bit": 4}, {"method": "nf4", "double": True, "prepare": False}),
            ({"quantization_bit": 8}, {"method": "int8", "prepare": False}),
        ],
    )
    def test_quantised_weights(self, given: dict[str, Any], want: dict[str, Any]) -> None:
        """By bitsandbytes."""
        assert _spec(FACTORY | given)["quantization"] == want

    def test_another_quantisation_is_named(self) -> None:
        """hqq, for one."""
        conversion = _convert(FACTORY | {"quantization_bit": 4, "quantization_method": "hqq"})

        assert _unused(conversion) == {"quantization_bit"}

    def test_oft_is_a_method_of_peft(self) -> None:
        """With its block."""
        conversion = _convert(FACTORY | {"finetuning_type": "oft", "oft_target": ["q_proj"]})

        assert conversion.spec["lora"] == {
            "method": "oft",
            "target_modules": ["q_proj"],
            "kwargs": {"oft_block_size": 32},
        }

    def test_pre_training_packs(self) -> None:
        """Its own default."""
        assert _spec(FACTORY | {"stage": "pt"})["packing"] is True

    def test_muon_is_another_implementation(self) -> None:
        """Torch's own, which is said."""
        conversion = _convert(FACTORY | {"use_muon": True})

        assert conversion.spec["optimizer"] == {"name": "Muon"}
        assert not conversion.is_whole

    @pytest.mark.parametrize("given", [{"stage": "dpo"}, {"finetuning_type": "freeze"}])
    def test_what_a_spec_cannot_say_is_refused(self, given: dict[str, Any]) -> None:
        """With the command that answers for it."""
        with pytest.raises(UnsupportedJobError, match="memgate run"):
            _convert(FACTORY | given)


class TestTorchtune:
    """A recipe's YAML."""

    def test_a_full_fine_tuning(self) -> None:
        """Weights in bf16, gradients dropped after the step, a model that is not torchtune's."""
        given = {
            "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit", "lr": 1e-5},
            "clip_grad_norm": 1.0,
            "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": True},
            "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
            "enable_activation_offloading": True,
            "compile": True,
        }
        conversion = _convert(TORCHTUNE | given)

        assert conversion.kind is ConfigKind.TORCHTUNE
        assert conversion.spec == {
            "model": {"source": "transformers", "name": LLAMA},
            "input": {"sequence_length": 1024},
            "batch_size": 2,
            "precision": "bf16",
            "optimizer": {"name": "bitsandbytes.PagedAdamW8bit"},
            "zero_grad": "after_step",
            "clip_grad_norm": 1.0,
            "offload": {"activations": True},
            "packing": True,
            "compile": True,
        }
        assert not conversion.unused
        assert [one.field for one in conversion.assumptions] == ["model"]

    @staticmethod
    def _with_adapter(builder: str, **more: Any) -> dict[str, Any]:
        model = {
            "_component_": f"torchtune.models.family.{builder}",
            "lora_attn_modules": ["q_proj", "output_proj"],
            "apply_lora_to_mlp": True,
        }
        return TORCHTUNE | {"model": model | more}

    def test_an_adapter_has_the_names_of_transformers(self) -> None:
        """Of layers, and NF4 by bitsandbytes."""
        spec = _spec(
            self._with_adapter(
                "qlora_llama3_1_8b", apply_lora_to_output=True, lora_rank=64, use_dora=True
            )
        )

        assert spec["lora"] == {
            "method": "dora",
            "rank": 64,
            "target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
        }
        assert spec["quantization"] == {"method": "nf4", "double": True, "prepare": False}

    def test_phi_has_its_layers_in_one(self) -> None:
        """So all are taken, which is said."""
        conversion = _convert(self._with_adapter("lora_phi4_14b"))

        assert conversion.spec["lora"]["target_modules"] == "all-linear"
        assert "lora" in {one.field for one in conversion.assumptions if one.can_matter}

    def test_a_reference_is_its_value(self) -> None:
        """``${name}`` of a plain field; others stay text."""
        given = {
            "batch_size_val": "${batch_size}",
            "run_val_every_n_steps": 10,
            "output_dir": "${somewhere}",
        }

        assert _spec(TORCHTUNE | given)["eval"] == {"batch_size": 2}

    def test_many_gpus_are_fsdp(self) -> None:
        """The config does not say so: its recipe does."""
        spec = _spec(TORCHTUNE, world_size=8)

        assert spec["distributed"] == {"strategy": "fsdp2", "world_size": 8}

    def test_an_optimizer_of_another_library_is_named(self) -> None:
        """And keeps its name; arguments that change what it keeps are passed on."""
        given = {"optimizer": {"_component_": "mine.Lion", "fused": True}}
        conversion = _convert(TORCHTUNE | given)

        assert conversion.spec["optimizer"] == {"name": "mine.Lion", "kwargs": {"fused": True}}
        assert _unused(conversion) == {"optimizer._component_"}

    def test_another_loss_is_named(self) -> None:
        """Chunks of the usual one are in the note on models."""
        given = {"loss": {"_component_": "mine.FocalLoss", "gamma": 2}}

        assert _unused(_convert(TORCHTUNE | given)) == {"loss._component_", "loss.gamma"}

    def test_an_unknown_model_is_named_with_a_similar_one(self) -> None:
        """Or replaced by --model."""
        wrong = TORCHTUNE | {"model": {"_component_": "torchtune.models.llama3_2.llama3_2_1bb"}}

        with pytest.raises(InputError, match="did you mean 'llama3_2_1b'"):
            _convert(wrong)
        assert _spec(wrong, model="gpt2")["model"]["name"] == "gpt2"

    def test_a_builder_of_ones_own_needs_a_name(self) -> None:
        """Nothing is imported to find out what it builds."""
        own = TORCHTUNE | {"model": {"_component_": "mine.build"}}

        with pytest.raises(InputError, match="add --model NAME"):
            _convert(own)
        assert _spec(own, model="gpt2")["model"]["name"] == "gpt2"

    def test_a_length_that_the_data_decides_must_be_given(self) -> None:
        """torchtune's own configs leave it open."""
        tokenizer = {"_component_": "t", "max_seq_len": None}

        with pytest.raises(InputError, match="add --sequence-length N"):
            _convert(TORCHTUNE | {"tokenizer": tokenizer})

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"teacher_model": {"_component_": "t"}}, "a distillation"),
            ({"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}}, "a preference learning"),
            ({"tasks": ["mmlu"]}, "an evaluation"),
        ],
    )
    def test_other_recipes_are_refused(self, given: dict[str, Any], what: str) -> None:
        """With what they are."""
        with pytest.raises(UnsupportedJobError, match=f"this recipe is {what}"):
            _convert(TORCHTUNE | given)

    @pytest.mark.parametrize(
        ("layers", "rule"), [("q_proj", "it must be a list"), ([], "the adapter has no layers")]
    )
    def test_an_adapter_without_layers_is_refused(self, layers: Any, rule: str) -> None:
        """It would train nothing."""
        document = self._with_adapter(
            "lora_llama3_2_1b", lora_attn_modules=layers, apply_lora_to_mlp=False
        )

        with pytest.raises(InputError, match=rule):
            _convert(document)
