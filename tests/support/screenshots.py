"""Takes the pictures of the web console for the documents: `python -m tests.support.screenshots` writes
docs/images/*.png.

The program starts two pairs, producers and consumers, kills and replaces a master, and opens the forms with which users
change something, which takes about two minutes.  With `--looks FOLDER` it also takes each picture with dark colours and
at a phone's width into that folder, for those who change the pages.  With `--report FILE` it only takes the picture of
a demo's report, which `rocketsim demo --report FILE` has made.
"""

import argparse
import io
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from PIL import Image

from rocketsim_cli.console import console_for
from rocketsim_cli.local_cluster import LocalCluster, pair_properties
from rocketsim_client import Admin, Consumer, Message, Producer
from rocketsim_client.errors import InvalidParameter, RocketSimError
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.support.web_console import ConsoleProcess, browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 1280
BEFORE_S, AWAY_S, AFTER_S = 45, 15, 12  # how long the charts show each state
FROZEN_S = 1.5
PHONE_HEIGHT = 1000
REPORT_HEIGHT = 1250
DARK = {"viewport": {"width": WIDTH, "height": 800}, "color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"}
LOOKS = {"dark": DARK, "phone": PHONE}
MARGIN = 12  # pixels of the page that are shown around a part of it, less than there is between two parts
GAP = 24  # pixels between two pictures in one file
BEHIND = (230, 233, 238)
CORNERS = """one => {
    one.scrollIntoView({ block: "center" });
    const { left, top, right, bottom } = one.getBoundingClientRect();
    return [left, top, right, bottom];
}"""


def order(number: int) -> Message:
    body = {
        "order": number,
        "customer": f"c-{number * 7919 % 10_000:04}",
        "items": [{"article": f"a-{number % 97:02}", "quantity": 1 + number % 3}],
        "total": {"amount": f"{5 + number * 37 % 200}.90", "currency": "EUR"},
        "express": number % 5 == 0,
    }
    tags = "new" if number % 4 else "changed"
    return Message("orders", json.dumps(body).encode(), keys=f"order-{number}", tags=tags)


@contextmanager
def traffic(name_server: str) -> Iterator[None]:
    """Sends orders, which group `billing` consumes at once and group `reports` too slowly."""
    ends = threading.Event()

    def send() -> None:
        number = 0
        with Producer(name_server) as producer:
            while not ends.wait(random.uniform(0.002, 0.012)):
                number += 1
                with suppress(RocketSimError):  # a busy machine, or the master is away
                    producer.send(order(number))

    def settle(group: str, pause_s: float) -> None:
        with Consumer(name_server, group, "orders") as consumer:
            while not ends.is_set():
                with suppress(RocketSimError):  # calls fail while a master is away
                    for message in consumer.receive(timeout_s=1):
                        consumer.ack(message)
                        ends.wait(pause_s)

    jobs = [
        threading.Thread(target=send),
        threading.Thread(target=settle, args=("billing", 0)),
        threading.Thread(target=settle, args=("reports", 0.012)),
    ]
    for job in jobs:
        job.start()
    try:
        yield
    finally:
        ends.set()
        for job in jobs:
            job.join()


