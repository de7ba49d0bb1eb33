"""Each page with real jobs from a real worker, in a real browser."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from redis import Redis

from memgate.gpus import CATALOGUE
from memgate_service.dashboard.rendering import render_part
from tests.browser.conftest import Watched
from tests.browser.site import JOB, PATIENCE, Site

PAINTED = """(id) => {
  const canvas = document.querySelector(`#${id} canvas`);
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 3; at < data.length; at += 4) count += data[at] > 0;
  return count / (canvas.width * canvas.height);
}"""


def _number(text: str | None) -> int:
    return int((text or "").replace(",", ""))


def test_the_overview_shows_a_decision_without_being_loaded_again(page: Page, site: Site) -> None:
    """Live: a job that is asked about elsewhere changes the figures, the chart and the table."""
    page.goto("/")
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("window.wasNotReloaded = true")
    before = _number(page.locator('[data-live="admit"]').text_content())

    job = site.estimate(batch_size=3)

    row = page.locator(f'[data-part="decisions"] a[href="/ui/jobs/{job}"]')
    expect(row).to_be_visible(timeout=10_000)
    expect(page.locator('[data-live="admit"]')).to_have_text(f"{before + 1:,}")
    expect(page.locator('[data-part="engines"]')).to_contain_text("phantom")
    expect(page.locator("#verdict-rows tbody tr").first.locator("td").first).not_to_have_text("0")
    assert page.evaluate("window.wasNotReloaded")
    assert page.evaluate(PAINTED, "verdicts") > 0.005


def test_the_chart_of_verdicts_says_what_a_bar_stands_for(page: Page, site: Site) -> None:
    """When it began and ended, and how many of each; nothing once the cursor has left."""
    site.estimate()
    page.goto("/")
    chart = page.locator("#verdicts .u-over")
    box = chart.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 20)

    said = page.locator("#verdict-at")
    expect(said).to_have_text(re.compile(r"^\d\d:\d\d to \d\d:\d\d: .*admit [\d,]+"))
    page.mouse.move(0, 0)
    expect(said).to_have_text("")


def test_a_page_that_is_away_for_now_comes_back_by_itself(watched: Watched) -> None:
    """Nobody has to load it again when the queue is there again."""
    page = watched.page
    told = {"title": "Away", "message": "the queue", "code": "X", "comes_back": True}
    html = render_part("failure.html", viewer=None, path="/", **told)
    page.route("**/", lambda route: route.fulfill(status=503, body=html, content_type="text/html"))
    page.goto("/")
    expect(page.get_by_role("heading", name="Away")).to_be_visible()

    page.unroute("**/")

    expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=15_000)
    assert all("503" in error for error in watched.errors), watched.errors
    watched.errors.clear()


def test_the_overview_says_what_each_worker_is_doing(page: Page, site: Site) -> None:
    """Idle workers, too; the figure counts them."""
    page.goto("/")

    expect(page.locator('[data-part="workers"] tr')).to_have_count(1)
    expect(page.locator('[data-live="workers"]')).to_have_text("1")
    expect(page.locator('[data-part="workers"]')).to_contain_text("fast, slow")
    workers = page.locator('[data-part="workers"]')
    expect(workers).to_contain_text("idle", timeout=2 * PATIENCE)  # other tests' pages ask, too
    long_job = JOB | {"iterations": 64, "gradient_accumulation_steps": 16, "batch_size": 9}
    asked = site.ask("/estimate", {"job": long_job, "gpu": "rtx-3060"}, wait=0)
    doing = page.locator(f'[data-part="workers"] a[href="/ui/jobs/{asked["id"]}"]')
    expect(doing).to_have_text("estimate: resnet18, batch 9 on rtx-3060", timeout=PATIENCE)
    expect(page.locator('[data-live="busy"]')).to_have_text("1")
    site.wait_for(asked["id"])  # no verdict of ours comes in while another test counts them


def test_decisions_are_filtered_and_searched_on_the_server(page: Page, site: Site) -> None:
    """By outcome, GPU and words; what pages asked by themselves is shown only on demand.

    What was known before is not listed again: these are asked nowhere else.
    """
    fits = site.estimate(batch_size=13)
    does_not = site.estimate(batch_size=20_011)
    page.goto("/")

    page.get_by_label("Outcome").select_option("reject")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(f'#decisions a[href="/ui/jobs/{does_not}"]')).to_be_visible()
    expect(page.locator(f'#decisions a[href="/ui/jobs/{fits}"]')).to_have_count(0)
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Search").fill("RESNET18 not 3060")
    page.get_by_label("Search").press("Enter")

    expect(page.locator(f'#decisions a[href="/ui/jobs/{does_not}"]')).to_be_visible()
    expect(page.locator(f'#decisions a[href="/ui/jobs/{fits}"]')).to_have_count(0)
    page.goto("/?q=nothing+is+called+this")
    expect(page.locator("#decisions td.empty")).to_be_visible()


def test_a_job_has_its_verdict_its_curve_and_its_layers(page: Page, site: Site) -> None:
    """The sentence has the numbers; the breakdown adds up; the cursor tells what it points at."""
    job = site.estimate()
    said = site.ask(f"/jobs/{job}")["result"]
    page.goto(f"/ui/jobs/{job}")

    expect(page.locator(".verdict .sentence")).to_have_text(
        f"resnet18, batch 16 {said['explanation']['headline']}"
    )
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", "yes")
    assert page.evaluate(PAINTED, "timeline") > 0.2
    peak = page.locator('[data-series="reserved"]').text_content()
    assert peak == f"{said['peak_reserved_bytes'] / 1024**2:.2f} MiB"
    page.locator("#timeline").hover(position={"x": 120, "y": 150})
    expect(page.locator("#readout caption")).to_contain_text("At the cursor")
    expect(page.locator("#readout caption")).to_contain_text("event ")
    expect(page.locator("#icicle button").first).to_have_text("all layers")
    page.locator('#icicle button[data-path="layer4"]').click()
    expect(page.locator("#icicle button").first).to_have_text("← layer4")
    expect(page.locator("#icicle-says")).to_contain_text("layer4")
    page.locator("#icicle button").first.click()
    expect(page.locator("#icicle button").first).to_have_text("all layers")


def test_zooming_in_fetches_what_is_finer(page: Page, site: Site) -> None:
    """By dragging, by buttons and by keys; the whole run comes back."""
    job = site.estimate(iterations=8)
    page.goto(f"/ui/jobs/{job}")
    chart = page.locator("#timeline")
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", "yes")
    box = chart.bounding_box()
    assert box is not None

    with page.expect_response(re.compile(r"/timeline\?begin=")) as fetched:
        page.mouse.move(box["x"] + 300, box["y"] + 200)
        page.mouse.down()
        page.mouse.move(box["x"] + 420, box["y"] + 200, steps=4)
        page.mouse.up()

    view = fetched.value.json()
    expect(chart).to_have_attribute("data-points", str(len(view["events"])))
    begin, end = map(int, (chart.get_attribute("data-range") or "").split("-"))
    assert 0 < begin < end < view["num_events"]
    steps = {after - at for at, after in zip(view["events"], view["events"][1:], strict=False)}
    assert steps == {1}, "every event is there"
    chart.press("0")
    expect(chart).to_have_attribute("data-range", f"0-{view['num_events']}")
    page.get_by_role("button", name="To the peak").click()
    expect(chart).not_to_have_attribute("data-range", f"0-{view['num_events']}")
    chart.focus()
    chart.press("p")
    expect(page.locator("#readout caption")).to_contain_text("At the peak")
    chart.press("ArrowRight")
    expect(page.locator("#readout caption")).to_contain_text("At the cursor")


def test_a_rejected_job_is_told_what_would_make_it_fit(page: Page, site: Site) -> None:
    """Each by a job of its own, shown as they come in; then the strip knows every generation."""
    job = site.estimate(batch_size=20_000)
    page.goto(f"/ui/jobs/{job}")

    expect(page.locator(".verdict")).to_contain_text("does not fit on rtx-3060")
    rows = page.locator("[data-advice]")
    expect(rows).to_have_count(6)
    expect(page.locator("#job[data-advised]")).to_have_count(1, timeout=2 * PATIENCE)
    states = [row.get_attribute("data-state") for row in rows.all()]
    assert set(states) <= {"done", "failed"}, states
    answers = {row.get_attribute("data-advice"): row.text_content() or "" for row in rows.all()}
    found = re.search(r"([\d,]+) samples", answers["batch"])
    assert found is not None
    assert 16 < _number(found[1]) < 20_000
    asked = site.ask("/jobs?limit=200")["jobs"]
    by_kind = {(record["kind"], record["asked_by"]) for record in asked}
    assert {("max-batch", "dashboard"), ("fit", "dashboard")} <= by_kind
    assert "a replay" in answers["allocator"]
    assert "a new run" in answers["precision"]
    assert "has no switch for it" in answers["checkpointing"]
    expect(page.locator("#strip li")).to_have_count(len(CATALOGUE))
    expect(page.locator("#strip li.asked")).to_contain_text("rtx-3060")
    expect(page.locator("#strip")).to_contain_text("unknown")  # too old for this PyTorch


def test_what_if_says_whether_a_replay_was_enough(page: Page, site: Site) -> None:
    """Another allocator setting is a replay, another batch a run; a mistake is named."""
    job = site.estimate(batch_size=24)
    page.goto(f"/ui/jobs/{job}")
    page.get_by_role("link", name="What if").click()
    rows = page.locator("#compared tr")
    expect(rows).to_have_count(1)

    page.get_by_label("Allocator setting").fill("expandable_segments:True")
    page.get_by_role("button", name="Ask").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("a replay, ", timeout=PATIENCE)
    page.get_by_label("Allocator setting").fill("")
    page.get_by_label("Batch size").fill("48")
    page.get_by_label("Optimizer").select_option("SGD")
    page.get_by_role("button", name="Ask").click()
    expect(rows.nth(2)).to_contain_text("a new run, ", timeout=PATIENCE)
    expect(rows.nth(2)).to_contain_text("batch 48, SGD")
    assert len({row.text_content() for row in rows.all()}) == 3


def test_answers_of_what_if_come_in_without_a_jump(page: Page, site: Site) -> None:
    """Columns have their width from the start; what an answer holds does not move them."""
    job = site.estimate(batch_size=24)
    page.goto(f"/ui/jobs/{job}/what-if")
    heads = page.locator("table.compared thead th")
    before = [head.bounding_box() for head in heads.all()]

    page.get_by_label("Allocator setting").fill("garbage_collection_threshold:0.8")
    page.get_by_label("Batch size").fill("57")
    page.get_by_role("button", name="Ask").click()
    row = page.locator("#compared tr").nth(1)
    expect(row).to_contain_text("a new run, ", timeout=PATIENCE)

    assert [head.bounding_box() for head in heads.all()] == before
    expect(page.locator("#live")).to_be_hidden()


def test_a_mistake_in_what_if_is_named(watched: Watched, site: Site) -> None:
    """Field, value, rule and next step; nothing is asked."""
    watched.allows_refusals = True
    page = watched.page
    page.goto(f"/ui/jobs/{site.estimate(batch_size=24)}/what-if")

    page.get_by_label("Allocator setting").fill("expandable_segment:True")
    page.get_by_label("Batch size").fill("-1")
    page.get_by_role("button", name="Ask").click()

    mistakes = page.locator("#mistakes")
    expect(mistakes).to_contain_text("2 things are wrong")
    expect(mistakes).to_contain_text("batch_size")
    expect(mistakes).to_contain_text("expandable_segment")
    expect(page.locator("#compared tr")).to_have_count(1)


def test_a_job_that_is_not_there_is_a_page_too(watched: Watched) -> None:
    """404, with a way back."""
    watched.allows_refusals = True
    answer = watched.page.goto(f"/ui/jobs/{'0' * 32}")

    assert answer is not None
    assert answer.status == 404
    expect(watched.page.get_by_role("link", name="To the overview")).to_be_visible()


def test_accuracy_holds_outcomes_against_predictions(page: Page, site: Site) -> None:
    """By GPU and model, with the coverage of the bound, beside the published figures."""
    with Redis.from_url(site.redis_url) as store:
        store.delete("memgate:outcomes")  # those of other tests
    job = site.estimate(batch_size=6)
    peak = site.ask(f"/jobs/{job}")["result"]["peak_bytes"]
    for share in (0.97, 0.99, 1.0, 1.9):
        outcome = {"job": job, "measured_peak_bytes": round(peak * share)}
        site.ask("/outcomes", outcome)
    page.goto("/ui/accuracy")

    expect(page.locator("#scatter")).to_have_attribute("data-points", "4")
    assert page.evaluate(PAINTED, "scatter") > 0.005
    expect(page.locator("main")).to_contain_text("4 of 4 did: 100.0 %")
    expect(page.get_by_role("row", name="rtx-3060")).to_contain_text("75.0 %")
    expect(page.get_by_role("row", name="resnet18")).to_contain_text("4")
    expect(page.get_by_role("row", name="xMem")).to_contain_text("2.37 %")


def test_the_theme_is_the_systems_until_somebody_chooses(page: Page) -> None:
    """The choice outlives the page; every chart is drawn in it."""
    page.goto("/")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("data-theme", "dark")

    page.locator("#theme").click()
    expect(root).to_have_attribute("data-theme", "light")
    page.goto("/ui/accuracy")

    expect(root).to_have_attribute("data-theme", "light")
    expect(page.locator("#theme")).to_have_text("Theme: light")


def test_everything_can_be_reached_with_the_keyboard(page: Page, site: Site) -> None:
    """The first stop leads past the navigation; the chart and the layers are stops like others."""
    page.goto(f"/ui/jobs/{site.estimate()}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if stops[-1] == "timeline":
            break
    assert "timeline" in stops
    page.locator("#icicle button").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.path")


def test_pages_do_not_jump_while_they_load(page: Page, site: Site) -> None:
    """What comes later has its room from the start (Chromium's own measure of it)."""
    shifts = """() => new Promise((resolve) => {
      let sum = 0;
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) sum += entry.value;
      }).observe({type: "layout-shift", buffered: true});
      setTimeout(() => resolve(sum), 1500);
    })"""
    job = site.estimate()
    for path in ("/", f"/ui/jobs/{job}", "/ui/try", "/ui/accuracy"):
        page.goto(path)
        assert page.evaluate(shifts) < 0.02, path


def test_a_page_says_when_the_job_is_still_on_its_way(page: Page, site: Site) -> None:
    """A question that takes seconds: the page shows the steps, and then the answer, by itself."""
    spec = JOB | {"batch_size": 7, "iterations": 64}
    asked = site.ask("/estimate", {"job": spec, "gpu": "rtx-3060"}, wait=0)
    page.goto(f"/ui/jobs/{asked['id']}")

    expect(page.locator("#progress, .verdict .sentence").first).to_be_visible()
    expect(page.locator(".verdict .sentence")).to_contain_text("batch 7", timeout=PATIENCE)
