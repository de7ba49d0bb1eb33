"""Lengths and shapes that vary: what may be written, and what is drawn."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import InputSpec, JobSpec, check_supported, parse_job_spec
from memgate.jobspec.draws import draw_largest, interpolate, lognormal, normal
from memgate.jobspec.varying import LengthDistribution, LengthsFile
from memgate.run_key import EngineIdentity, RunKey, RuntimeIdentity

GPT2: dict[str, Any] = {
    "model": {"source": "transformers", "class": "GPT2LMHeadModel"},
    "batch_size": 4,
}
EVEN = {"distribution": "uniform", "shortest": 10, "longest": 100, "batches": 5}


def make_job(given: dict[str, Any], **others: Any) -> JobSpec:
    """Build a job of some input."""
    return parse_job_spec(GPT2 | {"input": given} | others)


def lengths_of(given: Any, batch_size: int = 4) -> list[Any]:
    """Return the lengths of the batches of a field."""
    batches = make_job({"sequence_length": given}).input.list_batches(batch_size)
    return [batch.length for batch in batches]


def refusal_of(given: dict[str, Any], **others: Any) -> str:
    """Return what a person is told about an input."""
    with pytest.raises(InputError) as caught:
        make_job(given, **others)
    return caught.value.message


def test_one_length_is_one_batch() -> None:
    """A plain length is as it was: every batch has it."""
    job = make_job({"sequence_length": 128})

    assert not job.input.varies
    assert job.input.list_batches(4) == (job.input,)


def test_a_list_is_the_batches_in_their_order() -> None:
    """Lists are those of successive batches."""
    assert lengths_of([5, 700, 6]) == [5, 700, 6]


def test_shapes_may_be_listed() -> None:
    """A list of lists is the shapes of successive batches; a text beside them keeps its length."""
    job = make_job({"shape": [[3, 32, 32], [3, 64, 48]], "sequence_length": 7})

    batches = job.input.list_batches(4)

    assert job.input.varies
    assert [(one.length, one.sample_shape) for one in batches] == [
        (7, (3, 32, 32)),
        (7, (3, 64, 48)),
    ]


def test_shapes_may_be_drawn() -> None:
    """The sides that are null vary together; the last batch has the largest."""
    drawn = EVEN | {"dimensions": [3, None, None], "multiple_of": 32, "longest": 128}

    shapes = [one.sample_shape for one in make_job({"shape": drawn}).input.list_batches(2)]

    assert len(shapes) == 6
    assert shapes[-1] == (3, 128, 128)
    assert all(shape and shape[1] == shape[2] and shape[1] % 32 == 0 for shape in shapes)


@pytest.mark.parametrize(
    "given",
    [
        [5, 700],
        EVEN,
        {"distribution": "quantiles", "quantiles": {"0.5": 20}, "longest": 90},
        {"distribution": "quantiles", "quantiles": [1, 20, 90], "longest": 90},
    ],
)
def test_it_survives_the_queue(given: Any) -> None:
    """Written as JSON and read again, a varying input is the same, with and without defaults."""
    job = make_job({"sequence_length": given})

    for unset in (False, True):
        text = job.model_dump_json(by_alias=True, exclude_unset=unset)
        assert JobSpec.model_validate_json(text) == job


def test_the_same_seed_draws_the_same_lengths() -> None:
    """A drawn job is one job: these lengths are part of the answers that are stored."""
    assert lengths_of(EVEN) == [98, 83, 47, 100, 62, 100]
    assert lengths_of(EVEN | {"seed": 1}) != lengths_of(EVEN)


def test_a_larger_batch_has_no_shorter_lengths() -> None:
    """A batch is padded to its longest sample, so lengths grow with it: max-batch relies on it."""
    small, large = lengths_of(EVEN, batch_size=2), lengths_of(EVEN, batch_size=64)

    assert all(one <= other for one, other in zip(small, large, strict=True))
    assert small != large


def test_a_length_of_a_whole_batch_does_not_depend_on_its_size() -> None:
    """With 'per': 'batch' one draw is one batch, as in training at several scales."""
    given = EVEN | {"per": "batch"}

    assert lengths_of(given, batch_size=1) == lengths_of(given, batch_size=64)


def test_buckets_sort_the_samples_of_some_batches() -> None:
    """Long to short within a bucket, and again in the next."""
    drawn = lengths_of(EVEN | {"bucket": 3, "batches": 6})[:-1]

    assert drawn[:3] == sorted(drawn[:3], reverse=True)
    assert drawn[3:] == sorted(drawn[3:], reverse=True)
    assert drawn[3] > drawn[2]


def test_the_largest_of_a_batch_is_distributed_as_it_should_be() -> None:
    """The mean of the largest of n even shares is n / (n + 1), sorted or not."""
    assert mean(draw_largest(4000, 4, seed=3)) == pytest.approx(4 / 5, abs=0.01)
    firsts = draw_largest(4000, 4, seed=3, bucket=2)[::2]
    assert mean(firsts) == pytest.approx(8 / 9, abs=0.01)


def test_distributions_have_the_mean_that_was_given() -> None:
    """Mean and deviation are those of the lengths, of log-normal ones too."""
    shares = [(at + 0.5) / 1000 for at in range(1000)]

    assert mean(normal(share, 200, 50) for share in shares) == pytest.approx(200, rel=0.01)
    assert mean(lognormal(share, 200, 90) for share in shares) == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "want_median"), [("normal", 200), ("lognormal", 182)], ids=["normal", "lognormal"]
)
def test_named_distributions_are_drawn(kind: str, want_median: int) -> None:
    """Half of the lengths are below the median; none is above the longest."""
    given = {"distribution": kind, "mean": 200, "deviation": 90, "longest": 400, "batches": 999}
    drawn = sorted(lengths_of(given, batch_size=1))

    assert drawn[len(drawn) // 2] == pytest.approx(want_median, rel=0.1)
    assert drawn[-1] == 400


def test_quantiles_are_interpolated() -> None:
    """Between two shares lengths lie on a line; the ends are the shortest and the longest."""
    points = [(0.0, 10), (0.5, 20), (1.0, 120)]

    assert [interpolate(share, points) for share in (0, 0.25, 0.5, 0.75, 1, 1.5)] == [
        *(10, 15, 20),
        *(70, 120, 120),
    ]


def test_quantiles_are_drawn() -> None:
    """Half of the samples are no longer than the length at one half."""
    given = {"distribution": "quantiles", "quantiles": {"0.5": 20}, "longest": 90, "batches": 99}
    drawn = sorted(lengths_of(given, batch_size=1))

    assert drawn[len(drawn) // 2] == pytest.approx(20, abs=3)


def test_samples_may_be_padded_to_a_multiple() -> None:
    """Collators pad to multiples of 8: so does a drawn batch, the longest too."""
    assert {length % 8 for length in lengths_of(EVEN | {"multiple_of": 8})} == {0}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (EVEN | {"mean": 3.0}, "a uniform distribution has no 'mean'; leave it out"),
        ({"distribution": "normal", "longest": 9}, "a normal distribution needs 'mean'; add it"),
        (EVEN | {"shortest": 200}, "'shortest' must not exceed 'longest'"),
        (EVEN | {"distribution": "unifomr"}, "did you mean 'uniform'?"),
        (EVEN | {"seeds": 1}, "sequence_length.seeds is 1: there is no such field; did you mean"),
        (
            {"distribution": "quantiles", "quantiles": {"0.5": 30, "0.9": 20}, "longest": 90},
            "lengths in 'quantiles' must grow with the shares",
        ),
        (
            {"distribution": "quantiles", "quantiles": {"1.5": 30}, "longest": 90},
            "input.sequence_length.quantiles.1.5 is '1.5': it must be below 1",
        ),
        ([], "it must have 1 items or more"),
        ([3, "4"], "sequence_length.1 is '4': it must be a whole number; write it without quotes"),
        ("128", "sequence_length is '128': it must be a whole number; write it without quotes: 1"),
        ([1] * 5000, "it must have 4096 items or fewer"),
        ({"file": "lengths.txt"}, "never by the service; ask with the command line or the Python"),
    ],
)
def test_wrong_lengths_are_named(given: Any, want: str) -> None:
    """The field as it was written, the rule, the next step."""
    assert want in refusal_of({"sequence_length": given})


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"shape": 7}, "input.shape is 7: it must be a list"),
        ({"shape": {"file": "shapes.txt"}}, "never by the service"),
        ({"shape": [[3, 4], [3, "5"]]}, "input.shape.1.1 is '5': it must be a whole number"),
        (
            {"shape": [[3, 4], [3, 5]], "sequence_length": [1, 2, 3]},
            "there are 3 lengths of batches and 2 shapes; give as many of one as of the other",
        ),
        ({"sequence_length": [[1, 2]]}, "sequence_length.0 is [1, 2]: it must be a whole number"),
    ],
)
def test_wrong_shapes_are_named(given: Any, want: str) -> None:
    """The same for shapes, and for both together."""
    assert want in refusal_of(given)


def test_the_batches_say_how_many_iterations_there_are() -> None:
    """A number beside them would be ignored, so it is refused."""
    said = refusal_of({"sequence_length": [1, 2]}, iterations=7)

    assert "iterations is 7: the batches of 'input' are run" in said


def test_what_makes_its_own_batches_is_refused() -> None:
    """Packing would not run the batches that are given."""
    with pytest.raises(UnsupportedJobError, match="an input that varies from batch to batch"):
        check_supported(make_job({"sequence_length": [1, 2]}, packing=True))


def test_sorting_has_a_limit_of_our_own() -> None:
    """Too many samples to sort are refused by name, before anything runs."""
    job = make_job({"sequence_length": EVEN | {"bucket": 5}}, batch_size=1 << 20)

    with pytest.raises(UnsupportedJobError, match="memgate sorts 1,048,576 samples at most"):
        check_supported(job)
    with pytest.raises(UnsupportedJobError):
        job.input.list_batches(1 << 20)


def test_other_lengths_are_another_run() -> None:
    """A stored run is only given again for the same batches."""
    made_by = EngineIdentity(version="1", revision=1, runtime=RuntimeIdentity())

    keys = {
        RunKey.of(make_job({"sequence_length": given}), None, engine="", made_by=made_by).digest()
        for given in (64, [64, 65], [65, 64], EVEN, EVEN | {"seed": 1})
    }

    assert len(keys) == 5


def test_the_input_of_one_batch_has_one_size() -> None:
    """Asking a varying input for the size of its one batch is a bug of ours."""
    varying = InputSpec(sequence_length=(1, 2), shape=((3, 4), (3, 5)))

    with pytest.raises(AssertionError):
        assert varying.length
    with pytest.raises(AssertionError):
        assert varying.sample_shape


def test_parts_are_told_apart_by_their_form() -> None:
    """Values that are already parts stay what they are."""
    even = LengthDistribution.model_validate(EVEN)

    assert InputSpec(sequence_length=even).sequence_length == even
    assert LengthsFile(file="a").per == "sample"
