"""`rocketsim admin COMMAND`: the commands of RocketMQ's mqadmin, with the same names and flags."""

from inspect import isfunction, signature
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

from rocketsim_cli.admin import brokers, groups, messages, topics, users
from rocketsim_cli.admin.session import camel


class AnyCase(TyperGroup):
    """Finds a command by its name in upper or lower case, as mqadmin does, because scripts rely on that."""

    # The types are `Any`, because typer's own types differ between its versions.
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        meant = (name for name in self.commands if name.lower() == cmd_name.lower())
        return super().get_command(ctx, next(meant, cmd_name))


commands = typer.Typer(
    help="Query and change a running cluster; commands and flags are mqadmin's.", no_args_is_help=True, cls=AnyCase
)


def _is_command(name: str, value: object, module: ModuleType) -> bool:
    """Returns True for a command: a public function of this module that has a parameter `context`."""
    if name.startswith("_") or not isfunction(value) or value.__module__ != module.__name__:
        return False
    return "context" in signature(value).parameters


for _module in (topics, groups, brokers, messages, users):
    for _name, _value in vars(_module).items():
        if _is_command(_name, _value, _module):
            commands.command(camel(_name))(_value)
