"""The names of a send's fields.  SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE use a letter for each name of SEND_MESSAGE."""

from collections.abc import Mapping

from rocketsim_proto.remoting.codes import RequestCode

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
    """Renames the fields of a SEND_MESSAGE_V2 to the names of SEND_MESSAGE.  Other fields keep their names.

    A field that already has a name of SEND_MESSAGE is left out, because it could replace the field with the letter.
    """
    return {NAMES.get(name, name): value for name, value in fields.items() if name not in LETTERS}


def topic_of(code: int, fields: Mapping[str, str]) -> str:
    """Returns the topic of a send with this request code; "" if the send names none.

    Access control and the handler of sends both call this function, so that they never read different fields.
    """
    return fields.get("topic" if code == RequestCode.SEND_MESSAGE else LETTERS["topic"], "")
