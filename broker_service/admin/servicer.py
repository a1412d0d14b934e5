"""Serves operators' commands over gRPC."""

from rocketsim_proto import admin_pb2_grpc

from broker_service.access.rights import by_path, declared_rights
from broker_service.admin.brokers import BrokerCommands
from broker_service.admin.groups import GroupCommands
from broker_service.admin.messages import MessageCommands
from broker_service.admin.topics import TopicCommands
from broker_service.admin.users import UserCommands


class AdminServicer(
    TopicCommands, GroupCommands, BrokerCommands, MessageCommands, UserCommands, admin_pb2_grpc.AdminServicer
):
    """Combines the commands of all subjects, each of which has a file of its own."""


ADMIN_RIGHTS = by_path({"rocketsim.Admin": declared_rights(AdminServicer)})
