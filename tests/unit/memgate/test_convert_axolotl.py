"""Configs of axolotl become the spec that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import UnsupportedJobError
from tests.unit.memgate.conversions import AXOLOTL, convert_one, spec_of, unused, why


class TestAxolotl:
    """axolotl's YAML."""

    def test_a_full_fine_tuning(self) -> None:
        """Weights are loaded in the type of the training."""
        spec = spec_of(
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
        conversion = convert_one(AXOLOTL | given)

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
        spec = spec_of(AXOLOTL | given)

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
        assert convert_one(AXOLOTL | given).is_whole is is_certain

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
        assert spec_of(AXOLOTL | given).get("precision") == want

    def test_accumulation_may_follow_from_the_whole_batch(self) -> None:
        """As axolotl itself computes it."""
        assert spec_of(AXOLOTL | {"batch_size": 8})["gradient_accumulation_steps"] == 4
        assert "gradient_accumulation_steps" not in spec_of(AXOLOTL | {"batch_size": 2})

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
        spec = spec_of(AXOLOTL | given)

        assert ("gradient_checkpointing" in spec) is checkpoints
        assert ("offload" in spec) is offloads

    def test_a_disk_is_not_the_hosts_memory(self) -> None:
        """So that is named."""
        conversion = convert_one(AXOLOTL | {"gradient_checkpointing": "offload_disk"})

        assert unused(conversion) == {"gradient_checkpointing"}

    def test_liger_is_all_of_it(self) -> None:
        """Its fused loss is what saves memory."""
        given = {
            "plugins": ["axolotl.integrations.liger.LigerPlugin"],
            "liger_rope": True,
            "liger_fused_linear_cross_entropy": True,
        }
        conversion = convert_one(AXOLOTL | given)

        assert conversion.spec["liger"] is True
        assert conversion.is_whole

    def test_liger_without_its_loss_is_named(self) -> None:
        """Layer by layer."""
        given = {"plugins": "axolotl.integrations.liger.LigerPlugin", "liger_rope": True}
        conversion = convert_one(AXOLOTL | given)

        assert "liger" not in conversion.spec
        assert unused(conversion) == {"liger_rope"}

    def test_other_plugins_are_named(self) -> None:
        """By their class."""
        given = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}

        assert "CutCrossEntropyPlugin" in why(convert_one(AXOLOTL | given), "plugins")

    def test_other_attention_is_named(self) -> None:
        """Old switches, too."""
        assert unused(convert_one(AXOLOTL | {"xformers_attention": True})) == {"xformers_attention"}

    def test_an_evaluation_with_other_batches_is_named(self) -> None:
        """Where there is one."""
        packed = AXOLOTL | {"sample_packing": True, "eval_sample_packing": False}

        assert convert_one(packed).is_whole
        assert unused(convert_one(packed | {"val_set_size": 0.1})) == {"eval_sample_packing"}

    def test_fsdp_by_its_config_alone(self) -> None:
        """As its second version is written, with checkpointing in it."""
        given = {
            "fsdp_version": 2,
            "fsdp_config": {"activation_checkpointing": True, "reshard_after_forward": True},
        }
        spec = spec_of(AXOLOTL | given, world_size=4)

        assert spec["distributed"] == {"strategy": "fsdp2", "world_size": 4}
        assert spec["gradient_checkpointing"] is True

    def test_fsdp_keeps_weights_on_the_host(self) -> None:
        """Once, and only over a number of GPUs that is known."""
        given = {"fsdp_config": {"fsdp_offload_params": True}}

        divided = spec_of(AXOLOTL | given, world_size=4)["distributed"]
        unknown = convert_one(AXOLOTL | given | {"fsdp": ["full_shard", "auto_wrap"]})

        assert divided == {"strategy": "fsdp", "world_size": 4, "cpu_offload": True}
        assert "distributed" not in unknown.spec
        assert [one.field for one in unknown.assumptions].count("distributed") == 1

    def test_fsdp_by_its_words(self) -> None:
        """As its first version is written."""
        given = {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_use_orig_params": True}}
        conversion = convert_one(AXOLOTL | given, world_size=4)

        assert conversion.spec["distributed"]["strategy"] == "fsdp"
        assert conversion.is_whole

    @pytest.mark.parametrize("name", ["rl", "reward_model"])
    def test_other_tasks_are_refused(self, name: str) -> None:
        """With the command that answers for them."""
        with pytest.raises(UnsupportedJobError, match=f"{name} is .* memgate run"):
            convert_one(AXOLOTL | {name: "dpo"})
