"""`rocketsim`, or `python -m rocketsim_cli`: runs the command line, or says which extra is not installed."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from rocketsim_cli.main import main as command_line
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("rocketsim", "broker_service")):
            raise
        sys.exit(f"rocketsim: {error.name} is not installed; the command needs it: pip install 'rocketsim[cli]'")
    command_line()


if __name__ == "__main__":
    main()
