"""Drives Chromium from the system's packages with Selenium: one browser for each test worker."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

DEADLINE_SECONDS = 60
FLAGS = (
    "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP evil.test 127.0.0.1",
)  # fmt: skip
WIDE, NARROW = (1360, 860), (380, 760)


class Browser:
    """A browser and the page that it shows."""

    def __init__(self, profile: Path) -> None:
        programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
        if None in programs:
            pytest.skip("chromium or chromedriver is not installed")
        options = Options()
        options.binary_location = str(programs[0])
        # Chromium refuses to start as root with the sandbox on.
        for flag in (*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(programs[1])))

    def prepare(self, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        """Set the window and the system's theme."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def open(self, address: str) -> None:
        """Open an address, and wait until the page has loaded its calls."""
        # The browser does not reload a document if only the fragment of the address changes.
        self.driver.get("about:blank")
        self.driver.get(address)
        self.until(lambda: self.js("return document.documentElement.dataset.state") == "ready", "the page is ready")
        self.settle()

    def js(self, code: str, *arguments: object) -> Any:
        """Run code in the page."""
        return self.driver.execute_script(code, *arguments)

    def until(self, fact: Callable[[], object], words: str) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not fact():
            assert time.monotonic() < end, f"never: {words}\n{self.log()}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until the page is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def press(self, *keys: str) -> None:
        """Press keys."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element of a kind whose text contains this."""
        found = self.js(
            "const [s, t] = arguments; const e = [...document.querySelectorAll(s)].find((e) => e.textContent.includes(t));"
            "if (e) e.click(); return Boolean(e)",
            selector,
            text,
        )
        assert found, f"no {selector} with {text!r}"
        self.settle()

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the visible elements of a kind."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])].filter((e) => e.getClientRects().length).map((e) => e.textContent)",
            selector,
        )
        return found

    def text(self, selector: str) -> str:
        """Return the text of the only element of a kind."""
        (found,) = self.texts(selector)
        return found

    def commands(self) -> list[str]:
        """Return the calls in the list, from the top."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll('.row')].sort((a, b) => a.dataset.at - b.dataset.at).map((row) => row.querySelector('.command').textContent)"
        )
        return found

    def log(self) -> list[str]:
        """Return the console messages since the last call: errors, and violations of the page's content security policy."""
        return [str(line["message"]) for line in self.driver.get_log("browser")]


# The calls of the test log: two are refused, one fails.
OUTSIDE = "cd src && cat /etc/shadow"
CALLS = ("ls", "sort notes.txt | head -1", OUTSIDE, "sudo id", "exit 3")
