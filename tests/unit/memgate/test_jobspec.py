"""Job specs: what is accepted, and what a person is told about the rest."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import Fault, InputError, UnsupportedAllocatorError, UnsupportedJobError
from memgate.jobspec import (
    JobSpec,
    ModelSource,
    ModelSpec,
    Precision,
    ZeroGrad,
    check_supported,
    parse_job_spec,
)
from memgate.spec_text import read_text

VGG16: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "vgg16", "kwargs": {"num_classes": 1000}},
    "input": {"shape": [3, 86, 86], "dtype": "float32"},
    "batch_size": 480,
    "loss": "cross_entropy",
    "optimizer": {"name": "Adagrad", "kwargs": {"lr": 0.001}},
    "zero_grad": "before_backward",
    "iterations": 4,
}
GPT2: dict[str, Any] = {
    "model": {"source": "transformers", "class": "GPT2LMHeadModel", "config": {"n_layer": 2}},
    "input": {"sequence_length": 128},
    "batch_size": 8,
}


def test_the_contracts_example_is_read() -> None:
    """Every field of the documented example has its place."""
    spec = parse_job_spec(VGG16)

    assert spec.model.source is ModelSource.TORCHVISION
    assert spec.input.shape == (3, 86, 86)
    assert spec.zero_grad is ZeroGrad.BEFORE_BACKWARD
    assert spec.optimizer.kwargs == {"lr": 0.001}


def test_what_is_not_said_has_a_default() -> None:
    """A spec needs a model, an input and a batch size."""
    spec = parse_job_spec(GPT2)

    assert spec.model.class_name == "GPT2LMHeadModel"
    assert (spec.optimizer.name, spec.precision, spec.iterations) == ("SGD", Precision.FP32, 4)


def test_a_spec_survives_the_queue() -> None:
    """Written as JSON and read again, it is the same."""
    spec = parse_job_spec(GPT2)

    assert JobSpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec


def test_a_model_of_timm_has_a_shape_of_its_own() -> None:
    """Nothing need be said about its input; timm knows what it is trained with."""
    spec = parse_job_spec(VGG16 | {"model": {"source": "timm", "name": "vgg16"}, "input": {}})

    assert spec.input.is_empty
    assert not parse_job_spec(GPT2).input.is_empty


def test_tensors_are_named() -> None:
    """What a model takes can be described tensor by tensor."""
    tensors = {"input_ids": {"shape": [64], "dtype": "int64"}, "weight": {"shape": []}}
    spec = parse_job_spec(GPT2 | {"input": {"tensors": tensors}})

    assert spec.input.tensors["input_ids"].shape == (64,)
    assert spec.input.tensors["weight"].dtype == "float32"
    assert not spec.input.is_empty


@pytest.mark.parametrize(
    ("given", "want_message"),
    [
        (
            {"tensors": {"x": {"shape": [3]}}, "sequence_length": 8},
            "'tensors' are given instead of 'shape' and 'sequence_length'; leave those out",
        ),
        ({"tensors": {"x": {"shap": [3]}}}, "input.tensors.x.shap"),
        ({"tensors": {"x": {"shape": [0]}}}, "input.tensors.x.shape.0 is 0"),
        ({"tensors": {"x": {"shape": [1], "dtype": "float"}}}, "input.tensors.x.dtype is 'float'"),
        ({"tensors": {str(i): {"shape": [1]} for i in range(33)}}, "input.tensors"),
        ({"tensor": {}}, "did you mean 'tensors'?"),
    ],
)
def test_named_tensors_are_checked(given: dict[str, Any], want_message: str) -> None:
    """Each mistake is found under the tensor's name."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(GPT2 | {"input": given})

    assert want_message in raised.value.message


def test_models_of_images_take_no_tensors() -> None:
    """Their one input has a shape and no name."""
    with pytest.raises(InputError, match="torchvision's models take 'shape'"):
        parse_job_spec(VGG16 | {"input": {"tensors": {"x": {"shape": [3, 8, 8]}}}})


