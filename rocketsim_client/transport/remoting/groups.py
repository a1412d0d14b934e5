"""Makes a consumer group visible to RocketMQ's tools when the group commits.

`mqadmin consumerProgress` and the dashboard list the groups whose topic `%RETRY%group` exists.  RocketMQ's consumers
create the retry topic of their group with their first heartbeat.  This client sends no heartbeats, because a heartbeat
would make it a member of the group, and the group would assign queues to it.
"""

import logging

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from rocketsim_client.errors import RocketSimError
from rocketsim_client.transport.remoting.connections import Connections, Request

logger = logging.getLogger(__name__)

RETRY = "%RETRY%"


def retry_topic_request(group: str) -> Request:
    """Returns the request that creates the group's retry topic with RocketMQ's own settings."""
    fields = {
        "topic": RETRY + group,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return Request(RequestCode.UPDATE_AND_CREATE_TOPIC, f"registering group {group!r}", fields)


class Groups:
    """Registers groups as the option `registerGroup` says.  With `auto` each group is registered at each broker in one
    attempt, and a refusal is only logged.  With `true` a refusal is raised as an error.  With `false` no group is
    registered."""

    def __init__(self, connections: Connections, register: str) -> None:
        self._connections = connections
        self._register = register
        self._done: set[tuple[str, str]] = set()

    def committed(self, address: str, group: str, timeout_s: float) -> None:
        """Registers the group at the broker, unless that was done before.  The method is called after the group has
        committed offsets at this broker."""
        if self._register == "false" or (address, group) in self._done:
            return
        try:
            if not self._is_registered(address, group, timeout_s):
                self._connections.call(address, retry_topic_request(group), timeout_s)
                logger.info("group %s is registered at %s, for RocketMQ's tools", group, address)
        except RocketSimError as error:
            if self._register == "true":
                raise
            logger.warning(
                "group %s has committed, but RocketMQ's tools will not list it: %s (registerGroup=false stops trying)",
                group,
                error,
            )
        self._done.add((address, group))

    def _is_registered(self, address: str, group: str, timeout_s: float) -> bool:
        """Returns True if the broker has the group's retry topic."""
        request = Request(RequestCode.GET_TOPIC_STATS_INFO, f"the retry topic of {group!r}", {"topic": RETRY + group})
        reply = self._connections.call(address, request, timeout_s, (ResponseCode.TOPIC_NOT_EXIST,))
        return reply.header.code == 0
