"""What all conversions share: the kind, every field accounted for, DeepSpeed, what is written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from memgate.convert import (
    SCHEMA_LINE,
    Assumption,
    Beside,
    ConfigKind,
    Conversion,
    Usage,
    convert,
    describe_conversion,
    find_deepspeed,
    write_spec,
)
from memgate.convert.fields import MAX_DEPTH, MAX_FIELDS
from memgate.errors import InputError
from memgate.jobspec import parse_job_spec
from memgate.jobspec.trainers import find_plain_only
from memgate.jobspec.undivided import find_undivided
from memgate.spec_text import read_job_text
from tests.unit.memgate.conversions import AXOLOTL, FACTORY, HF, TORCHTUNE, TRL


def _convert(document: object, **beside: Any) -> Conversion:
    return convert(document, beside=Beside(**beside))


class TestKind:
    """Whose config it is follows from its keys."""

    @pytest.mark.parametrize(
        ("document", "want"),
        [
            (HF, ConfigKind.HF),
            (TRL, ConfigKind.TRL),
            (AXOLOTL, ConfigKind.AXOLOTL),
            (FACTORY, ConfigKind.LLAMA_FACTORY),
            (TORCHTUNE, ConfigKind.TORCHTUNE),
        ],
        ids=list(ConfigKind),
    )
    def test_each_is_recognised(self, document: dict[str, Any], want: ConfigKind) -> None:
        """By keys that only one of them has."""
        assert _convert(document).kind is want

    def test_it_can_be_said(self) -> None:
        """Where the keys would say something else."""
        document = HF | {"max_length": 128}

        assert _convert(document).kind is ConfigKind.TRL
        assert convert(document, kind=ConfigKind.HF, beside=Beside()).kind is ConfigKind.HF

    @pytest.mark.parametrize(
        ("document", "what"),
        [
            ({"zero_optimization": {}}, "a DeepSpeed file: .*--deepspeed"),
            ({"distributed_type": "FSDP"}, "a config of accelerate"),
            ({"architectures": ["GPT2LMHeadModel"]}, "config.json of a model"),
            ({"peft_type": "LORA"}, "the config of an adapter"),
            ({"model": {"source": "timm"}}, "a job spec already"),
            ({"base_modle": "gpt2"}, "did you mean 'base_model'.*a key of axolotl"),
            ({"colour": "blue"}, "--kind: hf, trl, axolotl, llama-factory, torchtune"),
            ([], "an object with named fields"),
            ({}, "an object with named fields"),
        ],
    )
    def test_what_it_is_instead_is_said(self, document: object, what: str) -> None:
        """With the next step, or the key that was meant."""
        with pytest.raises(InputError, match=what):
            _convert(document)


class TestFields:
    """Every field is used, cannot matter, is not supported, or is unknown."""

    def test_all_are_accounted_for(self) -> None:
        """Nothing vanishes in silence."""
        document = HF | {
            "learning_rate": 1e-4,
            "neftune_noise_alpha": 5,
            "eval_accumulation_steps": None,
            "adam_betaa1": 0.9,
        }
        uses = {field.name: field.use for field in _convert(document).fields}

        assert uses.keys() == document.keys()
        assert uses["optim"] is Usage.USED
        assert uses["learning_rate"] is Usage.CANNOT_MATTER
        assert uses["neftune_noise_alpha"] is Usage.NOT_SUPPORTED
        assert uses["eval_accumulation_steps"] is Usage.CANNOT_MATTER
        assert uses["adam_betaa1"] is Usage.UNKNOWN

    def test_an_unknown_field_may_matter_and_a_similar_name_is_said(self) -> None:
        """Whatever its value is."""
        conversion = _convert(AXOLOTL | {"context_parapllel_size": None})
        (field,) = conversion.unused

        assert not conversion.is_whole
        assert "memgate does not know it; did you mean 'context_parallel_size'" in field.sentence

    def test_what_is_below_a_known_field_is_known(self) -> None:
        """The nearest name that is known counts."""
        document = AXOLOTL | {"special_tokens": {"pad_token": "x"}, "qat": {"weight_dtype": "int4"}}
        uses = {field.name: field.use for field in _convert(document).fields}

        assert uses["special_tokens.pad_token"] is Usage.CANNOT_MATTER
        assert uses["qat.weight_dtype"] is Usage.NOT_SUPPORTED

    @pytest.mark.parametrize(
        ("given", "matters"),
        [
            ({"context_parallel_size": 1}, False),
            ({"context_parallel_size": 2}, True),
            ({"dp_shard_size": 1}, False),
            ({"device_map": "auto"}, True),
            ({"tiled_mlp": False}, False),
            ({"plugins": []}, False),
        ],
    )
    def test_what_is_off_cannot_matter(self, given: dict[str, Any], matters: bool) -> None:
        """Nor what is divided over one; what is left open can."""
        assert bool(_convert(AXOLOTL | given).unused) is matters

    def test_secrets_are_not_repeated(self) -> None:
        """What is printed ends up in logs."""
        (field,) = _convert(HF | {"my_api_key": "sesame"}).unused

        assert field.value == "(not shown)"

    def test_a_sentence_has_what_there_is(self) -> None:
        """A field that is used has a name alone."""
        field = _convert(HF).fields[0]

        assert field.sentence == "model_name_or_path"

    @pytest.mark.parametrize(
        ("document", "rule"),
        [
            (HF | {"per_device_train_batch_size": "many"}, "it must be a whole number"),
            (HF | {"per_device_train_batch_size": True}, "it must be a whole number"),
            (HF | {"bf16": "sometimes"}, "bf16 is 'sometimes': it must be true or false"),
            (HF | {"max_grad_norm": "high"}, "max_grad_norm is 'high': it must be a number"),
            (HF | {"optim": 3}, "optim is 3: it must be the name of an optimizer"),
            (HF | {"model_name_or_path": 3}, "it must be the name of a model"),
            (HF | {"per_device_train_batch_size": 0}, "batch_size is 0: it must be at least 1"),
            (AXOLOTL | {"base_model": None}, "base_model is missing: .*; add --model NAME"),
            (
                {"base_modl": "gpt2", "sequence_len": 8},
                "base_model is missing: .*; write 'base_modl' so, or add --model",
            ),
        ],
    )
    def test_a_wrong_value_is_named(self, document: dict[str, Any], rule: str) -> None:
        """With the field, its value and the rule."""
        with pytest.raises(InputError, match=rule):
            _convert(document)

    def test_numbers_may_be_text(self) -> None:
        """YAML takes some for it, and the tools take them."""
        document = HF | {"per_device_train_batch_size": "2", "max_grad_norm": "1e-1"}
        spec = _convert(document).spec

        assert (spec["batch_size"], spec["clip_grad_norm"]) == (2, 0.1)

    def test_a_config_is_bounded(self) -> None:
        """In its depth and in the number of its fields."""
        deep: dict[str, Any] = {}
        for _ in range(MAX_DEPTH + 2):
            deep = {"a": deep}
        with pytest.raises(InputError, match="nested more than"):
            _convert(HF | deep)
        with pytest.raises(InputError, match=f"may have {MAX_FIELDS} fields"):
            _convert(HF | {f"f{number}": 1 for number in range(MAX_FIELDS)})


ZERO: dict[str, Any] = {
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 1.0,
}


class TestDeepspeed:
    """A DeepSpeed file beside a config."""

    def test_its_stage_divides_the_job(self) -> None:
        """Weights are kept in fp32; that it is not PyTorch's own division is said."""
        buffers = {"zero_optimization": ZERO["zero_optimization"] | {"reduce_bucket_size": "auto"}}
        conversion = _convert(HF | {"bf16": True}, deepspeed=ZERO | buffers, world_size=8)

        assert conversion.spec["distributed"] == {"strategy": "zero2", "world_size": 8}
        assert conversion.spec["precision"] == "amp-bf16"
        (doubt,) = [one for one in conversion.assumptions if one.can_matter]
        assert doubt.field == "distributed"
        assert "memgate run --nproc N -- deepspeed SCRIPT" in doubt.why

    @pytest.mark.parametrize("stage", [2, 3])
    def test_an_optimizer_on_the_host_is_named(self, stage: int) -> None:
        """A spec that says so is refused where the job is divided, so this one does not."""
        zero = {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}
        conversion = _convert(HF, deepspeed=zero, world_size=8)

        assert "offload" not in conversion.spec
        (field,) = conversion.unused
        assert field.name == "deepspeed: zero_optimization.offload_optimizer.device"
        assert "the spec has it on the GPU" in field.note
        job = parse_job_spec(dict(conversion.spec))
        assert not list(find_undivided(job))
        assert not list(find_plain_only(job))

    def test_it_makes_a_model_that_is_not_divided_narrow(self) -> None:
        """Stages 0 and 1 have all of it on each GPU."""
        zero = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
        conversion = _convert(HF | {"bf16": True}, deepspeed=zero, world_size=8)

        assert conversion.spec["precision"] == "bf16"

    def test_it_may_be_in_the_config_itself(self) -> None:
        """Its fields bear its name."""
        document = HF | {"deepspeed": {"zero_optimization": {"stage": 0, "overlap_comm": True}}}
        conversion = _convert(document, world_size=2)

        assert conversion.spec["distributed"]["strategy"] == "ddp"
        assert [field.name for field in conversion.unused] == [
            "deepspeed: zero_optimization.overlap_comm"
        ]

    def test_weights_on_the_host_are_where_they_are_divided(self) -> None:
        """And their optimizer is there, too."""
        zero = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
        deepspeed = zero | {"fp16": {"enabled": True}}
        conversion = _convert(HF | {"fp16": True}, deepspeed=deepspeed, world_size=2)

        assert conversion.spec["precision"] == "amp-fp16"
        assert conversion.spec["distributed"]["cpu_offload"] is True
        assert not conversion.unused

    def test_weights_on_the_host_that_are_not_divided_are_named(self) -> None:
        """A spec cannot say that."""
        zero = {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
        conversion = _convert(HF, deepspeed=zero)

        assert [field.note for field in conversion.unused] == [
            "weights are kept in the host's memory"
        ]

    def test_a_file_that_is_not_there_is_named(self) -> None:
        """The job would not be divided in the spec."""
        conversion = _convert(HF | {"deepspeed": "zero3.json"})

        assert [field.name for field in conversion.unused] == ["deepspeed"]
        assert "distributed" not in conversion.spec

    def test_the_file_that_a_config_names(self) -> None:
        """Read by others: this room opens nothing."""
        assert find_deepspeed({"deepspeed": "zero3.json"}) == "zero3.json"
        assert find_deepspeed({"deepspeed": {}}) is None
        assert find_deepspeed([]) is None

    @pytest.mark.parametrize(
        ("zero", "rule"),
        [
            ({"zero_optimization": {"stage": 4}}, "deepspeed: zero_optimization.stage is 4"),
            ({"train_micro_batch_size_per_gpu": 3}, "the trainer says 4, and the two must agree"),
        ],
    )
    def test_what_is_wrong_in_it_is_named(self, zero: dict[str, Any], rule: str) -> None:
        """A wrong stage, or numbers that contradict the trainer."""
        with pytest.raises(InputError, match=rule):
            _convert(HF, deepspeed=zero)


class TestWriting:
    """A spec as YAML."""

    def test_it_is_read_again(self) -> None:
        """With the line for editors first, and comments in it."""
        conversion = _convert(AXOLOTL | {"bf16": "auto", "fsdp": ["full_shard"], "unheard": "a\nb"})
        said = describe_conversion(conversion)
        text = write_spec(conversion.spec, said)

        assert text.startswith(f"{SCHEMA_LINE}\n# assumed: precision")
        assert any(one.startswith("not certain: distributed: left out") for one in said)
        assert "# not in this spec: unheard is" in text
        assert yaml.safe_load(text) == dict(conversion.spec)
        assert read_job_text(text).batch_size == 2

    def test_a_comment_cannot_become_a_field(self) -> None:
        """Whatever a config has in it: line breaks are not written."""
        text = write_spec({"batch_size": 1}, ["evil\nbatch_size: 9\u2028x: 1"])

        assert yaml.safe_load(text) == {"batch_size": 1}

    def test_whole_is_what_is_certain(self) -> None:
        """An assumption that cannot matter takes nothing away."""
        harmless = Conversion(
            kind=ConfigKind.HF, spec={}, fields=(), assumptions=(Assumption(field="a", why="b"),)
        )

        assert harmless.is_whole
