"""Says what to install if a package of an extra is missing.  setup.py says which packages an extra has."""

from importlib.util import find_spec

DISTRIBUTION = "rocketsim"  # the name in setup.py
_COMMAND = ("typer", "rich", "psutil", "grpc_health", "grpc_reflection", "javaproperties")
MODULES = {  # the modules that code of each extra needs
    "cli": _COMMAND,
    "console": ("starlette", "uvicorn"),
    "spark": ("pyspark",),
    "testing": _COMMAND,
}


class MissingExtra(ModuleNotFoundError):
    """Raised if a module of an extra is not installed.  The message names the extra, and `name` is the module."""


def need(extra: str) -> None:
    """Raises MissingExtra if a module of the extra is not installed.  Does not import the extra's modules."""
    for module in MODULES[extra]:
        if find_spec(module) is None:
            raise MissingExtra(f"{module} is not installed; install it with: {command_for(extra)}", name=module)


def command_for(extra: str) -> str:
    """Returns the command that adds an extra to an installed RocketSim."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
