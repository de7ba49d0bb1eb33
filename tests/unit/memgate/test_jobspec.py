"""Job specs: what is accepted, and what a person is told about the rest."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError
from memgate.jobspec import JobSpec, ModelSource, Precision, ZeroGrad, parse_job_spec

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


def test_an_input_of_an_unreadable_model_is_not_held_against_it() -> None:
    """The model is what is wrong."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(VGG16 | {"model": {"source": "hub"}, "input": {}})

    assert "model.source" in raised.value.message
    assert "input" not in raised.value.message.removeprefix(
        "job spec: model.source is 'hub': Input"
    )


@pytest.mark.parametrize(
    ("change", "want_message"),
    [
        ({"batchsize": 4}, "batchsize is no known field"),
        ({"batch_size": 0}, "batch_size is 0: Input should be greater than or equal to 1"),
        ({"batch_size": None}, "batch_size is None: Input should be a valid integer"),
        ({"iterations": 1000}, "iterations is 1000: Input should be less than or equal to 64"),
        ({"zero_grad": "never"}, "zero_grad is 'never': Input should be 'iteration_start'"),
        ({"precision": "fp8"}, "precision is 'fp8': Input should be 'fp32', 'tf32'"),
        ({"input": {}}, "input is {}: give either 'shape' or 'sequence_length'"),
        (
            {"input": {"shape": [3, 8, 8], "sequence_length": 8}},
            "'sequence_length': 8}: give either 'shape' or 'sequence_length'",
        ),
        ({"input": {"shape": [3, -1]}}, "input.shape.1 is -1: Input should be greater"),
        (
            {"model": {"source": "torchvision"}},
            "model is {'source': 'torchvision'}: torchvision takes 'name' and 'kwargs'",
        ),
        (
            {"model": {"source": "transformers"}},
            "transformers takes 'class' and 'config', or a public 'name'",
        ),
        ({"model": {"source": "hub"}}, "model.source is 'hub': Input should be 'torchvision'"),
        (
            {"allocator": "max_split_size_mb:1"},
            "allocator is 'max_split_size_mb:1': allocator setting 'max_split_size_mb:1', max",
        ),
        ({"lora": {"rank": 8}}, "lora is {'rank': 8}: is not supported yet; leave it out"),
        ({"compile": True}, "compile is True: is not supported yet"),
        ({"optimizer": {"name": "x" * 99, "lr": 1}}, "optimizer.lr is no known field"),
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


def test_a_missing_field_is_named() -> None:
    """All problems are told at once."""
    with pytest.raises(InputError) as raised:
        parse_job_spec({"model": VGG16["model"]})

    assert raised.value.message == "job spec: input is missing; batch_size is missing"


def test_a_spec_that_is_no_object_is_refused() -> None:
    """A list, a number, nothing: told as what it is, shortened."""
    with pytest.raises(InputError, match=r"^job spec: the whole is \[1, 1, "):
        parse_job_spec([1] * 100)
    with pytest.raises(InputError, match=r"^job spec: the whole is empty: write an object: fields"):
        parse_job_spec(None)


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
        ({"model": GPT2["model"] | {"config": {"name": "x" * 70_000}}}, "model.config"),
        ({"model": GPT2["model"] | {"config": _nested(100_000)}}, "model.config"),
    ],
)
def test_sizes_have_a_limit(change: dict[str, Any], want: str) -> None:
    """No field may ask for what keeps a worker busy for ever or fills its memory."""
    with pytest.raises(InputError, match=f"job spec: {want} is "):
        parse_job_spec(GPT2 | change)
