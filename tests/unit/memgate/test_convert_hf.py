"""Configs of transformers and trl become the spec that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.convert import ConfigKind
from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import parse_job_spec
from tests.unit.memgate.conversions import HF, LLAMA, TRL, convert_one, spec_of, unused, why


class TestTransformers:
    """``TrainingArguments``, with a model."""

    def test_the_plain_case(self) -> None:
        """Batch of a device, length, optimizer and the Trainer's own clipping."""
        conversion = convert_one(HF)

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
        conversion = convert_one({"model_name": "gpt2", "block_size": 128, "learning_rate": 1e-4})

        assert conversion.spec["batch_size"] == 8
        assert conversion.spec["optimizer"] == {"name": "AdamW", "kwargs": {"fused": True}}
        matters = {one.field: one.can_matter for one in conversion.assumptions}
        assert matters == {"batch_size": False, "optimizer": False, "precision": True}
        assert not conversion.is_whole

    def test_what_is_given_beside_goes_first(self) -> None:
        """A model and a length of the command line."""
        spec = spec_of(HF, model="opt", sequence_length=64)

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
        assert spec_of(HF | given).get("precision") == want

    def test_weights_as_they_were_saved_are_not_certain(self) -> None:
        """Only the files know."""
        (assumed,) = convert_one(HF | {"torch_dtype": "auto", "bf16": True}).assumptions

        assert assumed.field == "precision"
        assert assumed.can_matter

    def test_what_a_trainer_does_besides(self) -> None:
        """Checkpointing, attention, liger, compile, accumulation, evaluation."""
        spec = spec_of(
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
        assert ("eval" in spec_of(HF | given)) is has_evaluation

    def test_compiling_without_arguments_is_true(self) -> None:
        """As ``torch.compile`` itself."""
        assert spec_of(HF | {"torch_compile": True})["compile"] is True

    def test_an_optimizer_that_is_not_ours_keeps_its_name(self) -> None:
        """And is named, so that no estimate is for another."""
        conversion = convert_one(HF | {"optim": "lomo"})

        assert conversion.spec["optimizer"] == {"name": "lomo"}
        assert "no optimizer of a spec" in why(conversion, "optim")

    def test_another_implementation_of_an_optimizer_is_said(self) -> None:
        """Adafactor of torch is not that of transformers."""
        conversion = convert_one(HF | {"optim": "adafactor"})

        assert conversion.spec["optimizer"] == {"name": "Adafactor"}
        assert not conversion.is_whole

    def test_an_attention_that_we_do_not_have_is_named(self) -> None:
        """The spec then leaves it to the library."""
        conversion = convert_one(HF | {"attn_implementation": "flex_attention"})

        assert "attention" not in conversion.spec
        assert unused(conversion) == {"attn_implementation"}

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
        spec = spec_of(HF | {"fsdp": given}, world_size=8)

        divided = spec["distributed"]
        assert (divided["strategy"], divided["world_size"]) == (want, 8)

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ("shard_grad_op", {"strategy": "fsdp", "reshard_after_forward": False}),
            (["full_shard", "offload"], {"strategy": "fsdp", "cpu_offload": True}),
            ("hybrid_shard", {"strategy": "hsdp", "fsdp_version": 1}),
        ],
    )
    def test_what_fsdp_keeps_and_where_is_in_the_spec(self, given: Any, want: Any) -> None:
        """And a spec with it is right."""
        spec = spec_of(HF | {"fsdp": given}, world_size=8)

        assert spec["distributed"] == {"world_size": 8} | want
        assert parse_job_spec(spec).distributed is not None

    def test_the_second_fsdp_is_another(self) -> None:
        """Its number is in its config."""
        given = {"fsdp": ["full_shard"], "fsdp_config": {"fsdp_version": 2}}

        assert spec_of(HF | given, world_size=2)["distributed"]["strategy"] == "fsdp2"

    def test_over_how_many_gpus_is_the_launchers(self) -> None:
        """None is made up: with one, NCCL would be counted, and nothing divided."""
        conversion = convert_one(HF | {"fsdp": "full_shard"})

        assert "distributed" not in conversion.spec
        (doubt,) = [one for one in conversion.assumptions if one.can_matter]
        assert doubt.field == "distributed"
        assert "number is not known" in doubt.why
        assert "add --world-size N" in doubt.why

    @pytest.mark.parametrize("name", ["offload_params", "fsdp_offload_params"])
    def test_weights_that_fsdp_keeps_on_the_host_are_in_the_spec(self, name: str) -> None:
        """By its config, as well as by the word ``offload``."""
        given = {"fsdp": "full_shard", "fsdp_config": {name: True}}
        conversion = convert_one(HF | given, world_size=2)

        assert conversion.spec["distributed"]["cpu_offload"] is True
        assert not conversion.unused

    @pytest.mark.parametrize(
        ("given", "want"),
        [
            ({"task_name": "mnli"}, "AutoModelForSequenceClassification"),
            ({"task_name": "SST-2", "num_labels": 2}, "AutoModelForSequenceClassification"),
            (
                {"dataset_name": "nyu-mll/glue", "dataset_config_name": "qqp"},
                "AutoModelForSequenceClassification",
            ),
            ({"problem_type": "regression"}, "AutoModelForSequenceClassification"),
            ({"lora_task_type": "TOKEN_CLS"}, "AutoModelForTokenClassification"),
        ],
    )
    def test_a_task_that_is_certain_is_the_class_of_the_model(
        self, given: dict[str, Any], want: str
    ) -> None:
        """A name alone would be the masked language model, which takes far more."""
        conversion = convert_one(HF | {"model_name_or_path": "roberta-large"} | given)

        assert conversion.spec["model"] == {
            "source": "transformers",
            "name": "roberta-large",
            "class": want,
        }
        assert conversion.is_whole

    @pytest.mark.parametrize("given", [{"task_name": "ner"}, {"num_labels": 3}])
    def test_a_task_that_is_not_certain_is_named(self, given: dict[str, Any]) -> None:
        """With the field that decides it."""
        conversion = convert_one(HF | given)

        assert "class" not in conversion.spec["model"]
        assert "give 'class' beside 'name'" in why(conversion, next(iter(given)))

    def test_a_language_model_is_no_other_task(self) -> None:
        """As the configs of adapters say it."""
        conversion = convert_one(HF | {"lora_task_type": "CAUSAL_LM", "dataset_name": "glue"})

        assert "class" not in conversion.spec["model"]
        assert conversion.is_whole

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            (
                {"fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": False}},
                "fsdp_config.reshard_after_forward",
            ),
        ],
    )
    def test_what_fsdp_does_otherwise_is_named(self, given: dict[str, Any], name: str) -> None:
        """A spec means that all is divided."""
        assert unused(convert_one(HF | given, world_size=2)) == {name}

    def test_wrong_words_of_fsdp_are_refused(self) -> None:
        """With how they are written."""
        with pytest.raises(InputError, match=r"fsdp is 3: it must be a list such as"):
            convert_one(HF | {"fsdp": 3})

    def test_no_fsdp_is_none(self) -> None:
        """An empty list is transformers' own default."""
        assert "distributed" not in spec_of(HF | {"fsdp": []})


