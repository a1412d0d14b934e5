"""The name and version that a broker reports."""

import functools

from rocketsim_proto.extras import DISTRIBUTION

PRODUCT = "RocketSim"


@functools.cache
def described() -> str:
    """Returns what a broker of this installation reports as its version, for example `RocketSim 0.2.0`.  If the
    packages are used without being installed, returns the name alone.
    """
    from importlib import metadata  # a slow import

    try:
        return f"{PRODUCT} {metadata.version(DISTRIBUTION)}"
    except metadata.PackageNotFoundError:
        return PRODUCT
