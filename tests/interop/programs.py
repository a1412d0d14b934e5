"""What RocketMQ's own client reads and pops at a real RocketMQ: the Java programs of this folder."""

import json
from pathlib import Path
from typing import Any

from testbed.real_rocketmq import BROKER_NAME, RocketMQ

HERE = Path(__file__).parent


def read(rocketmq: RocketMQ, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """See Reader.java."""
    return _run(rocketmq, "Reader.java", requests)


def pop(rocketmq: RocketMQ, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """What it pops, having sent and acknowledged; see Popper.java."""
    return _run(rocketmq, "Popper.java", requests)


def _run(rocketmq: RocketMQ, program: str, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    file = rocketmq.work / "requests"
    file.write_text("".join("\t".join(words) + "\n" for words in requests), encoding="utf-8")
    printed = rocketmq.run(str(HERE / program), rocketmq.name_server, BROKER_NAME, str(file))
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
