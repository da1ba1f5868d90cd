"""A browser and a server on a seeded database, for all tests of the dashboard."""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.sharded.broker import ShardedBroker
from ackflow.server.app import Server
from ackflow.server.console.ui import UiSettings
from ackflow.server.routes import all_routes

from ..running import Host
from ..server.conftest import start_process as start_process
from .seed import seed

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv/clients/axe-core/node_modules/axe-core/axe.min.js"
SHOTS = Path(os.environ.get("ACKFLOW_SCREENSHOTS", ROOT / ".screenshots"))
WAIT = 40.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--lang=en-US", "--hide-scrollbars",
)  # fmt: skip


def need(path: str | None, what: str) -> str:
    """A program or file of the tests: without it they are skipped, and fail in CI."""
    if path is not None and Path(path).exists():
        return path
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing; make setup installs it")
    pytest.skip(f"{what} is missing; make setup installs it")


class Board:
    """The server under test; `serve` changes its settings."""

    def __init__(self, session: Session, clock: VirtualClock) -> None:
        self.session, self.clock = session, clock
        self.host = Host()
        self.url = self.host.url
        self.serve()

    def serve(self, **ui: Any) -> Server:
        """Answer with these settings from now on."""
        settings = UiSettings(**ui)

        async def change() -> Server:
            for connection in list(self.host.connections._open):
                connection.abort()
            if self.host.app is not None:
                self.host.app.close_threads()
            several = isinstance(self.session.broker, ShardedBroker)
            return Server(self.session, all_routes(several, settings), ui=settings)

        made = asyncio.run_coroutine_threadsafe(change(), self.host.loop).result(30)
        self.host.app = made
        return made

    def get(self, path: str, **query: Any) -> Any:
        answer = httpx.get(self.url + path, params=query, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()


class Browser:
    """Chromium, used as a person would: by what is written on the page."""

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver, self.base = driver, base
        self.theme("light")
        self.size(1280, 900)

    def theme(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, page: str, title: str | None = None, path: str = "/ui/") -> None:
        """Open a page of the dashboard, and wait until it has read its data."""
        self.driver.get("about:blank")  # ends what the page before still does, as going elsewhere
        self.driver.get(f"{self.base}{path}#/{page}")
        self.until(lambda: self.js("return document.querySelector('main h1')?.textContent"))
        self.until(lambda: not self.js("return document.querySelectorAll('tr.loading').length"))
        if title is not None:
            self.sees(title)

    def js(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def until(self, check: Callable[[], Any]) -> Any:
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + WAIT
        while True:
            with contextlib.suppress(
                NoSuchElementException, StaleElementReferenceException,
                ElementClickInterceptedException,
            ):  # fmt: skip
                if found := check():
                    return found
            assert time.monotonic() < deadline, f"waited in vain; the page says: {self.text()}"
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.js("return document.body.innerText"))

    def sees(self, *texts: str) -> None:
        for text in texts:
            self.until(lambda text=text: text in self.text())

    def click(self, label: str, within: str = "") -> None:
        """Click the button or link with this text or label; in a dialog, if one is open."""
        find = """
            const box = document.querySelector('dialog[open]') || document;
            const all = [...box.querySelectorAll(arguments[1] + ' button, ' + arguments[1] + ' a')];
            const name = (one) => one.getAttribute('aria-label') || one.textContent.trim();
            return all.find((one) => name(one) === arguments[0] && !one.disabled);"""

        def attempt() -> bool:
            found = self.js(find, label, within)
            if found is not None:
                self.js("arguments[0].scrollIntoView({block: 'nearest'})", found)
                found.click()
            return found is not None

        self.until(attempt)

    def fill(self, name: str, value: str) -> None:
        """Write into the field with this name."""

        def attempt() -> bool:
            root = (
                "dialog[open]"
                if self.js("return !!document.querySelector('dialog[open]')")
                else "main"
            )
            field = self.driver.find_element(By.CSS_SELECTOR, f"{root} [name='{name}']")
            field.click()
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(value)
            return True

        self.until(attempt)

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def shot(self, name: str) -> Path:
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    def requests(self) -> list[str]:
        """The addresses of all requests since the last call."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def problems(self) -> list[str]:
        """What the console of the browser has reported, but for refused requests."""
        return [
            one["message"]
            for one in self.driver.get_log("browser")
            if "Failed to load" not in one["message"]
        ]

    def forget(self) -> None:
        self.driver.delete_all_cookies()
        self.js("localStorage.clear(); sessionStorage.clear()")


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """A server on a seeded database in memory, for the tests of one module."""
    clock = VirtualClock(time.time() - 4_260)
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as session:
        seed(session, clock)
        made = Board(session, clock)
        yield made


@pytest.fixture(scope="module")
def browser(board: Board) -> Iterator[Browser]:
    """A browser at the server of the module."""
    chromium = need(shutil.which("chromium"), "Chromium")
    driver = need(shutil.which("chromedriver"), "ChromeDriver")
    options = Options()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        started = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield Browser(started, board.url)
        finally:
            started.quit()
