"""The browser of the console's tests: one for each file, since its event loop is nobody else's."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from toy_console import ARGUMENTS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None and os.environ.get("CI"):
        pytest.fail("CI lacks chromium: is it in .ci/packages.txt?")
    if program is None:
        pytest.skip("the console is not tried: chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()
