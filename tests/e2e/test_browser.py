"""A person at a browser: signs in, uploads, submits, watches, downloads; on every kind of screen.

A whole portal of real processes runs behind it, and real Chromium in front. Whatever a page says
on its console, and whatever its policy refuses, fails the test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import require

sync_api = pytest.importorskip("playwright.sync_api")
axe_package = pytest.importorskip("axe_playwright_python")
expect = sync_api.expect

ROOT = Path(__file__).parent.parent.parent
AXE = (Path(axe_package.__file__).parent / "axe.min.js").read_text()
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PASSWORD = "correct-horse-battery"
PREPARE = """
from django.utils import timezone
from cluster import services as cluster_services
from cluster.models import Gpu
from jobs.models import Environment
from jobs.services.shipped import shipped_load
from portal.models import User
now = timezone.now()
host = cluster_services.host_create(name="this-machine", url="process://local")
cluster_services.host_test(host_id=host.pk, now=now)
shipped_load()
Environment.objects.create(slug="plain", name="Plain Python", python={python!r}, position=1)
User.objects.create_user("ada", "ada@example.org", {password!r})
User.objects.create_user("eve", "eve@example.org", {password!r}, storage_quota_mib=1)
User.objects.create_superuser("root", "root@example.org", {password!r})
"""
PROGRAM = """
import os, pathlib, time
data = pathlib.Path(os.environ["STARLING_DATA_DIR"], "letters", "a.txt").read_text()
print("\\033[32mread\\033[0m", data)
for step in range(1, 61):
    print(f"line {step:03}", flush=True)
    print(f"[metric] step={step} loss={1 / step}", flush=True)
    time.sleep(0.15)
