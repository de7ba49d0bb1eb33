"""The sources that decide a job's events, as digests: ``python -m tests.engine_sources`` records.

What changes no event changes no digest: comments, docstrings, formatting, the text of errors.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

from memgate_worker.engines.revision import ENGINE_REVISION

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "data" / "engine_sources.json"

_WORKER = "worker/memgate_worker"
_PATTERNS = (
    f"{_WORKER}/engines/registry.py",
    f"{_WORKER}/engines/traced.py",
    f"{_WORKER}/engines/phantom/**/*",
    f"{_WORKER}/engines/profile/**/*",
    f"{_WORKER}/standins/**/*",
    f"{_WORKER}/hook/**/*",
    f"{_WORKER}/jobs/**/*",
    *(f"memgate/{stage}.py" for stage in ("trace", "blocks", "links", "residents", "rules")),
    *(f"memgate/{stage}.py" for stage in ("orchestration", "extrapolation", "timeline")),
    *(f"memgate/{part}.py" for part in ("optimizers", "phases", "plan", "spans", "weights")),
    *(f"memgate/{part}.py" for part in ("batch_choice", "jobspec/draws", "jobspec/varying")),
)
#: whose fault an error is, and how it is put: no event depends on it
_IGNORED = {"failures.py"}
_SUFFIXES = {".py", ".cpp", ".h", ".json", ".txt"}

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


class _WithoutTexts(ast.NodeTransformer):
    """Drops docstrings, and what errors say."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop a text that stands alone."""
        value = node.value
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Empty the texts of an error."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                inner.value = ""
        return node


def digest_source(path: Path) -> str:
    """Return a digest of what a source does."""
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.dump(_WithoutTexts().visit(ast.parse(text)))
    elif path.suffix in (".cpp", ".h"):
        text = " ".join(_COMMENT.sub(" ", text).split())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_sources() -> dict[str, str]:
    """Return the digest of each source that decides events, by its path."""
    paths = {path for pattern in _PATTERNS for path in ROOT.glob(pattern)}
    return {
        str(path.relative_to(ROOT)): digest_source(path)
        for path in sorted(paths)
        if path.suffix in _SUFFIXES and path.name not in _IGNORED
    }


def main() -> None:
    """Record the sources as those of the present revision."""
    document = {"revision": ENGINE_REVISION, "sources": digest_sources()}
    RECORDED.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
