"""All programs of memgate with real workers, and a browser: for tests, benches and screenshots."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, Playwright

from tests.parts import find_part
from tests.running import answers, running, serving, wait_until
from tests.valkey import running_valkey

#: no word to anybody: what a browser does by itself is switched off
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

#: small and quick, and yet a network with layers, an optimizer with state and four iterations
JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 16,
    "optimizer": {"name": "AdamW"},
}

#: a worker runs a job in about a second; a busy machine in more
PATIENCE = 240_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A service that runs, and its queue."""

    url: str
    redis_url: str

    def ask(self, path: str, body: object = None, wait: float = 60) -> Any:
        """Ask the API; JSON in, JSON out."""
        headers = {"Content-Type": "application/json", "Prefer": f"wait={wait:.0f}"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.url}{path}", data, headers), timeout=120) as answer:
            return json.load(answer)

    def estimate(self, gpu: str = "rtx-3060", **changes: Any) -> str:
        """Have a job estimated; return its id."""
        headers = {"Content-Type": "application/json", "Prefer": "wait=60"}
        body = json.dumps({"job": JOB | changes, "gpu": gpu}).encode()
        try:
            with urlopen(Request(f"{self.url}/estimate", body, headers), timeout=120) as answer:
                job = str(answer.headers["location"]).rpartition("/")[2]
            self.wait_for(job)
            return job
        except HTTPError as error:  # it has failed, and is a job nonetheless
            with error:
                return str(json.load(error)["job"])

    def wait_for(self, job: str) -> None:
        """Wait until a job is over."""
        wait_until(lambda: not self._is_open(job), "the job is over", 300)

    def _is_open(self, job: str) -> bool:
        return self.ask(f"/jobs/{job}")["state"] in ("queued", "running")


@contextmanager
def open_browser(playwright: Playwright) -> Iterator[Browser]:
    """Start Debian's Chromium."""
    browser = playwright.chromium.launch(
        executable_path=find_part("chromium"), args=BROWSER_ARGUMENTS
    )
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def serve_site(
    home: Path, *, num_workers: int = 1, redis_url: str | None = None, **settings: str
) -> Iterator[Site]:
    """Start a Valkey, workers and a service; without workers, nobody waits for them."""
    with ExitStack() as stack:
        if redis_url is None:
            redis_url = stack.enter_context(running_valkey())
        for number in range(num_workers):
            log = home / f"worker-{number}.log"
            stack.enter_context(running("memgate_worker", log, redis_url=redis_url))
        log = home / "service.log"
        url = stack.enter_context(serving(log, redis_url=redis_url, **settings)).url  # type: ignore[arg-type]
        probe = "readyz" if num_workers else "healthz"
        wait_until(lambda: answers(f"{url}/{probe}"), "the service answers", 180)
        yield Site(url=url, redis_url=redis_url)


_DROP = """async ({data, name}) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.getElementById("drop").dispatchEvent(
    new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer: transfer}));
}"""

#: how many of the points of a chart are painted, by their distance from the background


def drop_file(page: Page, path: Path) -> None:
    """Drop a file as a hand would."""
    data = base64.b64encode(path.read_bytes()).decode()
    page.evaluate(_DROP, {"data": data, "name": path.name})
