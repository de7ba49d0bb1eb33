"""Configs of torchtune become the spec that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.convert import ConfigKind
from memgate.errors import InputError, UnsupportedJobError
from tests.unit.memgate.conversions import LLAMA, TORCHTUNE, convert_one, spec_of, unused


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
        conversion = convert_one(TORCHTUNE | given)

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
        spec = spec_of(
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
        conversion = convert_one(self._with_adapter("lora_phi4_14b"))

        assert conversion.spec["lora"]["target_modules"] == "all-linear"
        assert "lora" in {one.field for one in conversion.assumptions if one.can_matter}

    def test_a_reference_is_its_value(self) -> None:
        """``${name}`` of a plain field; others stay text."""
        given = {
            "batch_size_val": "${batch_size}",
            "run_val_every_n_steps": 10,
            "output_dir": "${somewhere}",
        }

        assert spec_of(TORCHTUNE | given)["eval"] == {"batch_size": 2}

    def test_many_gpus_are_fsdp(self) -> None:
        """The config does not say so: its recipe does."""
        spec = spec_of(TORCHTUNE, world_size=8)

        assert spec["distributed"] == {"strategy": "fsdp2", "world_size": 8}

    def test_what_is_kept_where_is_the_jobs(self) -> None:
        """Weights in the host's memory, or whole between the passes."""
        given = {"fsdp_cpu_offload": True, "fsdp_reshard_after_forward": False}
        divided = spec_of(TORCHTUNE | given, world_size=8)["distributed"]

        assert (divided["cpu_offload"], divided["reshard_after_forward"]) == (True, False)

    def test_an_optimizer_of_another_library_is_named(self) -> None:
        """And keeps its name; arguments that change what it keeps are passed on."""
        given = {"optimizer": {"_component_": "mine.Lion", "fused": True}}
        conversion = convert_one(TORCHTUNE | given)

        assert conversion.spec["optimizer"] == {"name": "mine.Lion", "kwargs": {"fused": True}}
        assert unused(conversion) == {"optimizer._component_"}

    def test_another_loss_is_named(self) -> None:
        """Chunks of the usual one are in the note on models."""
        given = {"loss": {"_component_": "mine.FocalLoss", "gamma": 2}}

        assert unused(convert_one(TORCHTUNE | given)) == {"loss._component_", "loss.gamma"}

    def test_an_unknown_model_is_named_with_a_similar_one(self) -> None:
        """Or replaced by --model."""
        wrong = TORCHTUNE | {"model": {"_component_": "torchtune.models.llama3_2.llama3_2_1bb"}}

        with pytest.raises(InputError, match="did you mean 'llama3_2_1b'"):
            convert_one(wrong)
        assert spec_of(wrong, model="gpt2")["model"]["name"] == "gpt2"

    def test_a_builder_of_ones_own_needs_a_name(self) -> None:
        """Nothing is imported to find out what it builds."""
        own = TORCHTUNE | {"model": {"_component_": "mine.build"}}

        with pytest.raises(InputError, match="add --model NAME"):
            convert_one(own)
        assert spec_of(own, model="gpt2")["model"]["name"] == "gpt2"

    def test_a_length_that_the_data_decides_must_be_given(self) -> None:
        """torchtune's own configs leave it open."""
        tokenizer = {"_component_": "t", "max_seq_len": None}

        with pytest.raises(InputError, match="add --sequence-length N"):
            convert_one(TORCHTUNE | {"tokenizer": tokenizer})

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
            convert_one(TORCHTUNE | given)

    @pytest.mark.parametrize(
        ("layers", "rule"), [("q_proj", "it must be a list"), ([], "the adapter has no layers")]
    )
    def test_an_adapter_without_layers_is_refused(self, layers: Any, rule: str) -> None:
        """It would train nothing."""
        document = self._with_adapter(
            "lora_llama3_2_1b", lora_attn_modules=layers, apply_lora_to_mlp=False
        )

        with pytest.raises(InputError, match=rule):
            convert_one(document)