def in_palette(picture: Image.Image) -> Image.Image:
    """Returns the picture with its 256 most frequent colours.  The colours of the style stay exact, and those of the
    edges of letters change a little.
    """
    counted: Any = picture.getcolors(picture.width * picture.height) or []
    colours = [colour for _, colour in sorted(counted, reverse=True)[:256]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in colours for part in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def beside(pictures: list[Image.Image]) -> Image.Image:
    """Returns one picture that shows the others side by side, aligned at the top."""
    width = sum(one.width for one in pictures) + GAP * (len(pictures) + 1)
    whole = Image.new("RGB", (width, max(one.height for one in pictures) + 2 * GAP), BEHIND)
    at = GAP
    for one in pictures:
        whole.paste(one, (at, GAP))
        at += one.width + GAP
    return whole


def save(picture: Image.Image, path: Path) -> None:
    in_palette(picture).save(path, optimize=True)


class Camera:
    """Takes pictures of the pages of one console."""

    def __init__(self, chrome: Any, url: str, looks: Path | None) -> None:
        self._url, self._looks, self._chrome = url.rstrip("/"), looks, chrome
        self.light = chrome.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")

    def take(self, name: str, address: str, height: int | None = None) -> None:
        """Saves the page as `name`.png, cut off below `height`."""
        save(self._shot(self.light, address, height), IMAGES / f"{name}.png")
        if self._looks is not None:
            for look, options in LOOKS.items():
                save(self.seen(address, options), self._looks / f"{name}-{look}.png")

    def seen(self, address: str, options: Mapping[str, Any], height: int | None = None) -> Image.Image:
        """Returns a picture of the page in a new window with these options."""
        page = self._chrome.new_page(**options)
        try:
            return self._shot(page, address, height)
        finally:
            page.close()

    def form(
        self, address: str, button: str, values: Mapping[str, str], options: Mapping[str, Any] | None = None
    ) -> Image.Image:
        """Returns a picture of the form that a button opens, with these values in its fields."""
        page = self._chrome.new_page(**options) if options else self.light
        self._open(page, address)
        page.get_by_role("button", name=button, exact=True).first.click()
        dialog = page.get_by_role("dialog")
        for label, value in values.items():
            field = dialog.get_by_label(label, exact=True)
            field.select_option(value) if field.evaluate("one => one.tagName") == "SELECT" else field.fill(value)
        page.evaluate("document.activeElement.blur()")
        picture = self._part(page, dialog)
        page.keyboard.press("Escape")
        if options:
            page.close()
        return picture

    def part(self, address: str, selector: str) -> Image.Image:
        """Returns a picture of a part of the page."""
        self._open(self.light, address)
        return self._part(self.light, self.light.locator(selector))

    def _open(self, page: Any, address: str) -> None:
        if page.url != self._url + address:
            page.goto(self._url + address)
        page.wait_for_selector("main .card table, main .card ol")
        if "messages" not in address:
            page.wait_for_selector("#live.on")
        page.wait_for_timeout(2500)  # rates need two looks

    def _shot(self, page: Any, address: str, height: int | None) -> Image.Image:
        self._open(page, address)
        full = opened(page.screenshot(full_page=True))
        return full.crop((0, 0, full.width, min(full.height, height or full.height)))

    def _part(self, page: Any, element: Any) -> Image.Image:
        left, top, right, bottom = (round(corner) for corner in element.evaluate(CORNERS))
        full = opened(page.screenshot())
        around = max(0, left - MARGIN), max(0, top - MARGIN)
        return full.crop((*around, min(full.width, right + MARGIN), min(full.height, bottom + MARGIN)))


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def take_report(file: Path) -> None:
    """Saves the upper part of a demo's report as `demo-report.png`."""
    with browser() as chrome:
        page = chrome.new_page(viewport={"width": 900, "height": REPORT_HEIGHT}, color_scheme="light")
        page.goto(file.resolve().as_uri())
        save(opened(page.screenshot()), IMAGES / "demo-report.png")


def buttons_of_up(chrome: Any, folder: Path) -> Image.Image:
    """Returns a picture of the brokers of a cluster that `rocketsim up` would start, and of the form that kills one."""
    with LocalCluster(folder, pair_properties(0, sync=True)) as cluster:
        cluster.start()
        with Admin(cluster.name_server) as admin, console_for(cluster) as url:
            wait_until(lambda: len(admin.cluster_list()) == 2, "both brokers are registered")
            camera = Camera(chrome, str(url), None)
            camera.light.set_viewport_size({"width": 700, "height": 800})
            kill = camera.form("/", "Kill", {})
            cluster.kill(cluster.masters[0])
            camera.light.get_by_role("button", name="Start", exact=True).wait_for()
            return beside([camera.part("/", '[data-pair="broker-a"]'), kill])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--looks", type=Path, metavar="FOLDER")
    options.add_argument("--report", type=Path, metavar="FILE")
    given = options.parse_args()
    if given.report is not None:
        take_report(given.report)
        return
    looks = given.looks
    if looks is not None:
        looks.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = stack.enter_context(Processes(folder))
        name_server = processes.start_namesrv()
        master, slave = processes.start_pair("broker-a", name_server, brokerRole="SYNC_MASTER")
        processes.start_pair("broker-b", name_server, brokerRole="SYNC_MASTER")
        admin = stack.enter_context(Admin(name_server.address))
        wait_until(lambda: len(admin.cluster_list()) == 4, "all brokers are registered")
        for topic in ("orders", "payments", "shipments"):
            admin.update_topic(topic, read_queue_nums=2, write_queue_nums=2)
        console = stack.enter_context(ConsoleProcess(name_server.address, folder / "console.log"))
        writing = stack.enter_context(ConsoleProcess(name_server.address, folder / "write.log", None, "--write"))
        chrome = stack.enter_context(browser())
        camera, forms = Camera(chrome, console.url, looks), Camera(chrome, writing.url, looks)
        save(buttons_of_up(chrome, folder / "up"), IMAGES / "console-buttons.png")
        stack.enter_context(traffic(name_server.address))
        camera.light.goto(console.url)
        # This page is opened early, because it draws the lag from the moment at which it is opened.
        group_camera = Camera(chrome, console.url, looks)
        group_camera.light.goto(f"{console.url}groups/reports")
        time.sleep(BEFORE_S)
        # The master takes messages that its slave never gets, and that it cuts off its log later.
        slave.freeze()
        time.sleep(FROZEN_S)
        master.kill()
        slave.thaw()
        time.sleep(AWAY_S)
        camera.take("console-overview", "/")
        promotion = forms.form("/", "Promote", {})
        save(camera.seen("/", DARK), IMAGES / "console-dark.png")

        def is_promoted() -> bool:
            try:
                admin.promote_slave(slave.address, broker_name="broker-a")
            except InvalidParameter:  # the master's death is not noticed yet
                return False
            return True

        wait_until(is_promoted, "the slave is promoted")
        time.sleep(AFTER_S)
        master.keys["brokerRole"] = "SLAVE"
        master.keys["brokerId"] = 1
        master.start()
        time.sleep(AFTER_S)
        camera.take("console-failovers", "/failovers")
        group_camera.take("console-group", "/groups/reports", height=890)
        new_topic = forms.form("/topics", "New topic", {"topic": "invoices", "queues on each broker": "4"})
        new_group = forms.form("/groups", "New group", {"group": "archive"})
        reset = forms.form("/groups/reports", "Reset offsets", {"time": f"{date.today()}T09:00:00"})
        save(beside([new_topic, new_group]), IMAGES / "console-new.png")
        save(beside([reset, promotion]), IMAGES / "console-changes.png")
        phones = [camera.seen(address, PHONE, PHONE_HEIGHT) for address in ("/", "/groups/reports", "/failovers")]
        save(beside(phones), IMAGES / "console-phone.png")
        if looks is not None:
            for look, options in LOOKS.items():
                save(forms.form("/groups/reports", "Reset offsets", {}, options), looks / f"form-{look}.png")
        queue = admin.cluster.queues("orders")[0]
        place = f"broker={queue.broker_name}&at={queue.queue_id}&offset=42"
        camera.take("console-message", f"/messages?topic=orders&{place}")


if __name__ == "__main__":
    main()
