"""What pydantic finds, in our own words."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticKnownError
from pydantic_core.core_schema import ErrorType

from memgate.errors import InputError
from memgate.mistakes import RuleError
from memgate.validation import explain_errors, validate

#: as pydantic begins a sentence
PYDANTICS_WORDS = ("Input should", "Value error", "valid integer", "Extra inputs", "Field required")


class _Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    width: int = 1
    kind: Literal["round", "square"] = "round"


class _Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Annotated[int, Field(strict=True, ge=1, le=64, examples=[32])]
    share: Annotated[float, Field(strict=True)] | None = None
    is_new: Annotated[bool, Field(strict=True)] = False
    inner: _Inner = _Inner()
    named: dict[str, _Inner] = {}
    listed: tuple[_Inner, ...] = ()
    called: Annotated[str, Field(alias="class", pattern="^[a-z]+$", max_length=4)] = "a"

    @field_validator("called")
    @classmethod
    def _is_not_x(cls, text: str) -> str:
        if text == "x":
            raise RuleError("it may not be x", "write y", ("y",))
        if text == "z":
            raise ValueError("z is forbidden")
        return text


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"size": 0}, "size is 0: it must be at least 1"),
        ({"size": 65}, "size is 65: it must be at most 64"),
        ({"size": "32"}, "size is '32': it must be a whole number; write it without quotes: 32"),
        ({"size": 32.0}, "size is 32.0: it must be a whole number; write 32"),
        ({"size": 1.5}, "size is 1.5: it must be a whole number"),
        ({"size": True}, "size is true: it must be a whole number"),
        ({"size": None}, "size is null: it must be a whole number"),
        ({"size": "nan"}, "size is 'nan': it must be a whole number"),
        ({"share": "1e-3"}, "share is '1e-3': it must be a number; write it without quotes: 0.001"),
        ({"is_new": "yes"}, "is_new is 'yes': it must be true or false; write true or false,"),
        ({"sizes": 3}, "sizes is 3: there is no such field; did you mean 'size'?"),
        ({"zzz": 3}, "zzz is 3: there is no such field; there are: size, share, is_new, inner,"),
        ({"inner": {"widthh": 3}}, "inner.widthh is 3: there is no such field; did you mean"),
        ({"named": {"a": {"widthh": 3}}}, "named.a.widthh is 3: there is no such field; did you"),
        ({"listed": [{"widthh": 3}]}, "listed.0.widthh is 3: there is no such field; did you mean"),
        ({"inner": {"kind": "rond"}}, "it must be 'round' or 'square'; did you mean 'round'?"),
        ({"inner": 3}, "inner is 3: it must be an object: fields and their values"),
        ({"listed": 3}, "listed is 3: it must be a list"),
        ({"class": "A"}, "class is 'A': it must match the pattern ^[a-z]+$"),
        ({"class": "abcde"}, "class is 'abcde': it must have 4 characters or fewer"),
        ({"class": "x"}, "class is 'x': it may not be x; write y"),
        ({"class": "z"}, "class is 'z': z is forbidden"),
        ({"clas": "z"}, "clas is 'z': there is no such field; did you mean 'class'?"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_explained(change: dict[str, Any], want: str) -> None:
    """The field, the value, the rule and the next step, and none of pydantic's words."""
    with pytest.raises(InputError) as raised:
        validate(_Outer, {"size": 2} | change, what="it")

    assert raised.value.message.startswith(f"it: {want}") or want in raised.value.message
    assert not any(words in raised.value.message for words in PYDANTICS_WORDS)


def test_what_is_missing_is_shown_as_it_may_be_written() -> None:
    """An example is worth more than a rule."""
    with pytest.raises(InputError) as raised:
        validate(_Outer, {}, what="it")

    (mistake,) = raised.value.mistakes
    assert mistake.sentence == 'size is missing: it must be given; add it, such as "size": 32'


def test_a_secret_is_not_shown() -> None:
    """A URL may hold a password."""
    with pytest.raises(ValidationError) as raised:
        _Outer.model_validate({"size": "hidden"})

    (mistake,) = explain_errors(raised.value.errors(), _Outer, secret={"size"})

    assert mistake.sentence == "size is wrong: it must be a whole number"


def test_a_flood_of_mistakes_is_cut() -> None:
    """One byte of a document may make one of them."""
    with pytest.raises(InputError) as raised:
        validate(_Outer, {f"x{number}": 1 for number in range(1000)}, what="it")

    assert len(raised.value.mistakes) == 20
    assert len(raised.value.message) < 2000


#: what pydantic needs to know to write one of its messages
_CONTEXT: dict[str, Any] = {
    "class_name": "A",
    "error": "E",
    "error_type": "E",
    "expected": "'a' or 'b'",
    "method_name": "m",
    "attribute": "a",
    "field_type": "List",
    "min_length": 1,
    "max_length": 2,
    "actual_length": 3,
    "pattern": "x",
    "gt": 1, "ge": 1, "lt": 1, "le": 1, "multiple_of": 2,
    "class": "A",
    "encoding": "utf-8", "encoding_error": "E",
    "tz_expected": 0, "tz_actual": 1,
    "discriminator": "d", "tag": "t", "expected_tags": "u", "expected_version": 4,
    "expected_schemes": "https", "max_digits": 2, "decimal_places": 2, "whole_digits": 2,
    "object": "o", "nested_type": "n", "allowed_schemes": "x", "mode": "m", "function": "f",
}  # fmt: skip


@pytest.mark.parametrize("kind", get_args(ErrorType))
def test_no_kind_of_error_speaks_pydantics_language(kind: Any) -> None:
    """Each kind that pydantic knows, those included that no field of ours can have today."""
    try:
        message = PydanticKnownError(kind, _CONTEXT).message()
    except TypeError:
        message = PydanticKnownError(kind).message()
    error = {"type": kind, "loc": ("a",), "msg": message, "input": "x", "ctx": _CONTEXT}

    (mistake,) = explain_errors([error])

    assert mistake.rule
    assert not mistake.rule.startswith(("Input", "Value error", "Field required", "Extra"))
    assert "should" not in mistake.rule


class _Together(BaseModel):
    size: int = 1
    inner: _Inner = _Inner()

    def model_post_init(self, _: Any) -> None:
        if self.size == 2:
            raise RuleError("inner.width is 1: it must be more beside a size of 2", "write 2")
        if self.size == 3:
            raise RuleError("note: 3 is never good")


class _Owner(BaseModel):
    part: _Together = _Together()


@pytest.mark.parametrize(
    ("document", "want"),
    [
        (
            {"part": {"size": 2, "inner": {"width": 1}}},
            "part.inner.width is 1: it must be more beside a size of 2; write 2",
        ),
        # what nobody wrote cannot be shown as its owner wrote it
        (
            {"part": {"size": 2, "inner": {}}},
            "part is {'size': 2, 'inner': {}}: inner.width is 1: it must be more beside a size of"
            " 2; write 2",
        ),
        (
            {"part": {"size": 2}},
            "part is {'size': 2}: inner.width is 1: it must be more beside a size of 2; write 2",
        ),
        ({"part": {"size": 3}}, "part is {'size': 3}: note: 3 is never good"),
    ],
)
def test_a_rule_about_one_field_of_an_object_names_that_field(
    document: dict[str, Any], want: str
) -> None:
    """A form marks the field; the whole object would say nothing."""
    with pytest.raises(InputError) as raised:
        validate(_Owner, document, what="job")

    assert raised.value.message == f"job: {want}"
