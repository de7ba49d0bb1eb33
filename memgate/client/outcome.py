"""Two lines in a training script, and memgate learns how accurate it was.

    from memgate import report_when_done
    report_when_done(job_id, "http://memgate:8080")

When the script ends, the most that PyTorch's allocator reserved is reported as the outcome of
the estimate ``job_id``. Standard library only, so that it runs wherever the script does; it reads
the torch that the script has imported and never imports one. Whatever goes wrong is one line on
standard error: a training run must not fail because of it.

The report is sent by a separate process. When an interpreter exits no thread can be started, and
there is no other way to be sure to finish within five seconds: a host name lookup cannot be
interrupted.

Known limitations: the CUDA context is not measured (``is_reserved_only``). Of several processes,
only the first reports (``RANK``). A script that ends with an error other than out-of-memory, or is
killed, reports nothing: it may not have reached its peak.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

#: how long the end of a script may be delayed
TIMEOUT_SECONDS = 5.0


def report_when_done(job_id: str, url: str | None = None, *, api_key: str | None = None) -> None:
    """Report what this process really took, when it ends.

    Args:
        job_id: of the estimate, ``Client.estimate(...).id``.
        url: of the server; ``MEMGATE_URL`` unless given.
        api_key: ``MEMGATE_API_KEY`` unless given.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    watch = _Watch(
        job_id,
        url or os.environ.get("MEMGATE_URL", ""),
        api_key or os.environ.get("MEMGATE_API_KEY", ""),
    )
    sys.excepthook = watch.on_error
    atexit.register(watch.on_end)


class _Watch:
    """Waits for this process to end."""

    def __init__(self, job_id: str, url: str, api_key: str) -> None:
        self._job_id = job_id
        self._url = url
        self._api_key = api_key
        self._process = os.getpid()
        self._hook_before = sys.excepthook
        self._error: BaseException | None = None

    def on_error(self, kind: Any, error: BaseException, traceback: Any) -> None:
        """Remember what the script died of; the previous hook is still called to show it."""
        self._error = error
        self._hook_before(kind, error, traceback)

    def on_end(self) -> None:
        """Report."""
        if os.getpid() != self._process:  # a fork, not the process that trained
            return
        try:
            problem = self._report()
        except Exception as error:  # torch's or the system's: the script itself has succeeded
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if problem:
            sys.stderr.write(f"memgate: no outcome was reported: {problem}\n")

    def _report(self) -> str | None:
        """Measure and send; return what prevents it, if anything does."""
        if not self._url:
            return "no server is named: give its URL, or set MEMGATE_URL"
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return "the script used no GPU"
        ran_out = _ran_out(self._error, torch)
        if self._error is not None and not ran_out:
            return f"the script ended with {type(self._error).__name__}, perhaps before its peak"
        peaks = [torch.cuda.max_memory_reserved(at) for at in range(torch.cuda.device_count())]
        if not max(peaks) and not ran_out:
            return "the script took no memory of a GPU"
        outcome = {
            "job": self._job_id,
            "measured_peak_bytes": max(1, *peaks),
            "is_reserved_only": True,
            "ran_out": ran_out,
            "gpu_product": torch.cuda.get_device_name(peaks.index(max(peaks))),
        }
        return _send_from_another_process(self._url, self._api_key, outcome)


def _ran_out(error: BaseException | None, torch: Any) -> bool:
    """Say whether an error is PyTorch's out-of-memory, or was caused by one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _send_from_another_process(url: str, api_key: str, outcome: dict[str, Any]) -> str | None:
    """Send a report; the key goes through a pipe, so that process listings do not show it."""
    message = json.dumps({"url": url, "api_key": api_key, "outcome": outcome})
    try:
        sent = subprocess.run(
            [sys.executable, "-I", __file__],
            input=message,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the server did not answer in {TIMEOUT_SECONDS:g} s"
    if sent.returncode == 0:
        return None
    lines = sent.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {sent.returncode}"


def main() -> None:
    """Send what standard input says; the exit status reports whether that worked."""
    message = json.load(sys.stdin)
    headers = {"Content-Type": "application/json"}
    if message["api_key"]:
        headers["Authorization"] = f"Bearer {message['api_key']}"
    body = json.dumps(message["outcome"]).encode()
    try:
        request = Request(f"{message['url'].rstrip('/')}/outcomes", body, headers)
        with urlopen(request, timeout=TIMEOUT_SECONDS):
            return
    except HTTPError as error:
        sys.exit(_detail(error))
    except (OSError, ValueError) as error:
        sys.exit(f"the server cannot be reached ({error})")


def _detail(error: HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"


if __name__ == "__main__":
    main()
