"""Answers requests of RocketMQ's tools, mqadmin and the dashboard, for users and their policies."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rocketsim_proto.remoting.codes import RequestCode

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.admin.operations import Operations
from broker_service.admin.remoting import CHANGE_WAIT_S, answer_of
from broker_service.broker.core.broker import Broker
from broker_service.errors import InvalidParameter
from broker_service.runtime.remoting.bodies import from_json, to_json
from broker_service.runtime.remoting.calls import Answer, Handler, Handlers, Request

CUSTOM = "Custom"  # the only type of policy here; RocketMQ also has the type Default


class UserAnswers:
    """Converts requests to calls of Operations, and users and policies to the form that RocketMQ's tools read.

    Answers never contain a password, although RocketMQ's answers do.
    """

    def __init__(self, broker: Broker, operations: Operations) -> None:
        self._broker = broker
        self._operations = operations

    def handlers(self) -> Handlers:
        code = RequestCode
        return {
            code.AUTH_CREATE_USER: self._change(self.create_user),
            code.AUTH_UPDATE_USER: self._change(self.update_user),
            code.AUTH_DELETE_USER: self._change(self.delete_user),
            code.AUTH_GET_USER: self.user,
            code.AUTH_LIST_USER: self.users,
            code.AUTH_CREATE_ACL: self._change(self.put_acl),
            code.AUTH_UPDATE_ACL: self._change(self.put_acl),
            code.AUTH_DELETE_ACL: self._change(self.delete_acl),
            code.AUTH_GET_ACL: self.acl,
            code.AUTH_LIST_ACL: self.acls,
        }

    async def create_user(self, request: Request) -> None:
        await self._operations.create_user(request.text("username"), *_settings(request))

    async def update_user(self, request: Request) -> None:
        await self._operations.update_user(request.text("username"), *_settings(request))

    async def delete_user(self, request: Request) -> None:
        """Deletes a user.  As with RocketMQ, nothing is wrong if the user does not exist: the tools ask every pair of a
        cluster, and stop at the first pair that refuses.
        """
        username = request.text("username")
        if any(user.username == username for user in self._operations.users("")):
            await self._operations.delete_user(username)

    async def user(self, request: Request) -> Answer:
        (user,) = self._operations.users(_named(request, "username"))
        return Answer(to_json(_user_json(user)))

    async def users(self, request: Request) -> Answer:
        """Lists the users whose name contains the field `filter`."""
        wanted = request.text("filter", "")
        return Answer(to_json([_user_json(one) for one in self._operations.users("") if wanted in one.username]))

    async def put_acl(self, request: Request) -> None:
        """Adds policies, or replaces the policies for the same resources.  RocketMQ does the same for both requests."""
        await self._operations.create_acl(request.text("subject"), tuple(_policies(from_json(request.body))))

    async def delete_acl(self, request: Request) -> None:
        _check_type(request.text("policyType", ""))
        await self._operations.delete_acl(request.text("subject"), request.text("resource", ""))

    async def acl(self, request: Request) -> Answer:
        (acl,) = self._operations.acls(_named(request, "subject"), "")
        return Answer(to_json(_acl_json(acl, "")))

    async def acls(self, request: Request) -> Answer:
        """Lists the policies whose subject and resource contain the fields of these names.  As in RocketMQ, a text for
        resources that the subject contains stands for all resources of this subject.
        """
        subject, resource = request.text("subjectFilter", ""), request.text("resourceFilter", "")
        found = [
            _acl_json(one, "" if resource in one.subject else resource)
            for one in self._operations.acls("", "")
            if subject in one.subject
        ]
        return Answer(to_json([one for one in found if one["policies"]]))

    def _change(self, change: Callable[[Request], Awaitable[None]]) -> Handler:
        """Returns the handler of a request that changes users or policies.

        RocketMQ's tools send each change to the slaves, too.  A slave answers success and does nothing, because it gets
        the change from its master.
        """

        async def changed(request: Request) -> Answer:
            if self._broker.is_slave:
                return Answer()
            _, status = await self._operations.shared(partial(change, request), CHANGE_WAIT_S, in_any_mode=True)
            return answer_of(status)

        return changed


def _named(request: Request, field: str) -> str:
    """Returns the field's text.  Raises InvalidParameter if it is empty."""
    if not (name := request.text(field)):
        raise InvalidParameter(f"{field} is missing")
    return name


def _settings(request: Request) -> tuple[str, str, str]:
    """Returns password, type and status of the user in the request's body.  A setting that is missing is empty."""
    given = from_json(request.body)
    return _text(given, "password"), _text(given, "userType"), _text(given, "userStatus")


def _policies(acl: Mapping[str, Any]) -> Iterator[Policy]:
    for policy in _list(acl, "policies", dict):
        _check_type(_text(policy, "policyType"))
        for entry in _list(policy, "entries", dict):
            try:
                yield Policy.parse(
                    _text(entry, "resource"),
                    _list(entry, "actions", str),
                    _list(entry, "sourceIps", str),
                    _text(entry, "decision"),
                )
            except ValueError as error:
                raise InvalidParameter(str(error)) from error


def _check_type(policy_type: str) -> None:
    if policy_type not in ("", CUSTOM):
        raise InvalidParameter(f"policyType={policy_type[:40]!r}: only policies of the type {CUSTOM} exist here")


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str | None):
        raise InvalidParameter(f"{name}: expected a text")  # without the value, which may be a password
    return value or ""


def _list(given: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = given.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise InvalidParameter(f"{name}={str(value)[:40]!r} must be a list of {'texts' if kind is str else 'objects'}")
    return value


def _user_json(user: User) -> dict[str, str]:
    return {"username": user.username, "userType": user.user_type, "userStatus": user.user_status}


def _acl_json(acl: Acl, resource: str) -> dict[str, Any]:
    """Returns the policies whose resource contains `resource`."""
    entries = [{"resource": name, **rest} for name, rest in acl.policies.items() if resource in name]
    policies = [{"policyType": CUSTOM, "entries": entries}] if entries else []
    return {"subject": acl.subject, "policies": policies}