class TestTrl:
    """``SFTConfig`` with ``ModelConfig``, as ``trl sft --config`` takes it."""

    def test_its_own_defaults(self) -> None:
        """bf16 with weights in fp32, checkpointing, 1,024 tokens."""
        conversion = convert_one({"model_name_or_path": LLAMA, "packing": True, "optim": "sgd"})

        assert conversion.kind is ConfigKind.TRL
        assert conversion.spec["trainer"] == "trl-sft"
        assert conversion.spec["precision"] == "amp-bf16"
        assert conversion.spec["gradient_checkpointing"] is True
        assert conversion.spec["packing"] is True
        assert conversion.spec["input"] == {"sequence_length": 1024}

    def test_an_adapter_on_quantised_weights(self) -> None:
        """NF4 is TRL's own choice."""
        spec = spec_of(
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
        spec = spec_of(TRL | {"lora_r": 8, "load_in_8bit": True})

        assert spec["quantization"] == {"method": "int8"}

    def test_quantised_weights_without_an_adapter_are_named(self) -> None:
        """They cannot be trained; the spec would be refused."""
        conversion = convert_one(TRL | {"load_in_4bit": True})

        assert "quantization" not in conversion.spec
        assert unused(conversion) == {"load_in_4bit"}

    def test_two_methods_at_once_are_named(self) -> None:
        """A spec has one."""
        conversion = convert_one(TRL | {"lora_r": 8, "use_dora": True, "use_rslora": True})

        assert unused(conversion) == {"use_rslora"}

    def test_another_trainer_of_trl_is_refused(self) -> None:
        """Preferences need a second model: that is not this job."""
        with pytest.raises(UnsupportedJobError, match=r"max_prompt_length: .* memgate run"):
            convert_one(TRL | {"max_prompt_length": 512})

    def test_an_unknown_type_is_refused(self) -> None:
        """With those that there are."""
        with pytest.raises(InputError, match="torch_dtype is 'float64': it must be one of"):
            convert_one(TRL | {"torch_dtype": "float64"})
