"""proto <-> Operations for operators; decides nothing itself."""

from rocketsim_proto import admin_pb2_grpc

from broker_service.admin.operations import Operations
from broker_service.broker.queue_lookup import QueueLookup


class AdminServicer(admin_pb2_grpc.AdminServicer):
    def __init__(self, operations: Operations, queues: QueueLookup) -> None:
        self._operations = operations
        self._queues = queues
