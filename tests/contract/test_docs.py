"""The documents say what is true: names exist, nothing is missing, examples run."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from memgate import errors
from memgate.allocator import alloc_conf, allocators
from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.convert import SCHEMA_LINE, ConfigKind, Usage
from memgate.decision import Decision
from memgate.errors import Fault
from memgate.glossary import GLOSSARY, write_glossary
from memgate.jobspec import JobSpec
from memgate.report import Estimate
from memgate.timeline import Alloc, Category, Free, Timeline
from memgate_service.cli import main as cli
from memgate_service.cli.commands.schema import write_schema
from memgate_service.http.app import create_app
from memgate_service.http.errors import CODE_OF_STATUS
from memgate_service.settings import ServiceSettings
from memgate_worker.settings import WorkerSettings
from tests import spec_page
from tests.builders import mib
from tests.error_classes import all_error_classes
from tests.gpus_page import PAGE, write_page
from tests.model_names import make_page

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def _code_blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _text(name), re.DOTALL)


def test_the_architecture_names_what_exists() -> None:
    """Every `file.py` `name` pair of the reading order is a file with that definition in it."""
    pairs = re.findall(r"`([\w/]+\.py)`\s+`(\w+)`", _text("docs/architecture.md"))
    assert len(pairs) > 15
    for path, name in pairs:
        tree = ast.parse(_text(path))
        defined = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        assert name in defined, f"{path} has no {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_in_a_document_exist(document: Path) -> None:
    """A moved file takes its mention along; a link starts at the document it is in."""
    text = document.read_text()
    named = {
        ROOT / path
        for path in re.findall(r"`((?:memgate|service|worker|tests|docs)/[\w./-]+)`", text)
    }
    links = [target for target in re.findall(r"\]\(([\w./-]+)\)", text) if "//" not in target]
    named |= {document.parent / target for target in links}
    for path in named:
        assert path.exists(), f"{document.name} names {path}"


def test_the_glossary_of_the_docs_is_that_of_the_pages() -> None:
    """One source: memgate/glossary.py. Where they differ, put what it writes into the document."""
    assert _text("docs/glossary.md").partition("\n## ")[2] == write_glossary().removeprefix("## ")


def test_the_list_of_public_models_is_the_table() -> None:
    """Where they differ: python -m tests.model_names."""
    page = _text("docs/models.md")

    assert make_page(page) == page


def test_the_page_of_gpus_is_fresh() -> None:
    """Otherwise: ``python -m tests.gpus_page``."""
    assert PAGE.read_text() == write_page(PAGE.read_text())


def test_the_fields_of_a_job_spec_are_fresh() -> None:
    """Otherwise: ``python -m tests.spec_page``."""
    page = _text("docs/job-spec.md")

    assert spec_page.write_page(page) == page


def test_every_word_of_an_answer_is_in_the_glossary() -> None:
    """Each field of an estimate once, each category, decision and fault; no field that is gone."""
    terms = [term for group in GLOSSARY.values() for term in group]
    names = {term.name for term in terms}
    fields = [field for term in terms for field in term.fields]
    categories = {*Category, "fragmentation", "context", "communication"}
    (fault,) = [term for term in terms if term.name == "fault"]

    assert sorted(fields) == sorted({*Estimate.model_fields, *Estimate.model_computed_fields})
    assert {category.replace("_", " ") for category in categories} <= names
    assert set(Decision) <= names
    assert all(f"{one.value} (" in fault.meaning for one in Fault)


def test_the_glossary_is_found_where_its_words_are_used() -> None:
    """README, the API and the page of a job lead to it; each word that a page links is there."""
    anchors = {term.anchor for group in GLOSSARY.values() for term in group}
    page = _text("service/memgate_service/dashboard/templates/job.html")
    linked = set(re.findall(r'glossary#([\w-]+)"|size_row\("([\w-]+)"', page))
    words = {one or other for one, other in linked}

    assert len(words) > 10
    assert words <= anchors
    for document in ("README.md", "docs/api.md", "docs/dashboard.md"):
        assert "glossary.md)" in _text(document), document


def test_every_setting_is_documented() -> None:
    """Each MEMGATE_* variable is in docs/operations.md, and nothing there is gone."""
    fields = {*ServiceSettings.model_fields, *WorkerSettings.model_fields}
    documented = re.findall(r"^\| `(MEMGATE_\w+)` \|", _text("docs/operations.md"), re.MULTILINE)

    assert sorted(documented) == sorted(f"MEMGATE_{field.upper()}" for field in fields)


def test_every_setting_of_the_slurm_plugins_is_documented() -> None:
    """Each name in settings.lua is in a table of docs/slurm.md, and nothing there is gone."""
    (defaults,) = re.findall(
        r"^local DEFAULTS = \{\n(.+?)^\}", _text("deploy/slurm/memgate/settings.lua"), re.M | re.S
    )
    names = re.findall(r"^  (\w+) = ", defaults, re.MULTILINE)
    tables = re.findall(r"^\| setting \|.+?\n\n", _text("docs/slurm.md"), re.M | re.S)
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()[2:] if row]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]

    assert len(names) > 15
    assert sorted(documented) == sorted(names)


def test_every_metric_is_documented() -> None:
    """Each name in http/metrics.py is in docs/operations.md, as Prometheus shows it."""
    names = set(re.findall(r'"(memgate_\w+)"', _text("service/memgate_service/http/metrics.py")))
    assert len(names) > 15
    for name in names:
        shown = rf"^\| `{name}(_total|_info)?(\{{[\w, ]+\}})?` \|"
        assert re.search(shown, _text("docs/operations.md"), re.MULTILINE), name


def test_every_alarm_is_documented() -> None:
    """Who is woken by one finds what to do."""
    alarms = re.findall(r"- alert: (\w+)", _text("deploy/prometheus/memgate.rules.yml"))
    assert len(alarms) >= 8
    assert all(f"| `{alarm}` |" in _text("docs/operations.md") for alarm in alarms)


def test_every_error_code_is_documented() -> None:
    """Each code is in docs/errors.md, and the tree in errors.py shows each class."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    for error in classes:
        if issubclass(error, errors.MemgateError):
            assert f"`{error.code}`" in _text("docs/errors.md")
            assert error.__name__ in (errors.__doc__ or "")


