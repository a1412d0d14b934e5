"""Commands for access control: users and their policies."""

from collections.abc import Iterable
from typing import Any

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.metadata_pb2 import Acl, User

from rocketsim_client.admin.commands import Commands, status_of
from rocketsim_client.admin_model import AclInfo, AclPolicy, ChangedAt, UserInfo
from rocketsim_client.errors import InvalidParameter, NotFound


class UserCommands(Commands):
    def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = "Normal",
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, UserInfo]:
        """Creates a user.  `user_type` is Super or Normal.  Returns the new user, once for each broker address."""
        request = pb.CreateUserRequest(user=User(username=username, password=password, user_type=user_type))
        return self._call_masters(request, broker_addr, cluster_name, _changed_user)

    def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, UserInfo]:
        """Changes a user.  An argument that is None keeps the present value.  `user_status` is enable or disable."""
        changes = {"password": password, "user_type": user_type, "user_status": user_status}
        for what, value in changes.items():
            if value == "":
                raise InvalidParameter(f"{what} of User:{username} is empty; pass None to keep the present one")
        request = pb.UpdateUserRequest(user=User(username=username, **changes))
        return self._call_masters(request, broker_addr, cluster_name, _changed_user)

    def delete_user(
        self, username: str, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> ChangedAt:
        """Deletes a user with its policies.  Returns the addresses of the brokers that had the user.  The result's
        `statuses` says which brokers have stored the deletion."""
        request = pb.DeleteUserRequest(username=username)
        return self._delete(request, broker_addr, cluster_name, NotFound, f"User:{username} is not")

    def users(
        self, username: str = "", *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, list[UserInfo]]:
        """Returns all users, or the user with that name, by broker address.  The passwords are left out."""

        def read(answer: pb.ListUsersResponse) -> list[UserInfo]:
            return [UserInfo(user.username, user.user_type, user.user_status) for user in answer.users]

        request = pb.ListUsersRequest(username=username)
        return self._call_masters(request, broker_addr, cluster_name, read, NotFound, f"User:{username} is not")

    def create_acl(
        self,
        subject: str,
        policies: Iterable[AclPolicy],
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, AclInfo]:
        """Gives policies to a user.  `subject` is `User:name`.  A policy replaces the user's policy for the same
        resource, and other policies stay.  Returns the policies by broker address."""
        request = pb.CreateAclRequest(acl=_acl_message(subject, policies))
        return self._call_masters(request, broker_addr, cluster_name, _changed_acl)

    def update_acl(
        self,
        subject: str,
        policies: Iterable[AclPolicy],
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, AclInfo]:
        """Changes policies like `create_acl`, but only of a user that already has policies."""
        request = pb.UpdateAclRequest(acl=_acl_message(subject, policies))
        return self._call_masters(request, broker_addr, cluster_name, _changed_acl)

    def delete_acl(
        self, subject: str, resource: str = "", *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> ChangedAt:
        """Deletes the user's policy for one resource, or all its policies.  Returns the addresses of the brokers that
        had a policy to delete.  The result's `statuses` says which brokers have stored the deletion."""
        request = pb.DeleteAclRequest(subject=subject, resource=resource)
        missing = f"{subject} has no policy{f' for {resource}' if resource else ''}"
        return self._delete(request, broker_addr, cluster_name, NotFound, missing)

    def acls(
        self,
        subject: str = "",
        resource: str = "",
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, list[AclInfo]]:
        """Returns the policies of all users or of one user, for all resources or for one resource, by broker
        address."""

        def read(answer: pb.ListAclsResponse) -> list[AclInfo]:
            return [_acl(acl) for acl in answer.acls]

        request = pb.ListAclsRequest(subject=subject, resource=resource)
        return self._call_masters(request, broker_addr, cluster_name, read, NotFound, f"{subject} has no policies")


def _changed_user(answer: Any) -> UserInfo:
    user = answer.user
    return UserInfo(user.username, user.user_type, user.user_status, status_of(answer))


def _changed_acl(answer: Any) -> AclInfo:
    acl = _acl(answer.acl)
    return AclInfo(acl.subject, acl.policies, status_of(answer))


def _acl_message(subject: str, policies: Iterable[AclPolicy]) -> Acl:
    return Acl(
        subject=subject,
        policies=[
            Acl.Policy(resource=one.resource, actions=one.actions, source_ips=one.source_ips, decision=one.decision)
            for one in policies
        ],
    )


def _acl(acl: Acl) -> AclInfo:
    return AclInfo(
        acl.subject,
        tuple(AclPolicy(one.resource, tuple(one.actions), tuple(one.source_ips), one.decision) for one in acl.policies),
    )
