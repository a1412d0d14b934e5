"""Expected errors, which the command line reports in one line instead of a traceback."""

EXIT_TROUBLE = 1
EXIT_USAGE = 2
"""The command line is wrong and would fail with any cluster. Typer uses the same status."""
EXIT_LESS_SAFE = 3
"""`produce`: all messages are stored, but some less safely than the broker's mode asks for."""


class Trouble(Exception):
    """An error that the user can correct. The message says what is wrong and how to correct it."""


class WrongCommandLine(Trouble):
    """Arguments of the command line are wrong or do not fit together."""


def exit_status(error: BaseException) -> int:
    """Returns the exit status of a command that ended with an error that `explain` knows."""
    from rocketsim_client.errors import ExpressionInvalid, InvalidParameter

    # The client refuses a bad address, name or filter before it calls a server, so the error has no server's address.
    refused_here = isinstance(error, ExpressionInvalid | InvalidParameter) and not error.address
    return EXIT_USAGE if refused_here or isinstance(error, WrongCommandLine) else EXIT_TROUBLE


def explain(error: BaseException) -> str | None:
    """Returns the line to show for an expected error. Returns None for a bug, which is shown with its traceback."""
    # Imported here, because only a failed command needs these modules.
    from rocketsim_proto.extras import MissingExtra

    from broker_service.errors import RocketSimError as ServerError
    from rocketsim_cli import connection_options, credentials
    from rocketsim_client.errors import AccessDenied, NameServerUnavailable, TlsFailed
    from rocketsim_client.errors import RocketSimError as ClientError

    if isinstance(error, NameServerUnavailable):
        return f"{error}. Is it running (`rocketsim up` starts a cluster), and is -n or NAMESRV_ADDR its address?"
    if isinstance(error, AccessDenied):
        at = f"{error.address}: " if error.address else ""
        return f"{at}{error}{credentials.where_from()}"
    if isinstance(error, TlsFailed):
        return f"{error}. {connection_options.WHERE_FROM}"
    if isinstance(error, Trouble | ServerError | ClientError | MissingExtra):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


def usage(error: BaseException) -> tuple[int, str] | None:
    """Returns the exit status and the line to show if typer has refused the command line, or None for any other error.

    The class of typer's error depends on typer's version, so this function looks at the error's attributes.
    """
    if not hasattr(error, "exit_code") or not hasattr(error, "format_message"):
        return None
    return int(error.exit_code), str(error.format_message())
