"""The page at /docs in a real browser, without any other server."""

from typing import Any

import pytest

from tests.e2e.playground.conftest import Page


@pytest.mark.slow
def test_the_docs_list_the_endpoints_and_try_one_out(driver: Any, url: str) -> None:
    page = Page(driver, url)
    page.console()  # of the page before
    driver.get(f"{url}/docs")
    page.until(lambda: page.all("#operations-operation-live_healthz_get"))
    paths = page.texts(".opblock-summary-path")
    assert "/v1/act" in [path.replace("\u200b", "") for path in paths]
    assert page.all(".authorize")  # the security schemes
    page.all("#operations-operation-live_healthz_get button")[0].click()
    page.until(lambda: page.all("#operations-operation-live_healthz_get .try-out__btn"))
    page.all("#operations-operation-live_healthz_get .try-out__btn")[0].click()
    page.until(lambda: page.all("#operations-operation-live_healthz_get .execute"))
    page.all("#operations-operation-live_healthz_get .execute")[0].click()
    page.until(lambda: "200" in page.texts(".live-responses-table .response-col_status"))
    assert page.console() == []
