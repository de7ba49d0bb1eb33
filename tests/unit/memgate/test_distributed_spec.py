"""``distributed`` in a job spec: what goes together, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import DistributedSpec, Strategy, check_supported, parse_job_spec
from memgate.jobspec.distributed import fields_for

GPT2: dict[str, Any] = {
    "model": {"source": "transformers", "name": "gpt2"},
    "input": {"sequence_length": 128},
    "batch_size": 2,
}


def _divided(**fields: Any) -> DistributedSpec:
    given = {"strategy": "fsdp2", "world_size": 8} | fields
    found = parse_job_spec(GPT2 | {"distributed": given}).distributed
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"strategy": "fdsp"}, r"distributed.strategy is 'fdsp': .*did you mean 'fsdp'"),
        ({"worldsize": 2}, r"distributed.worldsize is 2: there is no such field; did you mean"),
        (
            {"strategy": "ddp", "wrap": "size"},
            "distributed.wrap is 'size': it means nothing with ddp",
        ),
        ({"gpus_per_node": 16}, "gpus_per_node is 16: a machine has 16, and the job 8 in all"),
        ({"gpus_per_node": 3}, "world_size is 8: 8 GPUs do not fill machines of 3"),
        ({"strategy": "hsdp", "replicas": 3}, "replicas is 3: 3 does not divide the 8 GPUs"),
        ({"tp_degree": 3}, "tp_degree is 3: 3 does not divide the 8 GPUs"),
        ({"strategy": "tp", "tp_degree": 4}, "tp_degree is 4: of 8 GPUs, 4 divide each layer"),
        ({"reshard_after_forward": 3}, "reshard_after_forward is 3: 3 does not divide"),
        ({"strategy": "fsdp", "reshard_after_forward": 4}, "only fsdp2 takes a number"),
        (
            {"wrap": "none", "wrap_classes": ["GPT2Block"]},
            r"wrap_classes is \[\'GPT2Block\'\]: they are for",
        ),
        ({"min_num_params": 1000}, "min_num_params is 1000: it is for 'wrap: size'"),
        ({"reshard_after_forward": "no"}, "reshard_after_forward is 'no': it must be true or"),
        ({"reshard_after_forward": 0}, "reshard_after_forward is 0: it must be at least 1"),
        ({"strategy": "hsdp", "use_orig_params": True}, "FSDP2 has no other parameters"),
        ({"mixed_precision": {"buffer": "bf16"}}, "FSDP2 leaves buffers as they are"),
        ({"no_sync": True}, "no_sync is true: gradients are sent in every step, since each has"),
    ],
)
def test_what_means_nothing_is_refused(fields: dict[str, Any], want: str) -> None:
    """By its name, with what to do instead: a field is never left out in silence."""
    with pytest.raises(InputError, match=want):
        _divided(**fields)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, (8, 1)),
        ({"world_size": 2}, (2, 1)),
        ({"world_size": 12}, (6, 2)),
        ({"world_size": 512}, (8, 64)),
        ({"world_size": 8, "gpus_per_node": 4}, (4, 2)),
    ],
)
def test_gpus_fill_their_machines(fields: dict[str, Any], want: tuple[int, int]) -> None:
    """As many in each, eight at most unless a spec says it."""
    divided = _divided(**fields)

    assert (divided.node_size, divided.num_nodes) == want


def test_what_is_not_given_is_known() -> None:
    """As torch and people have it by default."""
    usual = _divided()
    tensors = _divided(strategy="tp")
    copies = _divided(strategy="hsdp", world_size=16)

    assert (usual.bucket_mb, usual.least_parameters, usual.num_microbatches) == (25, 10**8, 8)
    assert (usual.tensor_degree, tensors.tensor_degree, copies.num_replicas) == (1, 8, 2)
    assert (usual.pipeline_schedule, usual.stages_per_rank) == ("1f1b", 1)
    assert _divided(strategy="pp", schedule="interleaved-1f1b").stages_per_rank == 2
    assert usual.drops_weights
    assert not _divided(strategy="zero2").drops_weights
    assert not _divided(reshard_after_forward=False).drops_weights


@pytest.mark.parametrize(
    ("job", "want"),
    [
        ({"compile": True}, "compile is true: memgate cannot run this yet with distributed"),
        ({"offload": {"optimizer": True}}, "offload is "),
        ({"save": True}, "save is true: "),
        ({"eval": {"generate": 8}}, r"eval is \{'generate': 8\}: "),
        (
            {"trainer": "lightning"},
            "distributed.strategy is 'fsdp2': .* with the trainer lightning",
        ),
    ],
)
def test_what_cannot_be_divided_yet_is_named(job: dict[str, Any], want: str) -> None:
    """The spec is right, and memgate says that it cannot."""
    spec = parse_job_spec(GPT2 | {"distributed": {"strategy": "fsdp2", "world_size": 8}} | job)

    with pytest.raises(UnsupportedJobError, match=want):
        check_supported(spec)


@pytest.mark.parametrize(
    ("divided", "job", "want"),
    [
        ({"strategy": "pp"}, {"precision": "amp-bf16"}, "precision is 'amp-bf16': "),
        ({"strategy": "pp"}, {"trainer": "hf"}, "distributed.strategy is 'pp': "),
        ({"strategy": "pp"}, {"eval": {}}, "eval is "),
        ({"strategy": "zero1"}, {"save": True}, "save is true: "),
        ({"strategy": "tp"}, {"lora": {"rank": 8}}, "lora is "),
        ({"strategy": "tp"}, {"clip_grad_norm": 1.0}, "clip_grad_norm is 1.0: "),
        (
            {"strategy": "fsdp", "mixed_precision": {"param": "bf16"}},
            {"trainer": "hf"},
            "distributed.mixed_precision is .* with the trainer hf",
        ),
    ],
)
def test_some_strategies_can_do_less(
    divided: dict[str, Any], job: dict[str, Any], want: str
) -> None:
    """Stages, divided layers, a divided optimizer, the trainers of libraries."""
    spec = parse_job_spec(GPT2 | {"distributed": {"world_size": 8} | divided} | job)

    with pytest.raises(UnsupportedJobError, match=want):
        check_supported(spec)


def test_limits_of_ours_are_no_mistakes_and_defaults_are_told_as_such() -> None:
    """Nobody wrote that gradients are clipped, and nobody made a mistake."""
    divided = {"strategy": "tp", "world_size": 2}
    spec = parse_job_spec(GPT2 | {"distributed": divided, "trainer": "hf"})

    with pytest.raises(UnsupportedJobError) as raised:
        check_supported(spec)

    assert "mistakes" not in raised.value.message
    assert "2 things that memgate cannot do: (1)" in raised.value.message
    assert "clip_grad_norm is 1.0 by default: memgate cannot run this" in raised.value.message


def test_layers_of_transformers_alone_are_divided() -> None:
    """Others have no plan for it."""
    vgg = {"model": {"source": "torchvision", "name": "vgg16"}, "input": {"shape": [3, 64, 64]}}
    spec = parse_job_spec(GPT2 | vgg | {"distributed": {"strategy": "tp", "world_size": 2}})

    with pytest.raises(UnsupportedJobError, match="which is for models of transformers"):
        check_supported(spec)


def test_what_two_strategies_share_is_kept() -> None:
    """A plan tries others than the job's own."""
    given = _divided(mixed_precision={"param": "bf16"}, reshard_after_forward=False)

    assert fields_for(given, Strategy.FSDP2) == {"mixed_precision": {"param": "bf16"}}
    assert fields_for(given, Strategy.DDP) == {}
    assert fields_for(None, Strategy.DDP) == {}
