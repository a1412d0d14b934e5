"""What users may change in the console, in a real browser."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import Page, expect

from rocketsim_cli.console import console_for
from rocketsim_cli.local_cluster import LocalCluster, pair_properties
from rocketsim_client import Admin
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes
from tests.support.web_console import ConsoleProcess, browser, chromium

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="these tests need Chromium, as in Debian's package chromium"),
]
expect.set_options(timeout=PROCESS_PATIENCE_S * 1000)

ADMIN = {"username": "admin", "password": "4dm1n-s3cr3t"}
ACCESS_CONTROL = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": json.dumps(ADMIN),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "broker", "secretKey": "1nn3r-s3cr3t"}),
}


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def open_page(chrome: Any) -> Iterator[Callable[[], Page]]:
    contexts = []

    def opened(**options: Any) -> Page:
        contexts.append(chrome.new_context(**{"viewport": {"width": 1280, "height": 900}} | options))
        page: Page = contexts[-1].new_page()
        page.set_default_timeout(PROCESS_PATIENCE_S * 1000)
        return page

    yield opened
    for context in contexts:
        context.close()


def test_a_user_gives_their_keys_when_the_cluster_asks_for_them_and_changes_what_they_want(tmp_path, open_page):
    keys = {"access_key": ADMIN["username"], "secret_key": ADMIN["password"]}
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv(**ACCESS_CONTROL)
        processes.start_broker("broker-a", 0, name_server, **ACCESS_CONTROL, authorizationEnabled="true")
        own = {"ROCKETSIM_ACCESS_KEY": ADMIN["username"], "ROCKETSIM_SECRET_KEY": ADMIN["password"]}
        with ConsoleProcess(name_server.address, tmp_path / "log", own, "--write") as console:
            page = open_page(viewport={"width": 390, "height": 844})
            page.goto(f"{console.url}topics")
            page.get_by_role("button", name="New topic").click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("topic", exact=True).fill("orders")
            dialog.get_by_label("queues on each broker").fill("2")
            dialog.get_by_role("button", name="New topic").click()
            dialog.get_by_label("your access key").fill(ADMIN["username"])
            dialog.get_by_label("your secret key").fill(ADMIN["password"])
            dialog.get_by_role("button", name="New topic").click()
            expect(dialog).to_contain_text("Topic orders has 2 queues")
            assert dialog.evaluate("dialog => dialog.scrollWidth <= 390")
            dialog.get_by_role("button", name="Close").click()
            expect(page.locator("#user")).to_contain_text("admin")

            page.get_by_role("link", name="orders", exact=True).click()
            page.get_by_role("button", name="Change").click()
            expect(dialog.get_by_label("queues to read")).to_have_value("2")
            dialog.get_by_label("queues to write").fill("1")
            dialog.get_by_role("button", name="Change").click()
            expect(dialog).to_contain_text("Topic orders is changed")
            page.keyboard.press("Escape")
            with Admin(name_server.address, **keys) as admin:
                (config,) = [one for one in admin.topic_configs(admin.masters()[0]) if one.topic_name == "orders"]
                assert (config.read_queue_nums, config.write_queue_nums) == (2, 1)

            page.get_by_role("button", name="Sign out").click()
            expect(page.locator("#user")).to_be_empty()
            assert ADMIN["password"] not in page.content() + console.log.read_text()
            assert page.evaluate("document.cookie") == ""


def test_buttons_kill_a_broker_and_start_it_again(tmp_path, open_page):
    with LocalCluster(tmp_path, pair_properties(0, sync=False)) as cluster:
        cluster.start()
        with console_for(cluster) as url:
            page = open_page()
            page.goto(url)
            master = cluster.masters[0]
            row = page.locator("tr", has_text=re.compile(re.escape(master.address)))
            row.get_by_role("button", name="Kill").click()
            expect(page.get_by_role("dialog").get_by_role("button", name="Kill")).to_have_class("primary danger")
            page.get_by_role("dialog").get_by_role("button", name="Kill").click()
            expect(page.get_by_role("dialog")).to_contain_text("broker-a is killed.")
            assert not master.is_running()
            page.keyboard.press("Escape")
            row.get_by_role("button", name="Start").focus()
            wait_until(lambda: page.locator("#live").inner_text() == "live", "the page is live")
            page.keyboard.press("Enter")
            page.get_by_role("dialog").get_by_role("button", name="Start").click()
            expect(page.get_by_role("dialog")).to_contain_text("broker-a is back.")
            page.keyboard.press("Escape")
            expect(row.get_by_role("button", name="Kill")).to_be_visible()


def test_a_console_that_only_reads_has_no_buttons_for_changes(tmp_path, open_page):
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        processes.start_pair("broker-a", name_server)
        with ConsoleProcess(name_server.address, tmp_path / "log") as console:
            page = open_page()
            for address, name in (("", "Promote"), ("topics", "New topic"), ("groups", "New group")):
                page.goto(console.url + address)
                expect(page.locator("main .card").first).to_be_visible()
                expect(page.locator("#live")).to_have_text("live")
                expect(page.get_by_role("button", name=name)).to_have_count(0)
