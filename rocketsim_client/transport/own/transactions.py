"""Makes the calls of the Transactions service, and converts between generated messages and the client's values."""

from collections.abc import Generator, Sequence

from rocketsim_proto import transactions_pb2 as pb
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError, checksum
from rocketsim_proto.transactions_pb2_grpc import TransactionsStub

from rocketsim_client.addresses import local_ipv4
from rocketsim_client.errors import BadAnswer
from rocketsim_client.message_view import Messages
from rocketsim_client.model import commit_status
from rocketsim_client.transport import record_frame
from rocketsim_client.transport.own.answers import acknowledged
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall
from rocketsim_client.transport.transactions import EndAnswer, OpenTransaction
from rocketsim_client.transport.under_way import UnderWay


class GrpcTransactions:
    """Implements `TransactionCalls` over gRPC."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def prepare(
        self, address: str, outgoing: Outgoing, call: SendCall, client_id: str, timeout_s: float
    ) -> Acknowledged:
        records, sizes = record_frame.encode(outgoing, local_ipv4(address))
        request = pb.PrepareRequest(
            topic=outgoing.topic,
            record=bytes(records),
            crc32=checksum(records),
            producer_group=call.group,
            epoch=call.epoch,
            broker_name=call.broker_name,
            default_topic_queue_nums=call.default_topic_queue_nums,
            client_id=client_id,
        )
        answer = self._channels.call(address, TransactionsStub, "Prepare", request, timeout_s)
        return acknowledged(answer, outgoing.queue_ids, sizes, address)

    def end(
        self, address: str, topic: str, broker_name: str, transaction_id: str, *, commit: bool, timeout_s: float
    ) -> EndAnswer:
        resolution = pb.EndRequest.COMMIT if commit else pb.EndRequest.ROLLBACK
        request = pb.EndRequest(
            topic=topic, broker_name=broker_name, transaction_id=transaction_id, resolution=resolution
        )
        answer = self._channels.call(address, TransactionsStub, "End", request, timeout_s)
        return EndAnswer(answer.again, commit_status(answer.status))

    def check(
        self,
        address: str,
        client_id: str,
        broker_name: str,
        topics: Sequence[str],
        timeout_s: float,
        under_way: UnderWay,
    ) -> Generator[OpenTransaction, None, None]:
        request = pb.CheckRequest(client_id=client_id, broker_name=broker_name, topics=topics)
        for asked in self._channels.stream(address, TransactionsStub, "Check", request, timeout_s, under_way):
            try:
                records = Records.walk(asked.record, 1)
                records.check()
            except RecordError as error:
                raise BadAnswer(
                    f"transaction {asked.transaction_id} of {asked.topic} at {address}: damaged record: {error}",
                    address=address,
                ) from error
            (message,) = Messages(records, asked.record, broker_name)
            yield OpenTransaction(asked.topic, asked.transaction_id, message, asked.times)