def _documented_faults() -> dict[str, str]:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\w+) \|", _text("docs/errors.md"), re.MULTILINE)
    assert len(rows) == len({code for code, _ in rows}), "a code stands in one row"
    return dict(rows)


def test_every_error_class_has_its_fault_in_the_table() -> None:
    """Of all packages; the bases, which are never given alone, have no row."""
    documented = _documented_faults()
    assert set(documented.values()) == set(errors.Fault)
    page = _text("docs/errors.md")
    (bases,) = re.findall(r"^The bases of these codes (.+?)\n\n", page, re.M | re.S)
    for kind in all_error_classes():
        if f"`{kind.code}`" not in bases:
            assert documented[kind.code] == kind.fault, kind.__name__


def test_every_code_of_the_service_is_documented() -> None:
    """Each code that a problem document or a failed job can carry is in docs/errors.md."""
    codes = set(CODE_OF_STATUS.values())
    for package in ("service", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            codes |= set(re.findall(r'code\s*=\s*"([A-Z_]+)"', text))
            codes |= set(re.findall(r'problem\(\s*\d+,\s*"([A-Z_]+)"', text))
    assert len(codes) >= 20
    missing = {code for code in codes if f"`{code}`" not in _text("docs/errors.md")}
    assert not missing


def test_every_route_is_in_the_page_on_the_api() -> None:
    """And in none but the words of the document that the service itself gives."""
    for path in create_app(ServiceSettings()).openapi()["paths"]:
        assert path.replace("{job_id}", "{id}") in _text("docs/api.md")


def test_every_kind_and_use_of_a_conversion_is_documented() -> None:
    """Programs read them in the output of ``memgate convert --json``."""
    page = _text("docs/convert.md")

    assert all(f"| `{word}` |" in page for word in (*ConfigKind, *Usage))


def test_every_field_of_the_api_is_described() -> None:
    """By its docstring, the glossary, or http/descriptions.py; parameters, too."""
    document = create_app(ServiceSettings()).openapi()
    fields = {
        f"{name}.{field}": one
        for name, schema in document["components"]["schemas"].items()
        for field, one in schema.get("properties", {}).items()
    }
    parameters = {
        f"{method} {path} {one['name']}": one
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for one in operation.get("parameters", [])
    }

    assert len(fields) > 200
    assert not [name for name, one in (fields | parameters).items() if not one.get("description")]


def test_every_field_of_a_job_spec_is_described_for_editors() -> None:
    """``memgate schema`` has a sentence for each, of all parts."""
    schema = JobSpec.model_json_schema()
    parts = {"JobSpec": schema} | schema["$defs"]
    bare = [
        f"{name}.{field}"
        for name, part in parts.items()
        for field, one in part.get("properties", {}).items()
        if not one.get("description")
    ]

    assert not bare


@pytest.mark.parametrize("name", ["gpt2.yaml"])
def test_an_example_names_the_schema_that_is_beside_it(name: str) -> None:
    """So that editors complete its fields; otherwise: ``python -m tests.spec_page``."""
    schema = ROOT / "deploy" / "examples" / "job.schema.json"

    assert _text(f"deploy/examples/{name}").startswith(f"{SCHEMA_LINE}\n")
    assert SCHEMA_LINE.endswith(f"={schema.name}")
    assert schema.read_text() == write_schema()


def test_every_specification_among_the_examples_is_checked() -> None:
    """What begins like one is in the list above."""
    found = [
        path.name
        for path in (ROOT / "deploy" / "examples").glob("*.yaml")
        if re.search("^model:", path.read_text(), re.MULTILINE)
    ]

    assert found == ["gpt2.yaml"]


def test_every_reason_code_is_documented() -> None:
    """Each reason that an estimate can give is in docs/errors.md."""
    codes = set(re.findall(r'"(FITS|[A-Z]+(?:_[A-Z]+)+)"', _text("memgate/verdict.py")))
    for path in (*(ROOT / "memgate").rglob("*.py"), *(ROOT / "worker").rglob("*.py")):
        codes |= set(re.findall(r'Reason\(\s*code="([A-Z_]+)"', path.read_text()))
    assert len(codes) >= 6
    assert all(f"`{code}`" in _text("docs/errors.md") for code in codes)


def test_every_command_is_in_the_readme() -> None:
    """A stranger finds all of them."""
    for command in cli.app.registered_commands:
        assert f"memgate {command.name}" in _text("README.md") + _text("docs/accuracy.md")


def test_every_allocator_setting_is_documented() -> None:
    """Each key of PYTORCH_ALLOC_CONF that is read is in docs/allocator.md."""
    for key in [*alloc_conf._SETTINGS, "large_segment_size_mb"]:
        assert f"`{key}`" in _text("docs/allocator.md")


def test_the_readmes_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """And prints what its comments say."""
    (example,) = [text for text in _code_blocks("README.md", "python") if "replay" in text]

    exec(compile(example, "README.md", "exec"), {})

    first, second = capsys.readouterr().out.splitlines()
    assert first == "70 1 None"
    assert second.startswith("CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has ")


@pytest.mark.parametrize("document", ["README.md", "docs/client.md"])
def test_the_python_of_a_document_imports_what_there_is(document: str) -> None:
    """Every import of an example works; tests/integration runs the examples whole."""
    blocks = _code_blocks(document, "python")
    imports = [
        ast.unparse(node)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(imports) > len(blocks) / 2

    exec("\n".join(imports), {})


def test_the_documented_third_allocator_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page on writing an allocator shows can be registered and replayed."""
    (example,) = _code_blocks("docs/allocator.md", "python")
    names: dict[str, Any] = {}
    exec(compile(example, "docs/allocator.md", "exec"), names)
    registered = {**allocators.ALLOCATORS, "arena": names["ArenaAllocator"]}
    monkeypatch.setattr(allocators, "ALLOCATORS", registered)
    events = (Alloc(1, mib(30)), Free(1), Alloc(2, mib(30)))

    run = replay(Timeline(events=events), parse_alloc_conf(""), mib(100), allocator_name="arena")

    assert run.peak_reserved_bytes == mib(50)
    assert run.oom is not None
    assert run.oom.event_index == 2


def test_every_make_target_has_a_line_of_help() -> None:
    """``make help`` is complete."""
    targets = re.findall(r"^([a-z-]+):(?!=)(.*)$", _text("Makefile"), re.MULTILINE)
    assert len(targets) > 30
    assert not [name for name, rest in targets if " ## " not in rest]
