"""Takes a picture of each page of the dashboard, light and dark: ``make screenshots``.

Everything on them was worked out by real workers: the jobs of a file of measured runs, and what a
GPU really showed for each, reported as an outcome. One thing is arranged: when the questions were
asked. A day of them is wanted on the picture, and nobody waits a day for that.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from rich.console import Console

from memgate.accuracy import MeasuredRun, read_measured_runs
from memgate.gpus import CATALOGUE
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.history import count_entry, read_history
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes
from tests.browser.site import Site, open_browser, serve_site

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"

#: the libraries that the measured jobs ran with
_THEIR_RUNTIME = "torch-2.6"

_GPT2 = {
    "model": {"source": "transformers", "name": "openai-community/gpt2"},
    "input": {"sequence_length": 512},
    "batch_size": 12,
    "optimizer": {"name": "AdamW"},
}

_WRONG = """\
model:
  source: torchvison
  name: resnet50
input:
  shape: [3, 224, 224]
batchsize: 64
"""

_DAY = 24 * 3600
_WIDTH, _HEIGHT = 1440, 900


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.screenshots")
    parser.add_argument("peaks", type=Path, help="measured runs, models.json beside them")
    peaks = parser.parse_args().peaks
    console = Console(stderr=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = stack.enter_context(serve_site(home, num_workers=2))
        console.print("asking about every measured run")
        runs = _read(peaks)
        _fill(site, runs)
        job = site.estimate("rtx-3060", **_GPT2)
        _spread_over_a_day(site)
        _ask_again(site, runs)
        playwright = stack.enter_context(sync_playwright())
        browser = stack.enter_context(open_browser(playwright))
        for number, theme in enumerate(("light", "dark")):
            _keep_busy(site, 20 + 10 * number)
            for name, path, prepare in _pictures(job):
                _take(browser, site, theme, name, path, prepare)
                console.print(f"dashboard-{name}-{theme}.png")


def _read(peaks: Path) -> list[MeasuredRun]:
    with peaks.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return read_measured_runs(rows, [], json.loads(peaks.with_name("models.json").read_text()))


def _fill(site: Site, runs: list[MeasuredRun]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(_ask, site), runs))


def _ask(site: Site, run: MeasuredRun) -> None:
    """Ask about a run as if it were to come, then tell what it took."""
    gpu = _gpu(run)
    job = site.estimate(gpu, **_spec(run))
    # What NVML showed beyond the context; libraries' own part is no part of the allocator's.
    reserved = max(1, run.measured_bytes - CATALOGUE[gpu].library_bytes)
    outcome = {"job": job, "measured_peak_bytes": reserved, "is_reserved_only": True}
    site.ask("/outcomes", outcome | {"ran_out": run.ran_out})


def _gpu(run: MeasuredRun) -> str:
    return next(gpu.name for gpu in CATALOGUE.values() if gpu.product == run.gpu)


def _spec(run: MeasuredRun) -> dict[str, Any]:
    theirs = read_runtimes()[_THEIR_RUNTIME].is_installed
    spec: dict[str, Any] = run.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return spec | {"runtime": _THEIR_RUNTIME if theirs else DEFAULT_RUNTIME}


def _ask_again(site: Site, runs: list[MeasuredRun]) -> None:
    """Ask what was asked before: some answers are known."""
    for run in runs[: len(runs) // 3]:
        for _ in range(2):
            site.estimate(_gpu(run), **_spec(run))


def _keep_busy(site: Site, first_batch: int) -> None:
    """Give the workers something to be seen at."""
    for number in range(4):
        job = _GPT2 | {"batch_size": first_batch + number, "iterations": 48}
        site.ask("/estimate", {"job": job, "gpu": "a100-80"}, wait=0)


def _spread_over_a_day(site: Site) -> None:
    """Have the questions been asked over the last day, more of them by day than by night."""
    queue = QueueClient(QueueSettings(redis_url=site.redis_url))
    store, chance = queue.store, random.Random(7)
    decisions = list(read_history(store))[::-1]
    now = time.time()
    moments = sorted(now - min(_DAY - 60, chance.expovariate(1 / 26_000)) for _ in decisions)
    for key in store.redis.scan_iter("memgate:minute:*"):
        store.redis.delete(key)
    store.redis.delete("memgate:decisions")
    for at, decision in zip(moments, decisions, strict=True):
        then = datetime.fromtimestamp(at, UTC)
        with patch("memgate_worker.queue.store._now", return_value=then):
            line = msgspec.json.encode(msgspec.structs.replace(decision, at=at))
            store.note(count_entry(decision) | {"runs:made": 1, "cache:nowhere": 1}, line)
    queue.close()


def _pictures(job: str) -> list[tuple[str, str, Callable[[Page], None]]]:
    return [
        ("overview", "/", _overview),
        ("job", f"/ui/jobs/{job}", _job),
        ("what-if", f"/ui/jobs/{job}/what-if", _what_if),
        ("try-it", "/ui/try", _try_it),
        ("accuracy", "/ui/accuracy", _accuracy),
    ]


def _overview(page: Page) -> None:
    expect(page.locator("#live")).to_have_text("live")
    # services write down what they knew every five seconds
    expect(page.locator('[data-live="hits"]')).not_to_have_text("0 %", timeout=15_000)
    expect(page.locator('[data-live="busy"]')).to_have_text("2", timeout=15_000)


def _job(page: Page) -> None:
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", "yes")
    states = ("none", "queued", "running")
    waiting = page.locator(", ".join(f'[data-advice][data-state="{state}"]' for state in states))
    expect(waiting).to_have_count(0, timeout=180_000)


def _what_if(page: Page) -> None:
    rows = page.locator("#compared tr")
    for number, (label, value) in enumerate(
        [("GPU", "rtx-4090"), ("Precision", "amp-bf16"), ("Optimizer", "SGD")], start=1
    ):
        page.get_by_label(label).select_option(value)
        page.get_by_role("button", name="Ask").click()
        expect(rows).to_have_count(number + 1)
        expect(rows.nth(number)).to_have_attribute("data-state", "done", timeout=60_000)


def _try_it(page: Page) -> None:
    page.get_by_label("Job spec").fill(_WRONG)
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#mistakes")).to_contain_text("wrong")
    page.evaluate("scrollTo(0, 0)")


def _accuracy(page: Page) -> None:
    expect(page.locator("#scatter canvas")).to_be_visible()


def _take(
    browser: Browser,
    site: Site,
    theme: str,
    name: str,
    path: str,
    prepare: Callable[[Page], None],
) -> None:
    context = browser.new_context(
        base_url=site.url,
        color_scheme="dark" if theme == "dark" else "light",
        viewport={"width": _WIDTH, "height": _HEIGHT},
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(path)
    prepare(page)
    page.wait_for_timeout(500)
    page.mouse.move(0, 0)
    target = IMAGES / f"dashboard-{name}-{theme}.png"
    page.screenshot(path=target, full_page=True)
    context.close()
    with Image.open(target) as picture:
        height = min(picture.height, 1640)
        smaller = picture.convert("RGB").crop((0, 0, picture.width, height))
    smaller.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1).save(target, optimize=True)


if __name__ == "__main__":
    main()
