"""Configs of LLaMA-Factory become the spec that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.convert import ConfigKind
from memgate.errors import UnsupportedJobError
from tests.unit.memgate.conversions import FACTORY, convert_one, spec_of, unused


class TestLlamaFactory:
    """LLaMA-Factory's YAML."""

    def test_lora(self) -> None:
        """All linear layers, checkpointing on, the frozen model in bf16."""
        conversion = convert_one(FACTORY | {"bf16": True, "lora_target": "all", "lora_rank": 16})

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

        assert spec_of(full | given).get("precision") == want

    def test_what_people_add(self) -> None:
        """Lists with commas, DoRA, packing, attention, liger, no checkpointing."""
        spec = spec_of(
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
        assert spec_of(FACTORY | given)["quantization"] == want

    def test_another_quantisation_is_named(self) -> None:
        """hqq, for one."""
        conversion = convert_one(FACTORY | {"quantization_bit": 4, "quantization_method": "hqq"})

        assert unused(conversion) == {"quantization_bit"}

    def test_oft_is_a_method_of_peft(self) -> None:
        """With its block."""
        conversion = convert_one(FACTORY | {"finetuning_type": "oft", "oft_target": ["q_proj"]})

        assert conversion.spec["lora"] == {
            "method": "oft",
            "target_modules": ["q_proj"],
            "kwargs": {"oft_block_size": 32},
        }

    def test_pre_training_packs(self) -> None:
        """Its own default."""
        assert spec_of(FACTORY | {"stage": "pt"})["packing"] is True

    def test_muon_is_another_implementation(self) -> None:
        """Torch's own, which is said."""
        conversion = convert_one(FACTORY | {"use_muon": True})

        assert conversion.spec["optimizer"] == {"name": "Muon"}
        assert not conversion.is_whole

    @pytest.mark.parametrize("given", [{"stage": "dpo"}, {"finetuning_type": "freeze"}])
    def test_what_a_spec_cannot_say_is_refused(self, given: dict[str, Any]) -> None:
        """With the command that answers for it."""
        with pytest.raises(UnsupportedJobError, match="memgate run"):
            convert_one(FACTORY | given)
