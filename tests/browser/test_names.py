"""Names that are markup, in a real browser: on a site of their own, whose figures they spoil."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from playwright.sync_api import Dialog, Page, expect

from tests.browser.site import PATIENCE, Site, drop_file


def test_names_are_shown_and_never_run(
    page: Page, site: Site, traces: Path, tmp_path: Path
) -> None:
    """Of models, of what reported an outcome, and of layers in a trace that somebody sends."""
    hostile = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>'
    dialogs: list[str] = []

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    job = site.estimate(batch_size=6)
    refused = site.estimate(model={"source": "torchvision", "name": hostile})
    outcome = {"job": job, "measured_peak_bytes": 1 << 30, "gpu_product": hostile}
    site.ask("/outcomes", outcome)
    text = gzip.decompress((traces / "tiny-torch-2.14.json.gz").read_bytes()).decode()
    named = json.dumps(hostile)[1:-1]
    trace = tmp_path / "trace.json"
    trace.write_text(text.replace("nn.Module: Linear_0", f"nn.Module: {named}"))

    for path in ("/", f"/ui/jobs/{refused}", f"/ui/try?job={refused}", "/ui/accuracy"):
        page.goto(path)
        expect(page.locator("main")).to_contain_text("<img src=x")
        expect(page.locator("img[src=x]")).to_have_count(0)
    page.goto("/ui/try")
    drop_file(page, trace)
    expect(page.locator("#chosen")).to_contain_text("File")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#icicle")).to_contain_text("<img src=x", timeout=PATIENCE)
    expect(page.locator("img[src=x]")).to_have_count(0)
    assert dialogs == []
