"""Keys and roles, in a browser: a session for a key, and nothing that a role may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect
from redis import Redis

from memgate.jobspec import JobSpec
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.keys import KeyRing, Right, Role
from memgate_worker.queue.settings import QueueSettings
from tests.browser.conftest import Watched
from tests.browser.site import JOB, Site, serve_site
from tests.browser.test_accessibility import check
from tests.integration.running import make_key


@pytest.fixture(scope="module")
def guarded(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start a second service, on the same queue, that wants keys."""
    home = tmp_path_factory.mktemp("guarded")
    with serve_site(home, num_workers=0, redis_url=site.redis_url, api_keys="required") as started:
        yield started


@contextmanager
def _ring(site: Site) -> Iterator[KeyRing]:
    queue = QueueClient(QueueSettings(redis_url=site.redis_url))
    try:
        yield KeyRing(queue.store)
    finally:
        queue.close()


def _sign_in(page: Page, site: Site, role: Role | Right, path: str = "/") -> str:
    key = make_key(site.redis_url, role)
    page.goto(path)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    return key


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_sees_a_page_without_a_key(
    watch: Callable[..., Watched], guarded: Site, theme: str
) -> None:
    """The page that asks for one has no fault, and says what a wrong one is."""
    watched = watch(guarded.url, theme=theme)
    page = watched.page
    page.goto("/ui/accuracy")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    check(page)

    watched.errors.clear()
    page.get_by_label("API key").fill("mg_00000000_wrong")
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("alert")).to_contain_text("not a valid key")
    check(page)
    watched.errors.clear()  # 401 is told to the console; it is what was to be seen


def test_a_key_opens_a_session_that_does_not_hold_the_key(
    watch: Callable[..., Watched], guarded: Site
) -> None:
    """A random token: no script sees it, no other site sends it, and it leads where one wanted."""
    page = watch(guarded.url).page
    key = _sign_in(page, guarded, Role.READ, "/ui/accuracy")

    expect(page.get_by_role("heading", name="Accuracy")).to_be_visible()
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    assert key.split("_", 2)[2] not in cookie["value"]
    stored = Redis.from_url(guarded.redis_url)
    keys = list(stored.scan_iter("memgate:session:*"))
    stored.close()
    assert keys
    assert not any(cookie["value"].encode() in name for name in keys)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_link_from_elsewhere_finds_the_session(
    watch: Callable[..., Watched], guarded: Site
) -> None:
    """Strict cookies are not sent along; the page notices that there is one nonetheless."""
    page = watch(guarded.url).page
    _sign_in(page, guarded, Role.READ)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    page.goto("data:text/html,<a href='" + guarded.url + "/ui/accuracy'>a chat</a>")
    page.get_by_role("link").click()

    expect(page.get_by_role("heading", name="Accuracy")).to_be_visible()


def test_who_may_only_read_sees_no_forms_and_is_refused(
    watch: Callable[..., Watched], site: Site, guarded: Site
) -> None:
    """Live figures and answers are there; asking is not, neither as a page nor as a request."""
    job = site.estimate(batch_size=11)
    watched = watch(guarded.url)
    page = watched.page
    _sign_in(page, guarded, Right.READ_OWN | Right.READ_ALL)

    expect(page.locator("#live")).to_have_text("live")
    expect(page.get_by_role("link", name="Try it")).to_have_count(0)
    page.goto(f"/ui/jobs/{job}")
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", "yes")
    expect(page.get_by_role("link", name="What if")).to_have_count(0)
    expect(page.locator("[data-advice]").first).to_contain_text("may only read")
    check(page)
    watched.allows_refusals = True
    for path in ("/ui/try", f"/ui/jobs/{job}/what-if"):
        page.goto(path)
        expect(page.get_by_text("your key may only read")).to_be_visible()
        expect(page.locator("main form")).to_have_count(0)
    statuses = page.evaluate(
        """(job) => Promise.all([
          [`/ui/jobs/${job}/advice`, {}], [`/ui/jobs/${job}/what-if`, {batch_size: "3"}],
          ["/ui/try/spec", {spec: "x"}],
        ].map(async ([url, fields]) => {
          const body = new FormData();
          for (const [name, value] of Object.entries(fields)) body.append(name, value);
          return (await fetch(url, {method: "POST", body})).status;
        }))""",
        job,
    )
    assert statuses == [403, 403, 403]


def test_who_may_submit_asks_from_the_page(
    watch: Callable[..., Watched], site: Site, guarded: Site
) -> None:
    """A session is as good as its key."""
    spec = JobSpec.model_validate(JOB | {"batch_size": 13})
    page = watch(guarded.url).page
    _sign_in(page, guarded, Role.SUBMIT, "/ui/try")

    page.get_by_label("Job spec").fill(spec.model_dump_json(by_alias=True))
    page.get_by_label("GPU", exact=True).fill("a10g")
    page.get_by_role("button", name="Ask").click()

    page.wait_for_url("**/ui/jobs/*")
    expect(page.locator(".verdict")).to_contain_text("fits on a10g", timeout=240_000)


def test_a_revoked_key_takes_its_sessions_along(
    watch: Callable[..., Watched], guarded: Site
) -> None:
    """Within the ten seconds for which keys are remembered."""
    page = watch(guarded.url).page
    key = _sign_in(page, guarded, Role.READ)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    with _ring(guarded) as ring:
        ring.revoke(key.split("_")[1])
    page.goto("about:blank")
    page.wait_for_timeout(10_500)
    page.goto(guarded.url)

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
