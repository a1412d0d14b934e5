"""The commands of `rocketsim admin` for access control: users and their policies."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.admin.session import facts, open_admin, show_deleted
from rocketsim_cli.credentials import password as password_of
from rocketsim_cli.options import AsJson, BrokerAddr, ClusterName, OptionalNameServer
from rocketsim_cli.tables import show_rows
from rocketsim_cli.trouble import WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client import AclInfo, AclPolicy, UserInfo

USER_COLUMNS = ("brokerAddr", "username", "userType", "userStatus")
ACL_COLUMNS = ("brokerAddr", "subject", "resource", "actions", "sourceIps", "decision")

Username = Annotated[
    str, typer.Option("-u", "--username", help="The user's name, which clients use as their access key.")
]
Subject = Annotated[str, typer.Option("-s", "--subject", help="The user, as User:name.")]
OptionalSubject = Annotated[
    str | None, typer.Option("-s", "--subject", help="The user, as User:name. Default: all users.")
]
Resources = Annotated[
    str, typer.Option("-r", "--resources", help="Topic:name, Group:prefix* or Cluster:*; several are separated by ','.")
]
Actions = Annotated[
    str,
    typer.Option(
        "-a", "--actions", help="Pub, Sub, Create, Update, Delete, Get, List or All; several are separated by ','."
    ),
]
SourceIps = Annotated[
    str | None,
    typer.Option("-i", "--source-ips", help="Clients' addresses and networks, separated by ','. Default: all."),
]
Decision = Annotated[str, typer.Option("-d", "--decision", help="Allow or Deny.")]


def create_user(
    context: typer.Context,
    username: Username,
    password: Annotated[
        str, typer.Option("-p", "--password", help="The user's secret key; - reads it from standard input.")
    ],
    user_type: Annotated[str, typer.Option("-t", "--user-type", help="Super or Normal.")] = "Normal",
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Create a user at each master."""
    with open_admin(context, name_server, broker_addr) as admin:
        made = admin.create_user(
            username, password_of(password), user_type=user_type, broker_addr=broker_addr, cluster_name=cluster
        )
    _show_changed(made, as_json)


