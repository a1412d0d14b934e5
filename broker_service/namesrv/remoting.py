"""A name server's answers in RocketMQ's remoting protocol: routes and lists for RocketMQ 4's clients and its tools.

The answers have the addresses of the brokers' `remotingPort`, and leave out brokers without one.
"""

import logging
from typing import Any

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.reserved import RETRY_PREFIX, SYSTEM_TOPICS

from broker_service.errors import NotFound, TopicNotExist
from broker_service.namesrv.route_table import PERM_READ, PERM_WRITE, BrokerSet, RouteTable, TopicQueues
from broker_service.runtime.remoting.bodies import to_json
from broker_service.runtime.remoting.calls import Answer, Handlers, Request

logger = logging.getLogger(__name__)


class NamesrvAnswers:
    """Answers requests from the table of routes.

    In RocketMQ each group has a retry topic, and RocketMQ's tools find the groups by their retry topics.  RocketSim's
    groups have a retry topic only if a RocketMQ 4 client needs one.  So that the tools find all groups, this name
    server lists a retry topic for each group, and answers with a route for it.
    """

    def __init__(self, table: RouteTable) -> None:
        self._table = table

    def handlers(self) -> Handlers:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.no_settings,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.nothing_to_delete,
            RequestCode.DELETE_KV_CONFIG: self.nothing_to_delete,
        }

    async def route(self, request: Request) -> Answer:
        topic = request.text("topic")
        queues = {name: found for name, brokers in self._live().items() if (found := _queues(brokers, topic))}
        if not queues:
            why = "; its brokers have no remotingPort" if self._table.route(topic) else ""
            raise TopicNotExist(f"No topic route info in name server for the topic: {topic}{why}")
        live = self._live()
        route = {
            "brokerDatas": [_broker_data(name, live[name]) for name in queues],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": one.perm,
                    "readQueueNums": one.read_queue_nums,
                    "topicSysFlag": 0,
                    "writeQueueNums": one.write_queue_nums,
                }
                for name, one in queues.items()
            ],
        }
        return Answer(to_json(route))

    async def cluster(self, request: Request) -> Answer:
        clusters: dict[str, list[str]] = {}
        live = self._live()
        for name, brokers in live.items():
            clusters.setdefault(brokers.cluster_name, []).append(name)
        table = {name: _broker_data(name, brokers) for name, brokers in live.items()}
        return Answer(to_json({"brokerAddrTable": table, "clusterAddrTable": clusters}))

    async def topics(self, request: Request) -> Answer:
        return _topic_list(self._live())

    async def topics_of_cluster(self, request: Request) -> Answer:
        cluster = request.text("cluster")
        return _topic_list({name: one for name, one in self._live().items() if one.cluster_name == cluster})

    async def system_topics(self, request: Request) -> Answer:
        found = {topic for brokers in self._live().values() for topic in brokers.topics} & SYSTEM_TOPICS
        return Answer(to_json({"topicList": sorted(found)}))

    async def member_group(self, request: Request) -> Answer:
        name = request.text("brokerName")
        brokers = self._live().get(name)
        if brokers is None:
            raise NotFound(f"no live broker is called {name!r}, or it has no remotingPort")
        addresses = _addresses(brokers)
        group = {"brokerAddrs": addresses, "brokerName": name, "cluster": brokers.cluster_name}
        return Answer(to_json({"brokerMemberGroup": group}))

    async def no_settings(self, request: Request) -> Answer:
        """Answers that nothing is found, because our name servers keep no settings of operators, unlike RocketMQ's."""
        return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark="this name server keeps no settings")

    async def wipe_write_perm(self, request: Request) -> Answer:
        name = request.text("brokerName")
        count = self._table.wipe_write_perm(name)
        logger.info("%s wiped the write permission of %s: %d topics", request.connection.address, name, count)
        return Answer(fields={"wipeTopicCount": str(count)})

    async def add_write_perm(self, request: Request) -> Answer:
        name = request.text("brokerName")
        count = self._table.add_write_perm(name)
        logger.info("%s gave %s its write permission back: %d topics", request.connection.address, name, count)
        return Answer(fields={"addTopicCount": str(count)})

    async def nothing_to_delete(self, request: Request) -> Answer:
        """Succeeds without doing anything.

        mqadmin makes this call after it has deleted a topic at the broker.  Nothing is left to delete here, because
        the broker registers again without the topic at once.
        """
        return Answer()

    def _live(self) -> dict[str, BrokerSet]:
        """Returns the broker names that have at least one live broker with a `remotingPort`."""
        return {name: brokers for name, brokers in self._table.live().items() if _addresses(brokers)}


def _addresses(brokers: BrokerSet) -> dict[str, str]:
    return {
        str(broker_id): member.registration.remoting_address
        for broker_id, member in sorted(brokers.members.items())
        if member.registration.remoting_address
    }


def _broker_data(name: str, brokers: BrokerSet) -> dict[str, Any]:
    return {
        "brokerAddrs": _addresses(brokers),
        "brokerName": name,
        "cluster": brokers.cluster_name,
        "enableActingMaster": False,
    }


def _queues(brokers: BrokerSet, topic: str) -> TopicQueues | None:
    found = brokers.queues_of(topic)
    if found is None and topic.startswith(RETRY_PREFIX) and topic.removeprefix(RETRY_PREFIX) in brokers.groups:
        return TopicQueues(1, 1, PERM_READ | PERM_WRITE if brokers.is_writable else PERM_READ)
    return found


def _topic_list(live: dict[str, BrokerSet]) -> Answer:
    topics = {topic for brokers in live.values() for topic in brokers.topics}
    retries = {f"{RETRY_PREFIX}{group}" for brokers in live.values() for group in brokers.groups}
    return Answer(to_json({"topicList": sorted(topics | retries)}))
