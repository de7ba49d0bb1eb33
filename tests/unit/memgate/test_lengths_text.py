"""Files of lengths: lines, CSV and JSON, of samples and of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.client.calls import ask_max_batch
from memgate.errors import InputError
from memgate.given_files import read_lengths
from memgate.jobspec import parse_job_spec
from memgate.jobspec.varying import LengthsFile
from memgate.lengths_text import MAX_LENGTHS_TEXT, replace_file

JOB: dict[str, Any] = {
    "model": {"source": "transformers", "class": "GPT2LMHeadModel"},
    "batch_size": 4,
}


def read(text: str, *, of_shapes: bool = False, **given: Any) -> Any:
    """Read a file of lengths."""
    return replace_file(LengthsFile(file="f", **given), text, of_shapes=of_shapes)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("5\n7\n\n6\n", {}),
        ("[5, 7, 6]", {}),
        ("tokens\n5\n7\n6\n", {}),
        ("id,tokens\na,5\nb,7\nc,6\n", {"column": "tokens"}),
        ("tokens, id\n5,a\n7,b\n6,c\n", {"column": "tokens"}),
    ],
    ids=["lines", "JSON", "with a heading", "CSV", "the first column"],
)
def test_lengths_of_batches_are_read_in_their_order(text: str, given: dict[str, Any]) -> None:
    """One length per line, a column of CSV, or a list in JSON."""
    assert read(text, per="batch", **given) == [5, 7, 6]


def test_lengths_of_samples_become_a_distribution() -> None:
    """Training shuffles: what counts is how they are distributed, and the longest."""
    assert read("9\n3\n5\n", batches=8, bucket=2, multiple_of=4, seed=7) == {
        "distribution": "quantiles",
        "quantiles": [3, 5, 9],
        "shortest": 3,
        "longest": 9,
        "batches": 8,
        "bucket": 2,
        "multiple_of": 4,
        "seed": 7,
    }


def test_long_samples_are_cut() -> None:
    """A limit on tokens cuts samples; it is then the longest, whether one reached it or not."""
    assert read("9\n3\n", longest=5)["quantiles"] == [3, 5]
    assert read("3\n", longest=5)["quantiles"] == [3, 3]


def test_many_lengths_are_thinned_evenly() -> None:
    """Any number of samples fits into a spec, and its ends are kept."""
    quantiles = read("\n".join(map(str, range(1, 5001))))["quantiles"]

    assert (len(quantiles), quantiles[0], quantiles[-1]) == (1024, 1, 5000)
    assert quantiles == sorted(quantiles)


@pytest.mark.parametrize("text", ["3x480x640\n3, 600, 400", "[[3, 480, 640], [3, 600, 400]]"])
def test_shapes_are_read(text: str) -> None:
    """Numbers with anything between them, or lists in JSON."""
    assert read(text, of_shapes=True) == [[3, 480, 640], [3, 600, 400]]


@pytest.mark.parametrize(
    ("text", "given", "want"),
    [
        ("", {}, "there are no lengths in it"),
        ("5\nx\n", {}, "line 2 is 'x', and a length is a whole number"),
        ("[5, true]", {}, "item 2 is 'True', and a length is a whole number"),
        ("5\n0\n", {}, "line 2 is 0, and a length is from 1 to 1,048,576"),
        ("[5, ", {}, "it begins like a list in JSON, and is none"),
        (
            "id,tokens\n1,2\n",
            {"column": "token"},
            "it has no column 'token'; its first line is 'id, tokens'",
        ),
        ("id,tokens\n1\n", {"column": "tokens"}, "line 2 is '', and a length is a whole number"),
        ("", {"column": "tokens"}, "its first line is ''"),
        ("1\n" * 5000, {"per": "batch"}, "it has 5,000 batches, and a job may list 4,096"),
        ("", {"of_shapes": True}, "there are no shapes in it"),
    ],
)
def test_what_is_not_a_length_is_named_with_its_place(
    text: str, given: dict[str, Any], want: str
) -> None:
    """The line or the item, what is there, and the rule."""
    with pytest.raises(InputError, match=want.replace("(", r"\(")):
        read(text, **given)


def test_a_spec_names_a_file_beside_it(tmp_path: Path) -> None:
    """Relative paths begin where the spec is; the result is a spec that any door takes."""
    (tmp_path / "lengths.txt").write_text("5\n7\n")
    given = JOB | {"input": {"sequence_length": {"file": "lengths.txt", "per": "batch"}}}

    read_spec = read_lengths(given, tmp_path)

    assert parse_job_spec(read_spec).input.sequence_length == (5, 7)


def test_a_file_of_shapes_is_read_as_shapes(tmp_path: Path) -> None:
    """The field says which of the two a file holds."""
    (tmp_path / "shapes.txt").write_text("3x4x5\n3x6x7\n")

    read_spec = read_lengths({"input": {"shape": {"file": "shapes.txt"}}}, tmp_path)

    assert read_spec == {"input": {"shape": [[3, 4, 5], [3, 6, 7]]}}


@pytest.mark.parametrize("document", [3, {}, {"input": 3}, {"input": {"sequence_length": 3}}])
def test_other_specs_stay_as_they_are(document: object) -> None:
    """What is wrong with them is said where specs are checked."""
    assert read_lengths(document, Path()) == document


def test_errors_name_the_file(tmp_path: Path) -> None:
    """Missing, too large, or with something else in it."""
    given = {"input": {"sequence_length": {"file": "lengths.txt"}}}
    path = tmp_path / "lengths.txt"
    with pytest.raises(InputError, match=r"lengths\.txt: No such file"):
        read_lengths(given, tmp_path)
    path.write_text("5\nabc\n")
    with pytest.raises(InputError, match=r"lengths\.txt: line 2 is 'abc'"):
        read_lengths(given, tmp_path)
    with path.open("wb") as stream:
        stream.truncate(MAX_LENGTHS_TEXT + 1)
    with pytest.raises(InputError, match=r"lengths\.txt: a file of lengths may have"):
        read_lengths(given, tmp_path)


def test_a_client_sends_lengths_and_no_file(tmp_path: Path) -> None:
    """A service reads no files, so the client does."""
    path = tmp_path / "lengths.txt"
    path.write_text("5\n7\n")
    given = JOB | {"input": {"sequence_length": {"file": str(path), "per": "batch"}}}

    call = ask_max_batch(given, "t4", engine="auto")

    assert call.content is not None
    assert b'"sequence_length": [5, 7]' in call.content