def update_user(
    context: typer.Context,
    username: Username,
    password: Annotated[
        str | None, typer.Option("-p", "--password", help="The user's new secret key; - reads it from standard input.")
    ] = None,
    user_type: Annotated[str | None, typer.Option("-t", "--user-type", help="Super or Normal.")] = None,
    user_status: Annotated[str | None, typer.Option("-s", "--user-status", help="enable or disable.")] = None,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Change a user; settings that are not given stay as they are."""
    with open_admin(context, name_server, broker_addr) as admin:
        changed = admin.update_user(
            username,
            password=None if password is None else password_of(password),
            user_type=user_type,
            user_status=user_status,
            broker_addr=broker_addr,
            cluster_name=cluster,
        )
    _show_changed(changed, as_json)


def delete_user(
    context: typer.Context,
    username: Username,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Delete a user with its policies."""
    with open_admin(context, name_server, broker_addr) as admin:
        deleted = admin.delete_user(username, broker_addr=broker_addr, cluster_name=cluster)
    show_deleted({"username": username}, deleted, as_json=as_json)


def get_user(
    context: typer.Context,
    username: Username,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show one user, without its password."""
    _show_users(context, username, name_server, broker_addr, cluster, as_json)


def list_user(
    context: typer.Context,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """List all users, without their passwords."""
    _show_users(context, "", name_server, broker_addr, cluster, as_json)


def _show_users(
    context: typer.Context,
    username: str,
    name_server: str | None,
    broker_addr: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    with open_admin(context, name_server, broker_addr) as admin:
        found = admin.users(username, broker_addr=broker_addr, cluster_name=cluster)
    rows = [{"brokerAddr": address, **facts(user)} for address, users in found.items() for user in users]
    show_rows(USER_COLUMNS, rows, as_json=as_json)


def _show_changed(changed: "Mapping[str, UserInfo]", as_json: bool) -> None:
    rows = [
        {"brokerAddr": address, **facts(user), "status": user.commit_status.name} for address, user in changed.items()
    ]
    show_rows((*USER_COLUMNS, "status"), rows, as_json=as_json)


def create_acl(
    context: typer.Context,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision = "Allow",
    source_ips: SourceIps = None,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Allow or deny actions of a user on resources.  The user's policies for other resources stay as they are."""
    policies = policies_of(resources, actions, source_ips, decision)
    with open_admin(context, name_server, broker_addr) as admin:
        made = admin.create_acl(subject, policies, broker_addr=broker_addr, cluster_name=cluster)
    _show_policies({address: [acl] for address, acl in made.items()}, as_json, changed=True)


def update_acl(
    context: typer.Context,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision = "Allow",
    source_ips: SourceIps = None,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Change policies as createAcl does, for a user that already has policies."""
    policies = policies_of(resources, actions, source_ips, decision)
    with open_admin(context, name_server, broker_addr) as admin:
        made = admin.update_acl(subject, policies, broker_addr=broker_addr, cluster_name=cluster)
    _show_policies({address: [acl] for address, acl in made.items()}, as_json, changed=True)


def _not_empty(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Refuses an empty `-r`, as from an unset shell variable, because that would delete all policies of the user."""
    given = context.get_parameter_source(str(option.name))
    if not value and given is not None and given.name == "COMMANDLINE":
        raise WrongCommandLine("-r is empty: name a resource, or leave -r out to delete all of the user's policies")
    return value


def delete_acl(
    context: typer.Context,
    subject: Subject,
    resource: Annotated[
        str,
        typer.Option(
            "-r",
            "--resource",
            help="The resource, written as for createAcl. Default: all of the user's policies.",
            callback=_not_empty,
        ),
    ] = "",
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Delete all policies of a user, or only the policy for one resource."""
    with open_admin(context, name_server, broker_addr) as admin:
        deleted = admin.delete_acl(subject, resource, broker_addr=broker_addr, cluster_name=cluster)
    show_deleted({"subject": subject, "resource": resource or None}, deleted, as_json=as_json)


def get_acl(
    context: typer.Context,
    subject: Subject,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show a user's policies."""
    with open_admin(context, name_server, broker_addr) as admin:
        _show_policies(admin.acls(subject, broker_addr=broker_addr, cluster_name=cluster), as_json)


def list_acl(
    context: typer.Context,
    subject: OptionalSubject = None,
    resource: Annotated[
        str | None, typer.Option("-r", "--resource", help="The resource, written as for createAcl. Default: all.")
    ] = None,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """List the policies of all users, or of one user or resource."""
    with open_admin(context, name_server, broker_addr) as admin:
        found = admin.acls(subject or "", resource or "", broker_addr=broker_addr, cluster_name=cluster)
    _show_policies(found, as_json)


def policies_of(resources: str, actions: str, source_ips: str | None, decision: str) -> "list[AclPolicy]":
    """Returns a policy for each of the resources, which are separated by commas."""
    from rocketsim_client import AclPolicy

    return [
        AclPolicy(resource, tuple(_parts(actions)), tuple(_parts(source_ips or "")), decision)
        for resource in _parts(resources)
    ]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _show_policies(found: "Mapping[str, Iterable[AclInfo]]", as_json: bool, *, changed: bool = False) -> None:
    rows = [
        {
            "brokerAddr": address,
            "subject": acl.subject,
            **facts(policy),
            "actions": ",".join(policy.actions),
            "sourceIps": ",".join(policy.source_ips) or None,
            "status": acl.commit_status.name,
        }
        for address, acls in found.items()
        for acl in acls
        for policy in acl.policies
    ]
    show_rows((*ACL_COLUMNS, "status") if changed else ACL_COLUMNS, rows, as_json=as_json)
