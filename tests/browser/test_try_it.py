"""Try it: a spec or a trace, pasted or dropped, becomes the page of its job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import Watched
from tests.browser.site import PATIENCE, Site, drop_file


def test_a_pasted_spec_becomes_the_page_of_its_job(page: Page) -> None:
    """YAML as the example has it; how far it is is shown until the answer is there."""
    page.goto("/ui/try")
    page.get_by_label("Job spec").fill(
        "model: {source: torchvision, name: resnet18}\ninput: {shape: [3, 64, 64]}\nbatch_size: 5\n"
    )
    page.get_by_role("button", name="Ask").click()

    page.wait_for_url(re.compile(r"/ui/jobs/[0-9a-f]{32}$"))
    expect(page.locator(".verdict")).to_contain_text("batch 5 fits on", timeout=PATIENCE)


def test_a_dropped_trace_becomes_the_page_of_its_job(page: Page, traces: Path) -> None:
    """A real one, packed; nothing is run, and the page says so."""
    page.goto("/ui/try")
    drop_file(page, traces / "tiny-torch-2.14.json.gz")
    expect(page.locator("#chosen")).to_contain_text("File: tiny-torch-2.14.json.gz")
    page.get_by_role("button", name="Ask", exact=True).click()

    page.wait_for_url(re.compile(r"/ui/jobs/[0-9a-f]{32}$"))
    expect(page.locator(".verdict")).to_contain_text("fits on rtx-3060", timeout=PATIENCE)
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", "yes")
    expect(page.locator("[data-advice]")).to_have_count(1)
    expect(page.locator("main")).to_contain_text("profile")


def test_a_dropped_spec_goes_into_the_form(page: Page, tmp_path: Path) -> None:
    """It can be looked at, and changed, before it is asked about."""
    spec = tmp_path / "job.yaml"
    spec.write_text("batch_size: 3\n")
    page.goto("/ui/try")

    drop_file(page, spec)

    expect(page.get_by_label("Job spec")).to_have_value("batch_size: 3\n")


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ("", ["job spec", "paste one"]),
        ("model: [", ["line 1", "neither JSON nor YAML"]),
        ("a: &a [1]\nb: *a", ["line 2", "aliases are not allowed"]),
        ("{batchsize: 3, model: {source: torchvision, name: x}, input: {shape: [1]}}",
         ["batchsize", "did you mean 'batch_size'?", "batch_size", "missing", "it must be given"]),
        ("{batch_size: many, model: {source: torchvisoin, name: x}, input: {shape: [1]}}",
         ["'many'", "a whole number", "did you mean 'torchvision'?"]),
        ('{"job": {}, "gpu": "rtx-3061"}', ["rtx-3061", "did you mean 'rtx-3060'"]),
    ],
    ids=["nothing", "no document", "aliases", "a field", "values", "a GPU"],
)  # fmt: skip
def test_a_wrong_spec_is_explained(watched: Watched, spec: str, want: list[str]) -> None:
    """Each field with its value, the rule and the next step; nothing is asked."""
    watched.allows_refusals = True
    watched.page.goto("/ui/try")
    watched.page.get_by_label("Job spec").fill(spec)
    watched.page.get_by_role("button", name="Ask").click()

    mistakes = watched.page.locator("#mistakes")
    for words in want:
        expect(mistakes).to_contain_text(words)
    assert watched.page.url.endswith("/ui/try")


def test_a_file_that_is_no_trace_is_explained(page: Page, tmp_path: Path) -> None:
    """The job's page says what is wrong with it, and what to do."""
    broken = tmp_path / "trace.json.gz"
    broken.write_bytes(b"no gzip at all")
    page.goto("/ui/try")
    drop_file(page, broken)
    expect(page.locator("#chosen")).to_contain_text("File")
    page.get_by_role("button", name="Ask", exact=True).click()

    expect(page.locator(".verdict.failed")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("main")).to_contain_text("BAD_TRACE")
    expect(page.locator("main")).to_contain_text("export the trace again with prof.")


def test_a_spec_that_failed_can_be_changed_and_asked_again(page: Page, site: Site) -> None:
    """It is in the form as it was asked, with its GPU; only the mistake is to be mended."""
    job = site.estimate("a10g", model={"source": "torchvision", "name": "resnet1"})
    page.goto(f"/ui/jobs/{job}")
    page.get_by_role("link", name="Change it, and ask again").click()

    spec = page.get_by_label("Job spec")
    expect(spec).to_have_value(re.compile("name: resnet1}"))
    expect(page.get_by_label("GPU", exact=True)).to_have_value("a10g")
    spec.fill(spec.input_value().replace("resnet1", "resnet18"))
    page.get_by_role("button", name="Ask", exact=True).click()

    expect(page.locator(".verdict")).to_contain_text("fits on a10g", timeout=PATIENCE)


