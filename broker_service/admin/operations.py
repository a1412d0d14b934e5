"""Operations: what operators ask of a broker, in mqadmin's words."""

from broker_service.broker.broker import Broker
from broker_service.broker.leadership import Leadership
from broker_service.broker.pull import PullPath
from broker_service.broker.put import PutPath
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.slave import ReplicationSlave


class Operations:
    def __init__(
        self,
        broker: Broker,
        leadership: Leadership,
        master: ReplicationMaster,
        slave: ReplicationSlave,
        puts: PutPath,
        pulls: PullPath,
    ) -> None:
        self.broker = broker
        self.leadership = leadership
        self.master = master
        self.slave = slave
        self.puts = puts
        self.pulls = pulls
