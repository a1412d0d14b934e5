"""The pages in a real browser, on real brokers and the real `rocketsim console`: `./run test --browser`."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from rocketsim_client import Admin, Message, Producer
from rocketsim_client.admin_model import SubscriptionGroupConfig
from rocketsim_client.errors import InvalidParameter
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes
from tests.support.web_console import ConsoleProcess, browser, chromium, sending

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="these tests need Chromium, as in Debian's package chromium"),
]
expect.set_options(timeout=PROCESS_PATIENCE_S * 1000)

HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
LONG = "a-topic-with-a-name-that-is-much-longer-than-a-phone-is-wide-" + "x" * 60
PAGES = {  # address -> the heading
    "/": "Overview",
    "/topics": "Topics",
    "/topics?kind=all": "Topics",
    "/topics/orders": "orders",
    f"/topics/{LONG}": LONG,
    "/groups": "Consumer groups",
    "/groups/billing": "billing",
    "/messages": "Messages",
    "/messages?topic=orders": "Messages",
    "/messages?topic=orders&broker=broker-a&at=0&offset=0": "Messages",
    "/failovers": "Failovers",
}
CONSOLE_ENDS = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
WRONG_KEY = "wr0ng-s3cr3t-of-the-console"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def open_page(chrome: Any) -> Iterator[Callable[..., Page]]:
    """Opens a window.  The test fails if a page logs an error in the browser's console, for example a violation of the
    Content-Security-Policy.  `expected` is a pattern of errors that the test causes on purpose.
    """
    contexts, errors = [], []

    def opened(expected: str = "(?!)", **options: Any) -> Page:
        options = {"viewport": {"width": 1280, "height": 900}} | options
        contexts.append(chrome.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(PROCESS_PATIENCE_S * 1000)

        def note(text: str) -> None:
            if not re.search(expected, text):
                errors.append(text)

        page.on("console", lambda said: note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(str(error)))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the name server of a pair with messages in topic `orders`.  Group `billing` has consumed one of these
    messages.
    """
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        name_server = processes.start_namesrv()
        processes.start_pair("broker-a", name_server, brokerRole="SYNC_MASTER")
        with Admin(name_server.address) as admin, Producer(name_server.address) as producer:
            for topic in ("orders", LONG):
                admin.update_topic(topic, read_queue_nums=1, write_queue_nums=1)
            producer.send(Message("orders", json.dumps({"name": HOSTILE}).encode(), keys="k1", tags=HOSTILE))
            producer.send(Message("orders", HOSTILE.encode(), keys="k2"))
            producer.send(Message("orders", bytes(range(256)) * 40, keys="k3"))
            admin.update_sub_group(SubscriptionGroupConfig(group_name="billing"))
            admin.cluster.commit("billing", {admin.cluster.queues("orders")[0]: 1})
        yield name_server.address


