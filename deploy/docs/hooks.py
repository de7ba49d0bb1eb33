"""Adds to the site what is not in docs/: the commands, the changelog, files that pages link to.

mkdocs calls these functions; `make docs` starts it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from memgate_service.cli.lazy import COMMANDS

_ROOT = Path(__file__).parents[2]
_LINK_OUTSIDE = re.compile(
    r"\]\(\.\./((?:deploy|tests|CONTRIBUTING|LICENSE|README|SECURITY)[^)#\s]*)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here, and the files that pages link to."""
    files.append(File.generated(config, "cli.md", content=_write_commands()))
    changelog = (_ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    pages = [file.content_string for file in files.documentation_pages()]
    for name in sorted({name for page in pages for name in _LINK_OUTSIDE.findall(page)}):
        path = _ROOT / name
        if path.is_file():
            made = File.generated(config, _name_of(name), content=path.read_bytes())
            files.append(made)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the files' copies; name folders, which have none."""
    del page, config

    def point(found: re.Match[str]) -> str:
        name = _name_of(found[1])
        return f"]({name}" if files.get_file_from_path(name) else found[0]

    return re.sub(
        r"\[([^\]]+)\]\(\.\./(deploy/[\w/]*\w)\)", _name_folder, _LINK_OUTSIDE.sub(point, markdown)
    )


def _name_folder(found: re.Match[str]) -> str:
    return found[1] if (_ROOT / found[2]).is_dir() else found[0]


def _name_of(name: str) -> str:
    # a page of Markdown would be rendered, and its own links checked: these are given as they are
    return f"files/{name}.txt" if name.endswith(".md") else f"files/{name}"


def _write_commands() -> str:
    lines = ["# Commands", "", "The options of every command, as `--help` has them.", ""]
    commands = [
        one for each in COMMANDS.values() for one in _walk(f"memgate {each.name}", each.load())
    ]
    for name, command in commands:
        lines += [f"## {name}", "", *_write_help(command), ""]
        rows = [_write_row(one) for one in command.params if not getattr(one, "hidden", False)]
        if rows:
            lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _write_help(command: Any) -> list[str]:
    text = inspect.cleandoc(command.help or "").replace("\f", "").replace("<", "&lt;")
    paragraphs = [" ".join(one.split()) for one in text.replace("\b", "").split("\n\n")]
    return [line for one in paragraphs for line in (one, "")]


def _write_row(parameter: Any) -> str:
    names = ", ".join(f"`{one}`" for one in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name).upper()}`"
    text = " ".join((getattr(parameter, "help", None) or "").split())
    default = parameter.default
    if isinstance(default, str | int | float) and default not in ("", False, True):
        text += f" (default `{default}`)"
    return f"| {names} | {text.replace('|', '&#124;').replace('<', '&lt;')} |"


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    for word in command.list_commands(None):
        inner = command.get_command(None, word)
        if inner is not None and not inner.hidden:
            yield from _walk(f"{name} {word}", inner)
