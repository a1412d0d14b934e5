"""Takes the pictures of the web console for the documents: `python -m tests.support.screenshots` writes
docs/images/*.png.

The program starts two pairs, producers and consumers, and kills and replaces a master, which takes about two minutes.
With `--looks FOLDER` it also takes each picture with dark colours and at a phone's width into that folder, for those
who change the pages.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image

from rocketsim_client import Admin, Consumer, Message, Producer
from rocketsim_client.errors import InvalidParameter, RocketSimError
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.support.web_console import ConsoleProcess, browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 1280
BEFORE_S, AWAY_S, AFTER_S = 45, 15, 12  # how long the charts show each state
LOOKS = {
    "dark": {"viewport": {"width": WIDTH, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


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


class Camera:
    """Takes pictures of the console's pages."""

    def __init__(self, chrome: Any, url: str, looks: Path | None) -> None:
        self._url, self._looks, self._chrome = url, looks, chrome
        self.light = chrome.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")

    def take(self, name: str, address: str, height: int | None = None) -> None:
        """Saves the page as `name`.png, cut off below `height`."""
        IMAGES.mkdir(exist_ok=True)
        self._shoot(self.light, address, IMAGES / f"{name}.png", height)
        if self._looks is not None:
            for look, options in LOOKS.items():
                page = self._chrome.new_page(**options)
                self._shoot(page, address, self._looks / f"{name}-{look}.png", None)
                page.close()

    def _shoot(self, page: Any, address: str, path: Path, height: int | None) -> None:
        if page.url != self._url + address:
            page.goto(self._url + address)
        page.wait_for_selector("main .card table, main .card ol")
        if "messages" not in address:
            page.wait_for_selector("#live.on")
        page.wait_for_timeout(2500)  # rates need two looks
        page.screenshot(path=path, full_page=True)
        with Image.open(path) as full:
            shown = full.convert("RGB").crop((0, 0, full.width, min(full.height, height or full.height)))
        in_palette(shown).save(path, optimize=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--looks", type=Path, metavar="FOLDER")
    looks = options.parse_args().looks
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
        camera = Camera(stack.enter_context(browser()), console.url.rstrip("/"), looks)
        stack.enter_context(traffic(name_server.address))
        camera.light.goto(console.url)
        time.sleep(BEFORE_S)
        master.kill()
        time.sleep(AWAY_S)
        camera.take("console-overview", "/")

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
        camera.take("console-failovers", "/failovers", height=560)
        camera.take("console-group", "/groups/reports", height=620)
        queue = admin.cluster.queues("orders")[0]
        place = f"broker={queue.broker_name}&at={queue.queue_id}&offset=42"
        camera.take("console-message", f"/messages?topic=orders&{place}")


if __name__ == "__main__":
    main()
