"""Serves operators' commands for users and their policies.  Only a master changes users and policies.

The answer to a change comes when the change is on the master's disk.  The answer's status says if a slave has the
change, like the status of a committed offset.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto import metadata_pb2

from broker_service.access.policies import Acl, Policy
from broker_service.access.resources import Resource, ResourceType
from broker_service.access.rights import SUPER_USER, of_topic
from broker_service.access.source_networks import is_of_nobody
from broker_service.access.users import User, user_of
from broker_service.admin.commands import Commands, SubjectOperations, change, command
from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.access import AccessTables
from broker_service.broker.metadata.config_table import Planned
from broker_service.broker.metadata.messages import acl_to_proto, policies_from_proto
from broker_service.errors import InvalidParameter, ServiceNotAvailable
from broker_service.leadership.leadership import Leadership
from broker_service.runtime.tasks import to_its_end

logger = logging.getLogger(__name__)

_Made = TypeVar("_Made")
_Plan = Callable[[str, tuple[Policy, ...], int], Planned[Acl] | None]


class UserCommands(Commands):
    @change(SUPER_USER, in_any_mode=True)
    async def CreateUser(self, request: pb.CreateUserRequest) -> pb.UserResponse:
        user = await self._operations.create_user(*_fields(request.user))
        return pb.UserResponse(user=_without_password(user))

    @change(SUPER_USER, in_any_mode=True)
    async def UpdateUser(self, request: pb.UpdateUserRequest) -> pb.UserResponse:
        user = await self._operations.update_user(*_fields(request.user))
        return pb.UserResponse(user=_without_password(user))

    @change(SUPER_USER, in_any_mode=True)
    async def DeleteUser(self, request: pb.DeleteUserRequest) -> pb.DeleteUserResponse:
        await self._operations.delete_user(request.username)
        return pb.DeleteUserResponse()

    @command(SUPER_USER)
    async def ListUsers(self, request: pb.ListUsersRequest) -> pb.ListUsersResponse:
        return pb.ListUsersResponse(users=map(_without_password, self._operations.users(request.username)))

    @change(SUPER_USER, in_any_mode=True)
    async def CreateAcl(self, request: pb.CreateAclRequest) -> pb.AclResponse:
        acl = await self._operations.create_acl(request.acl.subject, _policies(request.acl))
        return pb.AclResponse(acl=acl_to_proto(acl))

    @change(SUPER_USER, in_any_mode=True)
    async def UpdateAcl(self, request: pb.UpdateAclRequest) -> pb.AclResponse:
        acl = await self._operations.update_acl(request.acl.subject, _policies(request.acl))
        return pb.AclResponse(acl=acl_to_proto(acl))

    @change(SUPER_USER, in_any_mode=True)
    async def DeleteAcl(self, request: pb.DeleteAclRequest) -> pb.DeleteAclResponse:
        await self._operations.delete_acl(request.subject, request.resource)
        return pb.DeleteAclResponse()

    @command(SUPER_USER)
    async def ListAcls(self, request: pb.ListAclsRequest) -> pb.ListAclsResponse:
        return pb.ListAclsResponse(acls=map(acl_to_proto, self._operations.acls(request.subject, request.resource)))


def _fields(user: metadata_pb2.User) -> tuple[str, str, str, str]:
    return user.username, user.password, user.user_type, user.user_status


def _without_password(user: User) -> metadata_pb2.User:
    return metadata_pb2.User(username=user.username, user_type=user.user_type, user_status=user.user_status)


def _policies(acl: metadata_pb2.Acl) -> tuple[Policy, ...]:
    return _value(lambda: policies_from_proto(acl))


class UserOperations(SubjectOperations):
    def __init__(self, broker: Broker, leadership: Leadership) -> None:
        super().__init__(broker, leadership)
        # held by one change at a time, because a user and the user's policies are in two tables
        self._turn = asyncio.Lock()

    async def create_user(self, username: str, password: str, user_type: str, status: str) -> User:
        tables = await self._writable()
        self._check_not_inner(username)
        default = User("any", "any")
        user = _value(lambda: User(username, password, user_type or default.user_type, status or default.user_status))
        await tables.users.apply(lambda: tables.users.creating(user, self._broker.now_ms()))
        logger.info("User:%s is created: %s, %s", user.username, user.user_type, user.user_status)
        return user

    async def update_user(self, username: str, password: str, user_type: str, status: str) -> User:
        """Changes only those fields of the user that are not empty."""
        tables = await self._writable()
        self._check_not_inner(username)
        now_ms = self._broker.now_ms()
        await tables.users.apply(
            lambda: _value(lambda: tables.users.updating(username, password, user_type, status, now_ms))
        )
        user = tables.users.existing(username)
        new = " and has a new password" if password else ""
        logger.info("User:%s is changed: %s, %s%s", user.username, user.user_type, user.user_status, new)
        return user

    async def delete_user(self, username: str) -> None:
        """Deletes the user's policies before the user, so that a later user of that name does not get the policies."""
        tables = await self._writable()
        self._check_not_inner(username)
        tables.users.existing(username)
        await to_its_end(self._delete_user(tables, username))

    async def _delete_user(self, tables: AccessTables, username: str) -> None:
        subject, now_ms = f"User:{username}", self._broker.now_ms()
        async with self._turn:
            had_policies = await tables.acls.apply(lambda: tables.acls.deleting(subject, now_ms))
            try:
                await tables.users.apply(lambda: tables.users.removing(username, now_ms))
            except ServiceNotAvailable as error:
                if not had_policies:
                    raise
                raise type(error)(
                    f"{error}; the policies of User:{username} are deleted, but the user is not: delete the user again"
                ) from error
        logger.info("User:%s is deleted", username)

    def users(self, username: str) -> list[User]:
        """Returns all users, or only the user of that name."""
        tables = self._tables()
        if username:
            return [tables.users.existing(username)]
        return [tables.users.entries[name] for name in sorted(tables.users.entries)]

    # --- policies ---------------------------------------------------------------------------------------------------

    async def create_acl(self, subject: str, policies: tuple[Policy, ...]) -> Acl:
        """Adds policies.  Each new policy replaces the user's policy for the same resource; the user's other policies
        stay.
        """
        tables = await self._writable()
        return await to_its_end(self._change(tables, subject, policies, tables.acls.creating))

    async def update_acl(self, subject: str, policies: tuple[Policy, ...]) -> Acl:
        tables = await self._writable()
        return await to_its_end(self._change(tables, subject, policies, tables.acls.updating))

    async def _change(self, tables: AccessTables, subject: str, policies: tuple[Policy, ...], plan: _Plan) -> Acl:
        async with self._turn:
            tables.subject(subject)
            await tables.acls.apply(lambda: _value(lambda: plan(subject, _some(policies), self._broker.now_ms())))
            acl = tables.acls.existing(subject)
        logger.info("the policies of %s are now %s", subject, dict(acl.policies))
        return acl

    async def delete_acl(self, subject: str, resource: str) -> None:
        """Deletes all policies of the user, or only the one for a resource."""
        tables = await self._writable()
        _value(lambda: user_of(subject))
        name = str(_value(lambda: Resource.parse(resource))) if resource else ""
        await tables.acls.apply(lambda: tables.acls.removing(subject, name, self._broker.now_ms()))
        logger.info("the policies of %s%s are deleted", subject, f" for {name}" if name else "")

    def acls(self, subject: str, resource: str) -> list[Acl]:
        """Returns the policies of all users or of one user; if a resource is given, only the policies for that
        resource.
        """
        tables = self._tables()
        found = [tables.acls.existing(subject)] if subject else list(tables.acls.entries.values())
        found = sorted(found, key=lambda acl: acl.subject)
        if not resource:
            return found
        name = str(_value(lambda: Resource.parse(resource)))
        return [Acl(acl.subject, {name: acl.policies[name]}) for acl in found if name in acl.policies]

    # --- what may be changed ----------------------------------------------------------------------------------------

    def _tables(self) -> AccessTables:
        if self._broker.access is None:
            raise ServiceNotAvailable(
                "this broker has no access control: authenticationEnabled is false in its configuration"
            )
        return self._broker.access

    async def _writable(self) -> AccessTables:
        tables = self._tables()
        await self.past_start()
        self._broker.check_writable()
        return tables

    def _check_not_inner(self, username: str) -> None:
        inner = self._broker.config.inner_credentials
        if inner is not None and username == inner.access_key:
            raise InvalidParameter(
                f"User:{username} is the brokers' own: change innerClientAuthenticationCredentials in the configuration"
            )


def _some(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """Returns the policies unchanged.  Raises ValueError if there is no policy, or if one of the policies could never
    apply.

    An operator might otherwise believe that a policy denies something when it never applies.
    """
    if not policies:
        raise ValueError("a policy must name a resource")
    for resource in (policy.resource for policy in policies):
        if resource.type is ResourceType.TOPIC and (need := of_topic(resource.name)).kind is ResourceType.GROUP:
            group = replace(resource, type=need.kind, name=need.name)
            raise ValueError(f"resource {resource}: a retry or dead letter topic belongs to its group; name {group}")
    for network in (network for policy in policies for network in policy.source_ips):
        if is_of_nobody(network):
            raise ValueError(
                f"source address {network}: no caller has such an address; 0.0.0.0/0 is every IPv4 address, ::/0 every "
                "IPv6 address, and a policy without source addresses is for both"
            )
    return policies


def _value(make: Callable[[], _Made]) -> _Made:
    """Makes a value.  Turns a ValueError into InvalidParameter."""
    try:
        return make()
    except ValueError as error:
        raise InvalidParameter(str(error)) from error
