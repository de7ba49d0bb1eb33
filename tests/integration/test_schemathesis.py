"""Requests made up from the OpenAPI document, thousands of them: never a 5xx, never off it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memgate_worker.queue.keys import Role
from tests.integration.running import idle_worker, make_key, running

#: every check there is but one; the document cannot say which fields of a job go together (a
#: model of timm takes no 'class'), so what follows its schema may still be refused, with 422
_CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]
"""


def _run(redis_url: str, directory: Path, max_examples: int, seed: int) -> int:
    """Run Schemathesis against a service whose queue nobody works on; return how many cases."""
    config = directory / "schemathesis.toml"
    config.write_text(_CONFIG)
    settings = {
        "api_keys": "required",
        "rate_limit": "1000000/minute",
        "max_queued": 1_000_000,
        "max_wait_seconds": 0.02,  # nobody will answer
        "admission_wait_seconds": 0.02,
    }
    key = make_key(redis_url, Role.ADMIN)
    with (
        idle_worker(redis_url),  # so that it is ready
        running(redis_url, directory / "log", **settings) as service,
    ):
        done = subprocess.run(
            [
                *(
                    sys.executable,
                    "-c",
                    "from schemathesis.cli import schemathesis; schemathesis()",
                ),
                *("--config-file", str(config), "run", f"{service.url}/openapi.json"),
                *("--header", f"Authorization: Bearer {key}", "--checks", "all"),
                # DELETE cancels: the job stays, and says so
                *("--exclude-checks", "use_after_free"),
                *("--max-examples", str(max_examples), "--seed", str(seed)),
                *("--request-timeout", "60", "--suppress-health-check", "all"),
            ],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        logged = service.log.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.findall(r'"status": 5\d\d', logged)
    assert '"level": "error"' not in logged
    assert key not in logged
    found = re.search(r"(\d+) generated", done.stdout)
    assert found, done.stdout
    return int(found[1])


def test_hundreds_of_made_up_requests_are_answered_as_documented(
    redis_url: str, tmp_path: Path
) -> None:
    """Each status, content type and schema is in the document; hostile values are refused."""
    assert _run(redis_url, tmp_path, max_examples=5, seed=1) >= 300


@pytest.mark.slow
def test_thousands_of_made_up_requests_are_answered_as_documented(
    redis_url: str, tmp_path: Path
) -> None:
    """As above, for longer: minutes."""
    assert _run(redis_url, tmp_path, max_examples=120, seed=2) >= 2000