def test_a_model_is_found_by_typing_and_goes_into_the_spec(page: Page) -> None:
    """By keyboard alone; comments and other fields of the text stay."""
    page.goto("/ui/try")
    spec = page.get_by_label("Job spec")
    spec.fill("# mine\nmodel: {source: torchvision, name: vgg16}\nbatch_size: 7 # small\n")
    expect(page.get_by_label("Batch size")).to_have_value("7")
    expect(page.get_by_label("Model", exact=True)).to_have_value("torchvision:vgg16")

    model = page.get_by_role("combobox", name="Model")
    model.fill("llama 3.2 1b")
    options = page.get_by_role("listbox", name="Models that match").get_by_role("option")
    expect(options.first).to_contain_text("meta-llama/Llama-3.2-1B")
    expect(model).to_have_attribute("aria-expanded", "true")
    model.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    model.press("Enter")

    expect(spec).to_have_value(
        "# mine\nmodel: {source: transformers, name: meta-llama/Llama-3.2-1B}\n"
        "batch_size: 7 # small\n"
    )
    expect(model).to_have_attribute("aria-expanded", "false")


def test_the_form_and_the_text_say_the_same(watched: Watched) -> None:
    """Lists, numbers and adapters go into the text; an empty field is taken out again."""
    watched.allows_refusals = True
    page = watched.page
    page.goto("/ui/try")
    spec = page.get_by_label("Job spec")
    expect(page.get_by_label("Input", exact=True)).to_have_value("3x224x224")

    page.get_by_label("Optimizer").select_option("bitsandbytes.AdamW8bit")
    expect(spec).to_have_value(re.compile("optimizer: {name: bitsandbytes.AdamW8bit}"))
    page.get_by_label("Precision").select_option("bf16")
    expect(spec).to_have_value(re.compile("precision: bf16"))
    page.get_by_label("Input", exact=True).fill("96")
    page.get_by_label("Input", exact=True).press("Enter")
    expect(spec).to_have_value(re.compile(r"input: {shape: \[3, 96, 96\]}"))
    rank = page.get_by_label("Adapter (LoRA), rank")
    rank.fill("16")
    rank.press("Tab")
    expect(spec).to_have_value(re.compile("lora: {rank: 16}"))
    rank.fill("")
    rank.press("Tab")
    expect(spec).not_to_have_value(re.compile("lora"))

    page.get_by_label("Batch size").fill("many")
    page.get_by_label("Batch size").press("Tab")
    expect(page.locator("#problem")).to_contain_text("it must be a whole number")
    spec.fill("optimizer: {name: [")
    expect(page.locator("#problem")).to_contain_text("cannot be read yet")
    spec.fill("optimizer: {name: Lion9}\n")
    expect(page.get_by_label("Optimizer")).to_have_value("Lion9")


def test_a_late_answer_does_not_overwrite_what_was_typed(page: Page) -> None:
    """A field is left, and the text is typed into before the field's answer is there."""
    held: list[Route] = []
    page.clock.install(time=0)
    page.goto("/ui/try")
    spec = page.get_by_label("Job spec")
    expect(page.locator("#describe")).to_have_attribute("data-state", "read")
    page.clock.pause_at(3_600_000)  # the form does not follow the text until the clock goes on
    page.route("**/ui/try/fill", lambda route: held.append(route))
    batch = page.get_by_label("Batch size")
    batch.fill("7")
    with page.expect_request("**/ui/try/fill"):
        batch.press("Tab")

    typed = "model: {source: torchvision, name: vgg16}\nbatch_size: 5\n"
    spec.fill(typed)
    with page.expect_response("**/ui/try/fill") as late:
        held[0].continue_()
    late.value.finished()
    with page.expect_response("**/ui/try/fields"):
        page.clock.run_for(1000)

    expect(batch).to_have_value("5")
    assert spec.input_value() == typed


def test_a_gpu_is_found_by_its_product(page: Page) -> None:
    """As people call it; the mouse works, too, and Escape closes."""
    page.goto("/ui/try")
    gpu = page.get_by_role("combobox", name="GPU")
    gpu.fill("geforce rtx 4090")
    options = page.get_by_role("listbox", name="GPUs that match").get_by_role("option")
    expect(options).to_have_count(1)
    gpu.press("Escape")
    expect(options.first).to_be_hidden()
    gpu.fill("GeForce RTX 4090")
    options.first.click()

    expect(gpu).to_have_value("rtx-4090")


def test_without_scripts_the_text_is_enough(browser: Browser, site: Site) -> None:
    """The form, which needs them, is not shown; the GPU is a field that can be filled in."""
    context = browser.new_context(base_url=site.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/ui/try")

    expect(page.get_by_label("Job spec")).to_be_visible()
    expect(page.locator("#describe")).to_be_hidden()
    expect(page.get_by_label("GPU", exact=True)).to_have_value("rtx-3060")
    context.close()