def test_an_input_of_an_unreadable_model_is_not_held_against_it() -> None:
    """The model is what is wrong."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(VGG16 | {"model": {"source": "hub"}, "input": {}})

    assert "model.source" in raised.value.message
    assert "input" not in raised.value.message


@pytest.mark.parametrize(
    ("change", "want_message"),
    [
        ({"batchsize": 4}, "batchsize is 4: there is no such field; did you mean 'batch_size'?"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"batch_size": None}, "batch_size is null: it must be a whole number"),
        ({"iterations": 1000}, "iterations is 1000: it must be at most 64"),
        (
            {"zero_grad": "never"},
            "zero_grad is 'never': it must be 'iteration_start', 'before_backward' or",
        ),
        ({"precision": "fp8"}, "precision is 'fp8': it must be 'fp32', 'tf32'"),
        ({"input": {}}, "input is {}: torchvision's models take 'shape'"),
        (
            {"input": {"shape": [3, 8, 8], "sequence_length": 8}},
            "'sequence_length': 8}: torchvision's models take 'shape'",
        ),
        ({"input": {"shape": [3, -1]}}, "input.shape.1 is -1: it must be at least 1"),
        (
            {"model": {"source": "torchvision"}},
            "model is {'source': 'torchvision'}: torchvision takes 'name' and 'kwargs'",
        ),
        (
            {"model": {"source": "transformers"}},
            "transformers takes 'class' and 'config', a public 'name', or both",
        ),
        (
            {"model": {"source": "transformers", "config": {"architectures": ["A", "B"]}}},
            "add 'class' or 'name', or give a whole config.json as 'config'",
        ),
        (
            {"model": {"source": "timm", "name": "x", "config": {"a": 1}}},
            "write what its constructor takes in 'kwargs'",
        ),
        (
            {"model": {"source": "transformers", "name": "gpt2", "kwargs": {"a": 1}}},
            "write what is in 'kwargs' in 'config'",
        ),
        (
            {"model": {"source": "hub"}},
            "model.source is 'hub': it must be 'torchvision', 'timm', 'transformers' or",
        ),
        (
            {"allocator": "max_split_size_mb:1"},
            "allocator is 'max_split_size_mb:1': allocator setting 'max_split_size_mb:1', max",
        ),
        ({"allocator": "expandable_segment:True"}, "did you mean 'expandable_segments'?"),
        (
            {"optimizer": {"name": "x" * 99, "lr": 1}},
            "optimizer.lr is 1: there is no such field; there are: name, kwargs",
        ),
        ({"model": {"source": "timm", "namee": "x"}}, "model.namee is 'x': there is no such field"),
        ({"model": {"source": "timm", "name": "x", "clas": "y"}}, "did you mean 'class'?"),
        ({"batch_size": "32"}, "batch_size is '32': it must be a whole number; write it without"),
        ({"batch_size": 32.0}, "batch_size is 32.0: it must be a whole number; write 32"),
        ({"channels_last": "true"}, "channels_last is 'true': it must be true or false"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_rule(
    change: dict[str, Any], want_message: str
) -> None:
    """A person can mend it without reading our code."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(VGG16 | change)

    assert raised.value.message.startswith("job spec: ")
    assert want_message in raised.value.message


@pytest.mark.parametrize(
    ("model", "architecture", "title"),
    [
        ({"class": "A", "config": {"architectures": ["B"]}}, "A", "A"),
        ({"config": {"architectures": ["B"], "model_type": "b"}}, "B", "B"),
        ({"name": "gpt2"}, None, "gpt2"),
        ({"name": "gpt2", "config": {"architectures": []}}, None, "gpt2"),
        ({"name": "gpt2", "config": {"architectures": [1]}}, None, "gpt2"),
        ({"name": "gpt2", "config": {"architectures": "B"}}, None, "gpt2"),
    ],
)
def test_a_whole_config_names_its_class(
    model: dict[str, Any], architecture: str | None, title: str
) -> None:
    """Unless the spec does; a model's name has our own table's class."""
    spec = ModelSpec.model_validate({"source": "transformers"} | model)

    assert (spec.architecture, spec.title) == (architecture, title)


def test_a_config_json_is_not_a_job() -> None:
    """What it is and where it goes is said, instead of every field that it lacks."""
    with pytest.raises(InputError, match="of a model, not a job"):
        parse_job_spec({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})


def test_a_missing_field_is_named() -> None:
    """All problems are told at once."""
    with pytest.raises(InputError) as raised:
        parse_job_spec({"model": VGG16["model"]})

    assert raised.value.message == (
        "job spec: 2 mistakes:"
        ' (1) input is missing: it must be given; add it, such as "input": {"shape": [3, 224, 224]}'
        ' or "input": {"sequence_length": 512}'
        ' (2) batch_size is missing: it must be given; add it, such as "batch_size": 32'
    )


def test_a_spec_that_is_no_object_is_refused() -> None:
    """A list, a number, nothing: told as what it is, shortened."""
    with pytest.raises(InputError, match=r"^job spec: the whole is \[1, 1, "):
        parse_job_spec([1] * 100)
    with pytest.raises(
        InputError, match=r"^job spec: the whole is null: it must be an object: fields"
    ):
        parse_job_spec(None)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"distributed": {"strategy": "fsdp2", "world_size": 8}, "ema": True}, "ema is true: "),
    ],
)
def test_what_cannot_be_run_yet_is_no_mistake_of_the_spec(
    change: dict[str, Any], want: str
) -> None:
    """Ours, and said so: leaving it out would be the answer to another question."""
    spec = parse_job_spec(VGG16 | change)

    with pytest.raises(UnsupportedJobError) as raised:
        check_supported(spec)

    assert raised.value.fault is Fault.UNSUPPORTED
    assert f"job spec: {want}memgate cannot run this yet with distributed" in raised.value.message
    assert "leave it out" not in raised.value.message


