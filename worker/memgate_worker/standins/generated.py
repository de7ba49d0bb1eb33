"""Names of one of NVIDIA's libraries -> C++ that answers them, and a script for the linker."""

from __future__ import annotations

from collections.abc import Iterable

from memgate_worker.standins import symbols
from memgate_worker.standins.imports import Symbol


def generate_source(library: str, wanted: Iterable[Symbol]) -> str:
    """Return C++ that answers each symbol as `symbols.py` says, whatever its arguments."""
    is_data: dict[str, bool] = {}
    for symbol in wanted:
        is_data[symbol.name] = symbol.is_data or is_data.get(symbol.name, False)
    lines = [
        f"// Generated: the symbols of {library} that have no code of their own.",
        'extern "C" {',
        "long memgate_phantom_refuse(const char*, long);",
        "const char* memgate_phantom_last_refusal();",
        "void memgate_phantom_count_launch();",
        *(_generate_symbol(library, name, data) for name, data in is_data.items()),
    ]
    return "\n".join([*lines, "}", ""])


def _generate_symbol(library: str, name: str, is_data: bool) -> str:
    if is_data:
        # Its size is not recorded on the importing side; zeros for as much as any table needs.
        return f"alignas(64) char {name}[4096];"
    if symbols.LAUNCHES.fullmatch(name):
        return f"long {name}() {{ memgate_phantom_count_launch(); return 0; }}"
    if symbols.HARMLESS.fullmatch(name):
        return f"long {name}() {{ return 0; }}"
    if symbols.RETURNS_ERROR_TEXT.fullmatch(name):
        return f"const char* {name}() {{ return memgate_phantom_last_refusal(); }}"
    status = symbols.REFUSAL_STATUS.get(library, symbols.OTHER_REFUSAL_STATUS)
    if symbols.RETURNS_POINTER.fullmatch(name):
        status = 0
    return f'long {name}() {{ return memgate_phantom_refuse("{name}", {status}); }}'


def version_script(modelled: set[str], wanted: Iterable[Symbol]) -> str:
    """Return a linker script that gives each symbol its version and hides everything else."""
    names_of_version: dict[str, set[str]] = {}
    for symbol in wanted:
        names_of_version.setdefault(symbol.version, set()).add(symbol.name)
    versioned = sorted(version for version in names_of_version if version)
    asked_for = {symbol.name for symbol in wanted}
    default = versioned[0] if versioned else ""
    names_of_version.setdefault(default, set()).update(modelled - asked_for)
    if versioned:
        # A name asked for both with and without a version is found by both under the version.
        with_version = set().union(*(names_of_version[version] for version in versioned))
        names_of_version[default] |= names_of_version.pop("", set()) - with_version
    blocks = []
    for version, names in sorted(names_of_version.items()):
        listed = "".join(f" {name};" for name in sorted(names))
        blocks.append(f"{version} {{ {'global:' + listed if names else ''} }};")
    blocks[0] = blocks[0].replace(" };", " local: *; };")
    return "\n".join([*blocks, ""])
