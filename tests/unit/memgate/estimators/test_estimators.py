"""Estimators of others, on a job that can be added up by hand."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
from msgspec import structs

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.errors import UnsupportedJobError
from memgate.estimators import ESTIMATORS, JobFacts, Operator, Weight, schedtune
from memgate.estimators.parts import count_states, hold
from memgate.estimators.schedtune import find_features, name_model, predict_peak
from memgate.estimators.schedtune_weights import WEIGHTS
from memgate.estimators.tbem import choose_batches, extrapolate_peak
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.timeline import Category
from memgate.units import MIB

#: two weights of 1 and 2 MiB, the second frozen; three operators in a row: 4, 6 and 2 MiB
FACTS = JobFacts(
    weights=(Weight(MIB // 4, MIB, True), Weight(MIB // 2, 2 * MIB, False)),
    largest_layer=MIB // 2,
    num_layers=2,
    buffer_bytes=512,
    batch_bytes=1024,
    operators=(
        Operator("conv", 4 * MIB, (), (0,)),
        Operator("relu", 6 * MIB, (0,), ()),
        Operator("mm", 2 * MIB, (1,), (0, 1)),
    ),
    output_bytes=2 * MIB,
    tracked_bytes=7 * MIB,
    versions={},
    architectures=(),
)


def _job(**fields: Any) -> JobSpec:
    images = {
        "model": {"source": "torchvision", "name": "vgg16"},
        "input": {"shape": [3, 86, 86]},
        "batch_size": 8,
        "optimizer": {"name": "Adam"},
    }
    return parse_job_spec(images | fields)


LANGUAGE: dict[str, Any] = {
    "model": {"source": "transformers", "class": "GPT2LMHeadModel", "config": {}},
    "input": {"sequence_length": 128},
}


def _requested(name: str, job: JobSpec, facts: JobFacts = FACTS) -> int:
    timeline = ESTIMATORS[name].estimate(job, facts)
    stats = MemoryNeeds(timeline, parse_alloc_conf("")).ample.stats.memory_stats()
    return stats["requested_bytes.all.peak"]


PARAMETERS = 3 * MIB // 4


@pytest.mark.parametrize(
    ("name", "fields", "want_bytes"),
    [
        pytest.param("horus", {}, (3 + 1 + 12) * MIB, id="weights, gradients, activations"),
        pytest.param("accelerate", {}, 16 * PARAMETERS, id="four times the weights"),
        pytest.param(
            "accelerate", {"precision": "amp-bf16"}, 8 * PARAMETERS, id="the states of Adam"
        ),
        pytest.param("deepspeed", {}, 20 * PARAMETERS, id="stage 2 on one GPU"),
        pytest.param(
            "deepspeed",
            {"distributed": {"strategy": "zero2", "world_size": 4}},
            (4 + 4) * PARAMETERS,
            id="stage 2 on four",
        ),
        pytest.param(
            "deepspeed",
            {"distributed": {"strategy": "zero3", "world_size": 9}},
            2 * MIB + 2 * PARAMETERS,
            id="stage 3 on nine, and the largest layer",
        ),
        pytest.param("memtracker", {}, 7 * MIB, id="what was tracked"),
        pytest.param("rule-of-thumb", {}, 1.2 * 6 * MIB, id="weights, gradient, two states, 20 %"),
        pytest.param(
            "rule-of-thumb", {"optimizer": {"name": "SGD"}}, 1.2 * 4 * MIB, id="no states"
        ),
        pytest.param("llmem", LANGUAGE, (3 + 1 + 2 + 12 + 4) * MIB + 1536, id="all and the head"),
        # weights 3, outputs 12, then gradients of the last two operators 8 and of a weight 1
        pytest.param("dnnmem", {}, (3 + 12 + 8 + 1) * MIB + 1536, id="the graph at its peak"),
    ],
)
def test_an_estimator_adds_up_what_its_source_says(
    name: str, fields: dict[str, Any], want_bytes: float
) -> None:
    """As requested, before any rounding but to whole bytes."""
    assert _requested(name, _job(**fields)) == pytest.approx(want_bytes, abs=4)


def test_the_static_graph_gives_back_what_the_backward_pass_is_done_with() -> None:
    """At its end weights, the batch and the gradient of the trained weight are left."""
    timeline = ESTIMATORS["dnnmem"].estimate(_job(), FACTS)

    run = MemoryNeeds(timeline, parse_alloc_conf("")).ample
    left = run.stats.memory_stats()["allocated_bytes.all.current"]
    assert left == pytest.approx(4 * MIB, abs=2048)


def test_llmem_is_for_language_models() -> None:
    """Its parts are those of decoder blocks and their head."""
    with pytest.raises(UnsupportedJobError, match="engine llmem: it is for language models only"):
        ESTIMATORS["llmem"].estimate(_job(), FACTS)


@pytest.mark.parametrize(
    ("optimizer", "want"),
    [
        ({"name": "SGD"}, 0),
        ({"name": "SGD", "kwargs": {"momentum": 0.9}}, 1),
        ({"name": "Adagrad"}, 1),
        ({"name": "bitsandbytes.AdamW8bit"}, 2),
        ({"name": "Adafactor"}, 0),
    ],
)
def test_states_are_those_of_the_optimizer(optimizer: dict[str, Any], want: int) -> None:
    """As large as the weights; of one that is not known, none."""
    assert count_states(_job(optimizer=optimizer)) == want


def test_a_formula_becomes_blocks_that_stay() -> None:
    """One for each part that is something."""
    timeline = hold({Category.PARAMETERS: 10.7, Category.BATCH: 0.0})

    assert [label.category for label in timeline.labels] == [Category.PARAMETERS]
    assert len(timeline.events) == 1


@pytest.mark.parametrize(("batch", "want"), [(2, 100), (4, 140), (10, 260), (1, 80)])
def test_small_batches_are_extrapolated_on_a_line(batch: int, want: int) -> None:
    """Through those of two and four."""
    assert extrapolate_peak((2, 4), (100, 140), batch) == want


def test_a_line_does_not_go_below_nothing() -> None:
    """However steep."""
    assert extrapolate_peak((2, 4), (1, 100), 1) == 0


@pytest.mark.parametrize(("batch", "want"), [(100, (25, 50)), (4, (1, 2)), (1, (1, 2))])
def test_two_batches_are_tested(batch: int, want: tuple[int, int]) -> None:
    """A quarter and half, and never the same twice."""
    assert choose_batches(batch) == want


def test_the_regressor_never_answers_for_a_model_that_it_was_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has weights without the runs of each of its models."""
    job, other = _job(), _job(model={"source": "torchvision", "name": "vgg19"})
    one = (10.0,) + (0.0,) * 7
    monkeypatch.setattr(schedtune, "WEIGHTS", (12.0,) + (0.0,) * 7)
    monkeypatch.setattr(schedtune, "WEIGHTS_WITHOUT", {name_model(job): one})

    assert _requested("schedtune", job) == pytest.approx(exp(10), abs=512)
    assert _requested("schedtune", other) == pytest.approx(exp(12), abs=512)


def test_the_regressor_sees_what_is_known_before_a_run() -> None:
    """As many features as weights; the first is constant."""
    features = find_features(_job(), FACTS)

    assert features[0] == 1.0
    assert len(features) == len(WEIGHTS)
    assert predict_peak(features, (0.0,) * len(features)) == 1.0


def test_every_estimator_says_where_it_is_from_and_what_it_lacks() -> None:
    """A figure of somebody else's method without that is hearsay."""
    for name, about in ESTIMATORS.items():
        assert about.name == name
        assert all((about.source, about.published, about.limits))


def test_the_facts_of_a_job_add_up() -> None:
    """Tied or frozen, each parameter is there once."""
    frozen = structs.replace(FACTS, weights=(Weight(1, 4, False),))

    assert (FACTS.num_parameters, FACTS.weight_bytes) == (PARAMETERS, 3 * MIB)
    assert (FACTS.trained_bytes, frozen.trained_bytes) == (MIB, 0)
    assert FACTS.activation_bytes == 12 * MIB
