"""`rocketsim admin COMMAND`: mqadmin's commands under mqadmin's names, with its flags."""

from typing import Any

import typer
from typer.core import TyperGroup

from rocketsim_cli.admin import brokers, groups, messages, topics, users


class AnyCase(TyperGroup):
    """mqadmin takes its commands in any case, and scripts use that."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # the class of both depends on typer's version
        meant = (name for name in self.commands if name.lower() == cmd_name.lower())
        return super().get_command(ctx, next(meant, cmd_name))


commands = typer.Typer(
    help="Query and change a running cluster; commands and flags are mqadmin's.", no_args_is_help=True, cls=AnyCase
)

for name, command in (
    ("clusterList", brokers.cluster_list),
    ("topicList", topics.topic_list),
    ("updateTopic", topics.update_topic),
    ("deleteTopic", topics.delete_topic),
    ("topicRoute", topics.topic_route),
    ("topicStatus", topics.topic_status),
    ("updateSubGroup", groups.update_sub_group),
    ("getConsumerConfig", groups.get_consumer_config),
    ("deleteSubGroup", groups.delete_sub_group),
    ("consumerProgress", groups.consumer_progress),
    ("resetOffsetByTime", groups.reset_offset_by_time),
    ("haStatus", brokers.ha_status),
    ("brokerStatus", brokers.broker_status),
    ("getBrokerConfig", brokers.get_broker_config),
    ("updateBrokerConfig", brokers.update_broker_config),
    ("promoteSlave", brokers.promote_slave),
    ("removeSlave", brokers.remove_slave),
    ("queryMsgById", messages.query_msg_by_id),
    ("queryMsgByKey", messages.query_msg_by_key),
    ("queryMsgByOffset", messages.query_msg_by_offset),
    ("wipeWritePerm", brokers.wipe_write_perm),
    ("addWritePerm", brokers.add_write_perm),
    ("createUser", users.create_user),
    ("updateUser", users.update_user),
    ("deleteUser", users.delete_user),
    ("getUser", users.get_user),
    ("listUser", users.list_user),
    ("createAcl", users.create_acl),
    ("updateAcl", users.update_acl),
    ("deleteAcl", users.delete_acl),
    ("getAcl", users.get_acl),
    ("listAcl", users.list_acl),
):
    commands.command(name)(command)
