"""Configs of trainers -> job specs. Read ``converting`` first; there is a module for each tool."""

from memgate.convert.conversion import Assumption, Beside, ConfigKind, Conversion
from memgate.convert.converting import convert, find_deepspeed
from memgate.convert.fields import FieldUse, Usage
from memgate.convert.writing import SCHEMA_LINE, describe_conversion, write_spec

__all__ = [
    "SCHEMA_LINE",
    "Assumption",
    "Beside",
    "ConfigKind",
    "Conversion",
    "FieldUse",
    "Usage",
    "convert",
    "describe_conversion",
    "find_deepspeed",
    "write_spec",
]
