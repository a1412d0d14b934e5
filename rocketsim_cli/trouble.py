"""Expected trouble: what the command line says in one line instead of a traceback."""

EXIT_TROUBLE = 1
EXIT_LESS_SAFE = 3
"""`produce`: all is stored, and some of it not as safely as the broker's mode asks for.  2 is a wrong command line."""


class Trouble(Exception):
    """An error that the user can correct; the message says what and how."""


def explain(error: BaseException) -> str | None:
    """The line to show for `error`, or None when it is a bug, which is shown with its traceback."""
    # Imported here, because only a command that has failed needs them.
    from broker_service.errors import RocketSimError as ServerError
    from rocketsim_cli import credentials
    from rocketsim_client.errors import AccessDenied, NameServerUnavailable
    from rocketsim_client.errors import RocketSimError as ClientError

    if isinstance(error, NameServerUnavailable):
        return f"{error}. Is it running (`rocketsim up` starts a cluster), and is -n or NAMESRV_ADDR its address?"
    if isinstance(error, AccessDenied):
        at = f"{error.address}: " if error.address else ""
        return f"{at}{error}{credentials.where_from()}"
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
