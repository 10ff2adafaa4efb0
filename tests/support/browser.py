"""One Chromium for a pytest worker, driven from a thread of its own.

Playwright's synchronous API leaves a running event loop in its thread, in which ``asyncio.run`` fails for every later
test. A test that takes ``page`` (or ``pages``) therefore runs in that thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support import chromium
from support.npm import node

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--mute-audio",
)
SIZE = {"width": 1280, "height": 800}
WAIT_MS = 20_000
RUN_S = 110.0  # less than a test may take


class Browser:
    """The browser and its thread."""

    def __init__(self) -> None:
        path = chromium.program()
        assert path is not None, "support/needs.py leaves these tests out"
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self.thread.submit(self._start, self._path).result(RUN_S)

    def _start(self, path: str) -> None:
        from playwright.sync_api import sync_playwright

        # Playwright's own Node needs a library that a small Debian lacks.
        os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", node())
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=path, args=list(FLAGS))

    def run(self, work: Callable[[], Any]) -> Any:
        """Do it in the browser's thread."""
        try:
            return self.thread.submit(work).result(RUN_S)
        except TimeoutError:
            self._begin()  # the thread hangs: later tests get another browser
            raise

    def close(self) -> None:
        self.run(self._browser.close)
        self.run(self._playwright.stop)
        self.thread.shutdown()


class Pages:
    """Contexts of one test: each is another visitor. What goes wrong in any page is in ``troubles``."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.troubles: list[str] = []
        self.expected: tuple[str, ...] = ()

    def new(self, **options: Any) -> Any:
        """The page of a new visitor."""
        context = self._browser._browser.new_context(**{"viewport": SIZE, **options})
        context.set_default_timeout(WAIT_MS)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        return page

    def _note(self, kind: str, text: str) -> None:
        gone = "net::ERR_" in text  # a page that looks again after its server has stopped
        if kind in ("error", "warning") and not gone and not any(one in text for one in self.expected):
            self.troubles.append(f"{kind}: {text}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    """Visitors. The test fails if a page of theirs wrote an error, such as of the content security policy."""
    made = Pages(browser)
    yield made
    browser.run(made.close)
    assert not made.troubles, made.troubles


@pytest.fixture
def page(browser: Browser, pages: Pages) -> Any:
    """The page of one visitor."""
    return browser.run(pages.new)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "pages" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    browser: Browser = pyfuncitem.funcargs["pages"]._browser
    browser.run(lambda: pyfuncitem.obj(**given))
    return True
