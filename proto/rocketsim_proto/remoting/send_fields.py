"""The names of a send's fields.  SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE use a letter for each name of SEND_MESSAGE."""

from collections.abc import Mapping

LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "brokerName": "n",
}
NAMES = {letter: name for name, letter in LETTERS.items()}


def long_names(fields: Mapping[str, str]) -> dict[str, str]:
    """Renames the fields of a SEND_MESSAGE_V2 to the names of SEND_MESSAGE.  Other fields keep their names."""
    return {NAMES.get(letter, letter): value for letter, value in fields.items()}
