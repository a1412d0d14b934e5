"""The servers of a cloud instance, which call a topic `INSTANCE%topic`, without Java."""

import json
from collections.abc import Sequence
from dataclasses import replace

from rocketsim_proto.records import record
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import Header

from rocketsim_client.transport.remoting.namespaces import Namespace
from tests.support.records import decode_all
from tests.support.remoting_peer import Recording, RemotingPeer, answer_to

INSTANCE = "MQ_INST_1"
OF_NO_INSTANCE = ("TOOLS_CONSUMER", "TBW102")


class Instance:
    """Replays the recorded 5.5.0 server, with the instance in its names.

    Fails if a request names a topic or group without the instance.  `listed` has the topics that the name server lists,
    and by default the name server lists the recorded topics, which belong to no instance.
    """

    def __init__(self, name: str = INSTANCE, listed: Sequence[str] | None = None) -> None:
        self._namespace = Namespace(name)
        self._listed = listed
        self._recording = Recording("5.5.0", changed=self._with_instance)
        self.peer = RemotingPeer(self._answer)
        self._recording.address = self.peer.address
        self.sent: list[Header] = []
        self.names: set[str] = set()  # the names of topics and groups as they came

    def _answer(self, request: Header, body: bytes) -> bytes | None:
        for name in ("topic", "consumerGroup", "a", "b"):
            if (value := request.fields.get(name, OF_NO_INSTANCE[0])) not in OF_NO_INSTANCE:
                assert self._namespace.has(value), (request.code, name, value)
                self.names.add(value)
                request.fields[name] = self._namespace.removed(value)
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            self.sent.append(request)
            return answer_to(request, queueId=request.fields["e"], queueOffset=0, msgId="x")
        return self._recording(request, body)

    def _with_instance(self, code: int, body: bytes) -> bytes:
        """Returns a recorded answer with the instance in the names of its messages, or with the topics to list."""
        if code == RequestCode.PULL_MESSAGE:
            found = (replace(one, topic=self._namespace.added(one.topic)) for one in decode_all(body))
            return b"".join(map(record.encode, found))
        if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER and self._listed is not None:
            return json.dumps({"topicList": list(self._listed)}).encode()
        return body