def test_an_allocator_that_is_not_simulated_is_no_mistake_of_the_spec() -> None:
    """PyTorch takes it, so the job is right: a gate must not refuse it."""
    spec = parse_job_spec(VGG16 | {"allocator": "backend:cudaMallocAsync"})

    with pytest.raises(UnsupportedAllocatorError, match="cudaMallocAsync is not simulated"):
        check_supported(spec)


def test_what_is_switched_off_can_be_run() -> None:
    """False, nothing and empty are as good as not there."""
    check_supported(parse_job_spec(VGG16 | {"lora": None, "distributed": None, "compile": False}))


def test_a_companion_has_no_companion() -> None:
    """It would be left out, and the answer be for another job."""
    alone = {"name": "AdamW"}
    optimizer = {"name": "Muon", "companion": alone | {"companion": alone}}

    with pytest.raises(InputError, match=r"^job spec: optimizer is .*no companion of its own"):
        parse_job_spec(VGG16 | {"optimizer": optimizer})


def test_quantised_weights_need_an_adapter() -> None:
    """They cannot be trained themselves."""
    adapter = {"lora": {"rank": 8}}

    spec = parse_job_spec(VGG16 | adapter | {"quantization": "nf4"})
    same = parse_job_spec(VGG16 | adapter | {"quantization": {"method": "nf4"}})
    assert spec.quantization == same.quantization
    with pytest.raises(InputError, match="quantised weights cannot be trained; add 'lora'"):
        parse_job_spec(VGG16 | {"quantization": "nf4"})


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "0.0001", "+1.0e-4"])
def test_numbers_of_yaml_are_those_of_json(text: str) -> None:
    """YAML 1.1 alone would take 1e-4 for text, and an optimizer would refuse it."""
    assert read_text(f"lr: {text}") == {"lr": 0.0001}


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"gradient_accumulation_steps": 1 << 40}, "gradient_accumulation_steps"),
        ({"batch_size": (1 << 20) + 1}, "batch_size"),
        ({"input": {"sequence_length": 1 << 29}}, "input.sequence_length"),
        ({"input": {"shape": [3, 1 << 21, 1]}}, "input.shape.1"),
        ({"input": {"shape": [1] * 9}}, "input.shape"),
        ({"optimizer": {"kwargs": {"lr": 1e12}}}, "optimizer.kwargs"),
        ({"model": GPT2["model"] | {"config": {"n_layer": 10**12}}}, "model.config"),
        ({"model": GPT2["model"] | {"config": {"sizes": [1, {"a": 1 << 40}]}}}, "model.config"),
        ({"model": GPT2["model"] | {"config": {"name": "x" * 140_000}}}, "model.config"),
        ({"model": GPT2["model"] | {"config": _nested(100_000)}}, "model.config"),
    ],
)
def test_sizes_have_a_limit(change: dict[str, Any], want: str) -> None:
    """No field may ask for what keeps a worker busy for ever or fills its memory."""
    with pytest.raises(InputError, match=f"job spec: {want} is "):
        parse_job_spec(GPT2 | change)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"trainer": "trl-stf"}, "'trl-sft'"),
        ({"attention": "flsah"}, "'flash'"),
        ({"precision": "amp-bf61"}, "'amp-bf16'"),
        ({"quantization": "nf5", "lora": {}}, "'nf4'"),
        ({"quantization": {"method": "nf4", "doubles": True}, "lora": {}}, "'double'"),
        ({"lora": {"rnk": 4}}, "'rank'"),
        ({"lora": {"target_module": "all-linear"}}, "'target_modules'"),
        ({"model": {"source": "transformer", "class": "GPT2LMHeadModel"}}, "'transformers'"),
        ({"model": {"source": "transformers", "clas": "GPT2LMHeadModel"}}, "'class'"),
        ({"input": {"seqence_length": 16}}, "'sequence_length'"),
        ({"optimizer": {"names": "AdamW"}}, "'name'"),
        ({"eval": {"batchsize": 8}}, "'batch_size'"),
        ({"offload": {"optimiser": True}}, "'optimizer'"),
        ({"batchsize": 8}, "'batch_size'"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(change: dict[str, Any], want: str) -> None:
    """Names of fields and of values, at every depth."""
    with pytest.raises(InputError) as caught:
        parse_job_spec(GPT2 | change)

    assert f"did you mean {want}" in caught.value.message


def test_a_field_that_is_there_twice_is_refused() -> None:
    """One of the two would be ignored, and the answer that of another job."""
    with pytest.raises(InputError, match=r"the field 'batch_size' is there twice in line 2"):
        read_text("batch_size: 2\nbatch_size: 64\n")


def test_scales_of_8_bits_are_not_quantised_twice() -> None:
    """A switch without effect is refused."""
    twice = {"lora": {}, "quantization": {"method": "int8", "double": True}}

    with pytest.raises(
        InputError, match=r"quantization\.double is true: the scales of 4-bit weights"
    ):
        parse_job_spec(GPT2 | twice)
