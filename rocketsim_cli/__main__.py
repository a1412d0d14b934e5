"""`rocketsim`, or `python -m rocketsim_cli`: runs the command line, or says which extra is not installed."""

import sys
from typing import NoReturn

from rocketsim_proto.extras import MissingExtra, need


def main() -> NoReturn:
    try:
        need("cli")
    except MissingExtra as error:
        sys.exit(f"rocketsim: {error}")
    from rocketsim_cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