@pytest.fixture(scope="module")
def console(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ConsoleProcess(cluster, tmp_path_factory.mktemp("console") / "log") as process:
        yield process.url.rstrip("/")


def tile(page: Page, label: str) -> Locator:
    """Returns the value of the tile with that label."""
    named = page.get_by_text(label, exact=True)
    return page.locator(".tile").filter(has=named).locator(".value")


def is_complete(page: Page, heading: str) -> None:
    """Waits until the page has its heading and its data."""
    expect(page.locator("h1")).to_have_text(heading)
    expect(page.locator("main .card").first).to_be_visible()
    expect(page.get_by_text(re.compile("^(Searching|Reading) …$"))).to_have_count(0)
    if "/messages" not in page.url:
        expect(page.locator("#live")).to_have_text("live")
    expect(page.locator(".notice.critical")).to_have_count(0)


@pytest.mark.parametrize("address", PAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page_opens_without_an_error_and_fits_a_phone(console, open_page, address, theme):
    page = open_page(viewport={"width": 390, "height": 844}, color_scheme=theme)
    page.goto(console + address)
    is_complete(page, PAGES[address])
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#nav").evaluate("nav => nav.scrollWidth <= nav.clientWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", background)[:3])
    assert (red + green + blue > 3 * 200) == (theme == "light"), background
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.title() != "hit"


def test_rates_numbers_and_lag_change_without_a_reload(console, cluster, open_page):
    overview, topic, group = open_page(), open_page(), open_page()
    for page, address in ((overview, "/"), (topic, "/topics/orders"), (group, "/groups/billing")):
        page.goto(console + address)
        is_complete(page, PAGES[address])
        page.evaluate("window.stays = true")
    messages, lag = tile(topic, "messages").inner_text(), tile(group, "lag").inner_text()
    with sending(cluster, "orders"):
        expect(tile(overview, "sent")).to_have_text(re.compile(r"^[\d.,]*[1-9][\d.,]*/s$"))
        expect(tile(topic, "messages")).not_to_have_text(messages)
        expect(tile(topic, "sent")).to_have_text(re.compile(r"^[\d.,]*[1-9][\d.,]*/s$"))
        expect(tile(group, "lag")).not_to_have_text(lag)
        expect(tile(group, "age of the lag")).to_have_text(re.compile(r"\d"))
        expect(group.locator(".legend")).to_have_text(re.compile(r"^broker-a [\d,]*[1-9][\d,]*$"))
        expect(group.locator(".chart .line")).to_have_attribute("d", re.compile("M.*L"))
    with Admin(cluster) as admin:
        (queue,) = admin.cluster.queues("orders")
        admin.cluster.commit("billing", {queue: admin.cluster.bounds("orders")[queue].max_offset})
    expect(tile(group, "lag")).to_have_text("0")
    for page in (overview, topic, group):
        assert page.evaluate("window.stays")


def test_a_failover_is_seen_while_it_happens(tmp_path, open_page):
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        master, slave = processes.start_pair("broker-a", name_server, brokerRole="SYNC_MASTER")
        with ConsoleProcess(name_server.address, tmp_path / "console.log") as console:
            overview, failovers = open_page(expected=CONSOLE_ENDS), open_page(expected=CONSOLE_ENDS)
            overview.goto(console.url)
            failovers.goto(f"{console.url}failovers")
            pair = overview.locator('[data-pair="broker-a"]')
            expect(pair).to_have_attribute("data-level", "ok")
            master.kill()
            expect(pair).to_have_attribute("data-level", "critical")
            expect(pair).to_contain_text("No master answers")
            expect(tile(overview, "masters that take sends")).to_have_text("0 of 1")
            expect(failovers.locator("ol.timeline")).to_contain_text("the master")
            promote(name_server.address, slave.address)
            row = pair.locator("tr", has_text=slave.address)
            expect(row.get_by_text("master", exact=True)).to_be_visible()
            expect(tile(overview, "masters that take sends")).to_have_text("1 of 1")
            promoted = failovers.locator("ol.timeline li", has_text="is the master now")
            expect(promoted).to_contain_text(slave.address)
            began = failovers.get_by_role("row").filter(has_text="after promotion 1")
            expect(began).to_contain_text(slave.address)
            expect(overview.locator(".chart .mark").first).to_be_attached()


def promote(name_server: str, slave: str) -> None:
    """Promotes as soon as the death of the master is noticed."""

    def is_promoted() -> bool:
        try:
            admin.promote_slave(slave, broker_name="broker-a")
        except InvalidParameter as refusal:
            assert "stop it first" in str(refusal)
            return False
        return True

    with Admin(name_server) as admin:
        wait_until(is_promoted, f"{slave} is promoted")


def test_keys_open_pages_search_change_the_theme_and_list_themselves(console, open_page):
    page = open_page(color_scheme="light")
    page.clock.install()
    page.goto(console)
    is_complete(page, "Overview")
    # stops the clock, because two keys make one shortcut only within little more than a second
    page.clock.pause_at(datetime.now() + timedelta(minutes=1))
    for key, address in {"t": "/topics", "g": "/groups", "m": "/messages", "f": "/failovers", "o": "/"}.items():
        page.keyboard.type(f"g{key}")
        expect(page).to_have_url(console + address)
        expect(page.locator('#nav [aria-current="page"]')).to_have_attribute("href", address)
    page.keyboard.press("g")
    page.clock.fast_forward(1200)
    page.keyboard.press("t")
    expect(page).to_have_url(console + "/")
    page.keyboard.type("gt")
    expect(page.locator("h1")).to_have_text("Topics")
    page.clock.resume()
    page.keyboard.press("/")
    expect(page.get_by_label("Search topics")).to_be_focused()
    page.keyboard.type("ord")  # keys in a field are text
    expect(page).to_have_url(re.compile(r"\?q=ord$"))
    expect(page.get_by_label("Search topics")).to_be_focused()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("h1").click()
    page.keyboard.press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("between light and dark")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()


def test_a_row_is_a_link_and_the_way_back_works(console, open_page):
    page = open_page()
    page.goto(f"{console}/topics")
    page.get_by_role("link", name="orders", exact=True).click()
    is_complete(page, "orders")
    page.go_back()
    is_complete(page, "Topics")


def test_a_message_as_json_text_and_hex_and_html_in_it_is_text(console, open_page):
    page = open_page()
    page.goto(f"{console}/messages")
    page.get_by_label("topic").fill("orders")
    page.get_by_label("find").select_option("key")
    page.get_by_role("textbox", name="key").fill("k1")
    page.get_by_role("button", name="Find").click()
    page.locator("tbody tr").first.get_by_role("link").click()
    body = page.locator("pre")
    expect(body).to_contain_text(json.dumps(HOSTILE))
    page.get_by_role("tab", name="text").click()
    expect(body).to_have_text(json.dumps({"name": HOSTILE}))
    page.get_by_role("tab", name="hex").click()
    expect(body).to_contain_text("00000000  7b 22 6e 61")
    expect(page.locator("main")).to_contain_text(HOSTILE)  # the tags, too
    page.get_by_role("link", name="next").click()
    expect(body).to_have_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "hit"
    page.get_by_role("link", name="next").click()
    expect(page.get_by_role("tab")).to_have_text(["hex"])
    with page.expect_download() as download:
        page.get_by_role("link", name="download").click()
    assert download.value.path().read_bytes() == bytes(range(256)) * 40


def test_a_message_that_does_not_exist_is_said(console, open_page):
    page = open_page(expected="status of 404")
    page.goto(f"{console}/messages?topic=orders&broker=broker-a&at=0&offset=99999999")
    expect(page.get_by_role("alert")).to_contain_text("99999999")
    page.goto(f"{console}/groups/nobody")
    expect(page.get_by_role("alert")).to_contain_text("'nobody'")


def test_wrong_keys_give_a_clear_page_and_no_secret(tmp_path, open_page):
    admin = {"username": "admin", "password": "4dm1n-s3cr3t"}
    inner = {"accessKey": "broker", "secretKey": "1nn3r-s3cr3t"}
    keys = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": json.dumps(admin),
        "innerClientAuthenticationCredentials": json.dumps(inner),
    }
    wrong = {"ROCKETSIM_ACCESS_KEY": "admin", "ROCKETSIM_SECRET_KEY": WRONG_KEY}
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv(**keys)
        processes.start_broker("broker-a", 0, name_server, **keys, authorizationEnabled="true")
        with ConsoleProcess(name_server.address, tmp_path / "console.log", wrong) as console:
            page = open_page(expected=f"status of (403|502)|{CONSOLE_ENDS}")
            answers = []
            page.on("response", lambda answer: answers.append(answer))
            for address in ("", "topics?kind=all", "topics/TBW102", "groups", "messages?topic=TBW102"):
                page.goto(console.url + address)
                expect(page.locator("main")).to_contain_text("check signature failed")
                assert WRONG_KEY not in page.content()
            page.goto(console.url)
            expect(page.get_by_role("alert")).to_contain_text("A broker refuses the console's access keys")
            for secret in (WRONG_KEY, admin["password"], inner["secretKey"]):
                assert secret not in console.log.read_text()
                assert not any(secret in str(answer.headers) for answer in answers)


def test_pages_continue_by_themselves_when_the_console_is_started_again(cluster, tmp_path, open_page):
    page = open_page(expected=CONSOLE_ENDS)
    with ConsoleProcess(cluster, tmp_path / "console.log") as console:
        page.goto(f"{console.url}topics/orders")
        is_complete(page, "orders")
        messages = tile(page, "messages").inner_text()
        console.kill()
        expect(page.locator("#live")).to_have_text("connection lost")
        console.start()
        expect(page.locator("#live")).to_have_text("live")
        with sending(cluster, "orders"):
            expect(tile(page, "messages")).not_to_have_text(messages)