pathlib.Path("result.txt").write_text(data * 2)
"""
LINES = 121


@dataclass
class Portal:
    url: str
    supervisor: subprocess.Popen[bytes]

    def program(self, word: str) -> psutil.Process:
        """Return the child whose command line has this word."""
        children = psutil.Process(self.supervisor.pid).children()
        return next(child for child in children if any(word in part for part in child.cmdline()))

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    require(CHROMIUM, "Chromium")
    state = tempfile.mkdtemp(prefix="starling-web-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STARLING", "DATABASE", "REDIS"))
    } | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.dev",
        "STARLING_STATE": state,
        "STARLING_USER_RATE": "100000/min",
    }

    def manage(*words: str) -> None:
        subprocess.run(
            [sys.executable, "manage.py", *words], cwd=ROOT, env=environment, check=True,
            capture_output=True,
        )  # fmt: skip

    manage("migrate", "-v0")
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    manage("shell", "--no-imports", "-c", PREPARE.format(python=python, password=PASSWORD))
    supervisor = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", str(port), "--workers", "1", "--quiet"],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    found = Portal(url=f"http://127.0.0.1:{port}", supervisor=supervisor)
    try:
        wait_for(found.answers, "the portal answers")
        yield found
    finally:
        supervisor.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            supervisor.wait(timeout=30)
        supervisor.kill()
        shutil.rmtree(state, ignore_errors=True)


def wait_for(fact: Callable[[], bool], what: str, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    require(CHROMIUM, "Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Person:
    """Somebody at a browser of their own; what their pages complain about is kept."""

    def __init__(self, page: Any, portal: Portal) -> None:
        self.page = page
        self.portal = portal
        self.complaints: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.portal.url}{path}")

    def sign_in(self, name: str) -> None:
        self.open("/accounts/login/")
        self.page.get_by_label("Login").fill(name)
        self.page.get_by_label("Password", exact=True).fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", level=1)).to_contain_text(name)


@pytest.fixture
def person(chromium: Any, portal: Portal) -> Iterator[Callable[..., Person]]:
    contexts: list[Any] = []

    def arrive(name: str = "", **options: Any) -> Person:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        found = Person(context.new_page(), portal)
        if name:
            found.sign_in(name)
        return found

    yield arrive
    for context in contexts:
        context.close()


def axe(page: Any) -> list[str]:
    """Return what the accessibility rules find; run in a world of its own, past the policy."""
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": AXE})
    answer = session.send(
        "Runtime.evaluate",
        {
            "expression": "axe.run().then(found => JSON.stringify(found.violations.map(one => "
            "one.id + ': ' + one.nodes.map(node => node.target.join(' ')).join(', '))))",
            "awaitPromise": True,
            "returnByValue": True,
        },
    )
    found: list[str] = json.loads(answer["result"]["value"])
    return found


def letters(folder: Path) -> Path:
    path = folder / "letters.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "alpha ")
        archive.writestr("table.csv", "x,y\n1,2\n3,4\n")
    return path


def write_program(page: Any, text: str) -> None:
    """Type over what the editor has, as a person does: its own idea of the selection counts."""
    page.get_by_text("Write code", exact=True).click()
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)
    expect(page.locator("#id_script")).to_have_value(text)


def test_from_sign_in_to_the_downloaded_result(
    person: Callable[..., Person], portal: Portal, tmp_path: Path
) -> None:
    ada = person("ada")
    page = ada.page

    page.get_by_role("link", name="Datasets").click()
    page.locator("#files").set_input_files(letters(tmp_path))
    page.get_by_role("link", name="Open the dataset").click()
    expect(page.locator("#version .badge").first).to_have_text("ready", timeout=60_000)
    expect(page.get_by_role("region", name="Rows of table.csv", exact=True)).to_contain_text("3")

    page.get_by_role("link", name="Job with it").click()
    write_program(page, PROGRAM)
    page.get_by_label("Name", exact=True).fill("doubles letters")
    page.get_by_label("Environment", exact=True).select_option("plain")
    for remove in reversed(page.get_by_role("button", name="Remove this parameter").all()):
        remove.click()
    page.get_by_role("button", name="Submit the job").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("doubles letters")
    expect(page.locator("#state")).to_have_attribute("data-status", "running", timeout=60_000)
    expect(page.locator(".ansi-green")).to_have_text("read", timeout=30_000)
    # Live: the curve has points before the job has ended, and the page was not loaded again.
    expect(page.locator("#curves .chart__plot")).to_have_attribute(
        "data-points", re.compile(r"\d+"), timeout=30_000
    )
    assert page.locator("#state").get_attribute("data-status") == "running"
    # The portal's web server is killed under the page; nothing may be missing afterwards.
    portal.program("uvicorn").kill()
    expect(page.locator("[data-live-state]").first).to_have_text("reconnecting", timeout=15_000)
    expect(page.locator("#state")).to_have_attribute("data-status", "succeeded", timeout=90_000)
    expect(page.locator("#log")).to_have_attribute("data-lines", str(LINES), timeout=15_000)
    ada.complaints = [text for text in ada.complaints if not is_about_the_dead_server(text)]
    assert every_line(page) == [
        "read alpha ",
        *(
            line
            for n in range(1, 61)
            for line in (f"line {n:03}", f"[metric] step={n} loss={1 / n}")
        ),
    ]

    page.get_by_role("tab", name="Files").click()
    with page.expect_download() as one:
        page.get_by_role("link", name="result.txt").click()
    assert Path(one.value.path()).read_text() == "alpha alpha "
    with page.expect_download() as all_files:
        page.get_by_role("link", name="All as a zip").click()
    with zipfile.ZipFile(all_files.value.path()) as archive:
        assert archive.read("result.txt") == b"alpha alpha "

    page.get_by_role("tab", name="History").click()
    expect(page.locator("#job-history")).to_contain_text("succeeded")
    assert ada.complaints == []


def is_about_the_dead_server(complaint: str) -> bool:
    return "WebSocket connection" in complaint or "ERR_CONNECTION" in complaint


def every_line(page: Any) -> list[str]:
    """Scroll through the log and return its lines, as they are shown."""
    shown: dict[int, str] = {}
    view = page.locator("#log-view")
    view.focus()
    page.keyboard.press("Home")
    while len(shown) < LINES:
        before = len(shown)
        expect(page.locator(".log__line--unknown")).to_have_count(0)
        # In one go: the lines are other elements after the next drawing.
        for number, text in view.evaluate(
            "view => [...view.querySelectorAll('.log__line:not(.log__line--unknown)')].map("
            "line => [Number(line.firstChild.textContent), line.lastChild.textContent])"
        ):
            assert shown.setdefault(number, text) == text
        if len(shown) == before and before:
            top = view.evaluate("element => element.scrollTop")
            assert top < 10_000, f"only {before} lines are there"
        page.keyboard.press("PageDown")
        page.wait_for_timeout(150)
    return [shown[number] for number in sorted(shown)]


def test_a_job_is_cancelled_run_again_and_deleted(person: Callable[..., Person]) -> None:
    ada = person("ada")
    page = ada.page
    ada.open("/jobs/new/")
    write_program(page, "import time\nprint('started', flush=True)\ntime.sleep(600)\n")
    page.get_by_label("Name", exact=True).fill("sleeps")
    page.get_by_label("Environment", exact=True).select_option("plain")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("#log-view")).to_contain_text("started", timeout=60_000)

    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#state")).to_have_attribute("data-status", "cancelled", timeout=90_000)

    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#messages")).to_contain_text("submitted again")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#state")).to_have_attribute("data-status", "cancelled", timeout=90_000)
    page.get_by_role("button", name="Delete the job").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert ada.complaints == []


def test_a_refused_form_keeps_the_code_in_the_editor(person: Callable[..., Person]) -> None:
    ada = person("ada")
    page = ada.page
    ada.open("/jobs/new/")
    write_program(page, "print('kept')\n")
    page.get_by_label("Environment", exact=True).select_option("plain")
    page.get_by_label("Memory", exact=True).fill("9000")
    page.get_by_role("button", name="Submit the job").click()

    expect(page.get_by_role("alert")).to_be_focused()
    expect(page.get_by_role("textbox", name="Python program")).to_contain_text("print('kept')")
    expect(page.get_by_label("Memory", exact=True)).to_have_attribute("aria-invalid", "true")
    # A refusal is an answer with an error's status, which the browser notes on its console.
    assert [text for text in ada.complaints if "422" not in text] == []


def test_an_upload_goes_on_after_the_page_was_loaded_again(
    person: Callable[..., Person], tmp_path: Path
) -> None:
    ada = person("ada")
    page = ada.page
    file = tmp_path / "large.bin"
    file.write_bytes(os.urandom(1 << 20) * 20)
    ada.open("/datasets/")
    offsets: list[int] = []

    def cut(route: Any) -> None:
        offset = int(route.request.headers["upload-offset"])
        if offset:
            route.abort()
        else:
            route.continue_()

    @contextmanager
    def watched(handler: Callable[[Any], None]) -> Iterator[None]:
        pattern = re.compile(r"/api/v1/uploads/.+")
        page.route(
            pattern,
            lambda route: handler(route) if route.request.method == "PATCH" else route.continue_(),
        )
        yield
        page.unroute(pattern)

    with watched(cut):
        page.locator("#files").set_input_files(file)
        expect(page.locator(".upload__state")).to_contain_text("8.4 MB", timeout=30_000)
        page.get_by_role("button", name="Pause large.bin").click()
        expect(page.locator(".upload__state")).to_contain_text("paused")
        page.on("dialog", lambda dialog: dialog.accept())
        page.reload()
    page.on(
        "request",
        lambda request: (
            offsets.append(int(request.headers["upload-offset"]))
            if request.method == "PATCH"
            else None
        ),
    )
    page.locator("#files").set_input_files(file)

    expect(page.get_by_role("link", name="Open the dataset")).to_be_visible(timeout=60_000)
    assert offsets[0] == 8 << 20
    assert [text for text in ada.complaints if "ERR_FAILED" not in text] == []


def test_an_upload_that_does_not_fit_is_refused_in_words(
    person: Callable[..., Person], tmp_path: Path
) -> None:
    eve = person("eve")
    file = tmp_path / "large.bin"
    file.write_bytes(b"x" * (3 << 20))
    eve.open("/datasets/")

    eve.page.locator("#files").set_input_files(file)

    expect(eve.page.locator(".upload__state")).to_contain_text("3.0 MiB do not fit", timeout=30_000)
    assert [text for text in eve.complaints if "413" not in text] == []


def test_a_keyboard_is_enough(person: Callable[..., Person]) -> None:
    ada = person("ada")
    page = ada.page

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    ada.open("/jobs/new/")
    page.get_by_text("Template", exact=True).click()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("textbox", name="Python program")).to_be_visible()
    menu = page.locator("summary")
    menu.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()


def test_the_chosen_theme_stays(person: Callable[..., Person]) -> None:
    ada = person("ada", color_scheme="light")
    html = ada.page.locator("html")

    expect(html).to_have_attribute("data-theme", "light")
    ada.page.get_by_role("button", name="Switch between light and dark").click()
    expect(html).to_have_attribute("data-theme", "dark")
    ada.open("/cluster/")
    expect(html).to_have_attribute("data-theme", "dark")


PAGES = (
    "/", "/jobs/", "/jobs/new/", "/jobs/new/?source=editor", "/datasets/",
    "/cluster/", "/cluster/this-machine/", "/lab/", "/account/", "/account/tokens/",
    "/accounts/email/",
    "/accounts/password/change/", "/api/v1/docs/", "/no-such-page/",
)  # fmt: skip
STAFF_PAGES = ("/simulations/", "/simulations/new/")
ENTRANCES = ("/accounts/login/", "/accounts/signup/", "/accounts/password/reset/")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_accessible_and_fits(
    person: Callable[..., Person], theme: str, width: int, tmp_path: Path
) -> None:
    options = {"color_scheme": theme, "viewport": {"width": width, "height": 844}}
    stranger, ada, root = person(**options), person("ada", **options), person("root", **options)
    found: dict[str, Any] = {}
    own = (*PAGES, *own_things(ada, tmp_path), trial(ada))
    staff = (*STAFF_PAGES, simulation(root))
    for visitor, paths in ((stranger, ENTRANCES), (ada, own), (root, staff)):
        for path in paths:
            visitor.complaints.clear()
            visitor.open(path)
            expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
            for tab in visitor.page.get_by_role("tab").all() or [None]:
                if tab is not None:
                    tab.click()
                problems = axe(visitor.page)
                wide = visitor.page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    problems.append(f"{wide} pixels wide")
                if path != "/no-such-page/":
                    problems += visitor.complaints
                if problems:
                    found[path] = problems

    assert found == {}


def own_things(ada: Person, folder: Path) -> list[str]:
    """Return the pages of a dataset and a job, which are made where there are none yet."""
    page = ada.page
    ada.open("/datasets/")
    if not page.locator("#datasets .row-link").count():
        page.locator("#files").set_input_files(letters(folder))
        expect(page.locator("#datasets .row-link")).to_have_count(1, timeout=30_000)
    dataset = page.locator("#datasets .row-link").first.get_attribute("href")
    ada.open("/jobs/")
    if not page.locator("#jobs .row-link").count():
        ada.open("/jobs/new/")
        write_program(page, "print('[metric] step=1 loss=2')\n")
        page.get_by_label("Environment", exact=True).select_option("plain")
        page.get_by_role("button", name="Submit the job").click()
        expect(page.locator("#state")).to_be_visible()
        ada.open("/jobs/")
    job = page.locator("#jobs .row-link").first.get_attribute("href")
    return [dataset, job, f"{job}clone/"]


def trial(ada: Person) -> str:
    """Return the page of a trial of the lab that is over, which is made where there is none."""
    ada.open("/lab/")
    if not ada.page.locator(".row-link").count():
        ada.page.get_by_label("Seconds").fill("1")
        ada.page.get_by_role("button", name="Place it").click()
        # Live: the swarm moves before the search is over.
        expect(ada.page.locator("#swarm")).to_have_attribute(
            "data-frame", re.compile(r"\d+"), timeout=90_000
        )
        expect(ada.page.locator("#run-state")).to_have_attribute("data-state", "done")
        expect(ada.page.locator("#packing")).to_be_visible()
        expect(ada.page.locator("#moment")).to_be_visible()
    else:
        ada.page.locator(".row-link").first.click()
    return str(ada.page.url.removeprefix(ada.portal.url))


def simulation(root: Person) -> str:
    """Return the page of a simulation that is over, which is made where there is none."""
    root.open("/simulations/")
    if not root.page.locator(".row-link").count():
        root.open("/simulations/new/")
        root.page.get_by_text("The example", exact=True).click()
        root.page.get_by_role("button", name="Simulate").click()
    else:
        root.page.locator(".row-link").first.click()
    expect(root.page.locator("#run-state")).to_have_attribute("data-state", "done", timeout=90_000)
    expect(root.page.locator("#figures .chart__plot").first).to_be_visible()
    return str(root.page.url.removeprefix(root.portal.url))
