"""Expected trouble: what the command line says in one line instead of a traceback."""

EXIT_TROUBLE = 1
EXIT_USAGE = 2
"""The command line is wrong: the same words would fail against any cluster.  Typer's own status for it, too."""
EXIT_LESS_SAFE = 3
"""`produce`: all is stored, and some of it not as safely as the broker's mode asks for."""


class Trouble(Exception):
    """An error that the user can correct; the message says what and how."""


class WrongCommandLine(Trouble):
    """Words of the command line that are wrong or do not go together."""


def exit_status(error: BaseException) -> int:
    """The status of a command that ended with `error`, which `explain` has a line for."""
    from rocketsim_client.errors import ExpressionInvalid, InvalidParameter

    # The client refuses a bad address, name or filter before it calls anybody: no server's address is in the error.
    refused_here = isinstance(error, ExpressionInvalid | InvalidParameter) and not error.address
    return EXIT_USAGE if refused_here or isinstance(error, WrongCommandLine) else EXIT_TROUBLE


def explain(error: BaseException) -> str | None:
    """The line to show for `error`, or None when it is a bug, which is shown with its traceback."""
    # Imported here, because only a command that has failed needs them.
    from broker_service.errors import RocketSimError as ServerError
    from rocketsim_cli import credentials, tls
    from rocketsim_client.errors import AccessDenied, NameServerUnavailable, TlsFailed
    from rocketsim_client.errors import RocketSimError as ClientError

    if isinstance(error, NameServerUnavailable):
        return f"{error}. Is it running (`rocketsim up` starts a cluster), and is -n or NAMESRV_ADDR its address?"
    if isinstance(error, AccessDenied):
        at = f"{error.address}: " if error.address else ""
        return f"{at}{error}{credentials.where_from()}"
    if isinstance(error, TlsFailed):
        return f"{error}. {tls.WHERE_FROM}"
    if isinstance(error, Trouble | ServerError | ClientError):
        return str(error) or type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name == "pyspark":
        return "pyspark is not installed; this command needs it: pip install 'rocketsim[cli,spark]'"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


def usage(error: BaseException) -> tuple[int, str] | None:
    """Status and line of what typer says of a wrong command line; its own class for that depends on its version."""
    if not hasattr(error, "exit_code") or not hasattr(error, "format_message"):
        return None
    return int(error.exit_code), str(error.format_message())
