"""The gRPC services of a broker process, each with the name under which reflection and health know it."""

from rocketsim_proto import admin_pb2, admin_pb2_grpc, broker_pb2, replication_pb2, replication_pb2_grpc

from broker_service.broker.servicer import BrokerServicer, add_to_server
from broker_service.replication import master_frame
from broker_service.server import Service


def broker_services(
    broker: BrokerServicer,
    replication: replication_pb2_grpc.ReplicationServicer,
    admin: admin_pb2_grpc.AdminServicer,
) -> list[Service]:
    return [
        Service(broker_pb2.DESCRIPTOR.services_by_name["Broker"].full_name, add_to_server, broker),
        Service(
            replication_pb2.DESCRIPTOR.services_by_name["Replication"].full_name,
            master_frame.add_to_server,
            replication,
        ),
        Service(
            admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
            admin_pb2_grpc.add_AdminServicer_to_server,
            admin,
        ),
    ]
