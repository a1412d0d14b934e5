"""AccessControl makes the guards of a broker's ports, and holds the users and policies that the guards use."""

import asyncio
from collections.abc import Mapping

from broker_service.access.decision import Policies
from broker_service.access.gate import Addresses, Gate, super_user
from broker_service.access.interceptor import AccessInterceptor, ClientProtocol
from broker_service.access.refusals import Refusals
from broker_service.access.remoting import REMOTING_RIGHTS, RemotingGuard, by_method
from broker_service.access.rights import RIGHTS, Right
from broker_service.access.signature import is_client_of_user
from broker_service.access.unsigned import UnsignedRequests
from broker_service.access.users import User
from broker_service.admin.servicer import ADMIN_RIGHTS
from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.access import AccessTables
from broker_service.config.broker_config import BrokerConfig
from broker_service.pop.consumption import Consumption
from broker_service.runtime.clocks import WallClock
from broker_service.wire.clients import Clients
from broker_service.wire.v2 import rights as v2_rights

BROKER_RIGHTS = {**RIGHTS, **ADMIN_RIGHTS}


class AccessControl:
    """Without `tables` (`authenticationEnabled` is false) no call is checked."""

    def __init__(self, config: BrokerConfig, tables: AccessTables | None, clock: WallClock) -> None:
        self._config = config
        self._tables = tables
        self._clock = clock
        self._unsigned = UnsignedRequests()
        self.refusals = Refusals()
        self.cluster_name = config.broker_cluster_name
        self.brokers_user = super_user(config.inner_credentials)

    def find_user(self, username: str) -> User | None:
        if self.brokers_user is not None and username == self.brokers_user.username:
            return self.brokers_user
        return self._tables.users.get(username) if self._tables is not None else None

    def policies_of(self, username: str) -> Policies | None:
        if self._tables is None or not self._config.authorization_enabled:
            return None
        return self._tables.acls.policies_of(username)

    def guards(self) -> list[AccessInterceptor]:
        """Makes the guards of the port for our own clients, brokers and operators."""
        return self._guards(BROKER_RIGHTS)

    def guards_of_v2(self, addresses: Addresses) -> list[AccessInterceptor]:
        """Makes the guards of the port for RocketMQ 5's clients."""
        return self._guards(v2_rights.V2_RIGHTS, v2_rights, addresses)

    def remoting_guard(self) -> RemotingGuard | None:
        """Makes the guard of the port for RocketMQ's remoting protocol."""
        if self._tables is None:
            return None
        guard = RemotingGuard(Gate(by_method(REMOTING_RIGHTS), self, self._clock), self.refusals)
        self._tables.users.changed.append(guard.changed)
        self._tables.acls.changed.append(guard.changed)
        return guard

    def _guards(
        self,
        rights: Mapping[str, Right],
        protocol: ClientProtocol | None = None,
        addresses: Addresses | None = None,
    ) -> list[AccessInterceptor]:
        if self._tables is None:
            return []
        gate = Gate(rights, self, self._clock, v2=protocol is not None, addresses=addresses)
        guard = AccessInterceptor(gate, self.refusals, self._unsigned, protocol)
        self._tables.users.changed.append(guard.check_again)
        self._tables.acls.changed.append(lambda subject: guard.check_again(subject.removeprefix("User:")))
        return [guard]


class LostRights:
    """Ends the deliveries of clients whose user has lost the right to consume."""

    def __init__(self, broker: Broker, consumption: Consumption, clients: Clients) -> None:
        self._broker = broker
        self._consumption = consumption
        self._clients = clients
        if broker.access is not None:
            broker.access.users.changed.append(self._rights_changed)
            broker.access.acls.changed.append(lambda subject: self._rights_changed(subject.removeprefix("User:")))

    def _rights_changed(self, username: str) -> None:
        """Plans a check of the user's open deliveries.  The check must come after the guards of open calls have learned
        the change.
        """
        if not self._broker.is_slave:
            asyncio.get_running_loop().call_soon(self._end_consumption_of, username)

    def _end_consumption_of(self, username: str) -> None:
        self._consumption.rights_changed(
            lambda client_id, group, topic: (
                not is_client_of_user(client_id, username) or self._clients.may_consume(client_id, group, topic)
            )
        )
