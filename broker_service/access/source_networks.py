"""Addresses and networks of callers, to which a policy can be restricted.  Pure."""

import ipaddress

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_THIS_NETWORK, _BROADCAST = ipaddress.IPv4Network("0.0.0.0/8"), ipaddress.IPv4Network("255.255.255.255")
_MAPPED_BITS = 96  # bits of an IPv6 address before the IPv4 address that is mapped into it


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parses an IP address; None for other text.  An IPv4 address mapped into IPv6 is returned as IPv4."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def is_of_nobody(network: Network) -> bool:
    """Returns True if no caller can have an address in this network.

    No caller has an address of multicast, broadcast or 0.0.0.0/8, or the address ::.  (0.0.0.0 and :: mean "any" only
    for a listening socket.)
    """
    if isinstance(network, ipaddress.IPv6Network):
        return network.is_unspecified or network.is_multicast
    return network.subnet_of(_THIS_NETWORK) or network.is_multicast or network == _BROADCAST


def network_of(text: str) -> Network:
    """Parses an address or network into the form that callers' addresses have.

    IPv4 addresses that are mapped into IPv6 become IPv4, and a zone (%eth0) is removed.
    """
    address, slash, bits = text.strip().partition("/")
    try:
        found = ipaddress.ip_network(f"{address.partition('%')[0]}{slash}{bits}", strict=False)
    except ValueError as error:
        raise ValueError(f"source address {text!r}: expected an IP address, or a network as in 10.0.0.0/8") from error
    if isinstance(found, ipaddress.IPv6Network) and found.prefixlen >= _MAPPED_BITS:
        if (mapped := found.network_address.ipv4_mapped) is not None:
            return ipaddress.IPv4Network((mapped, found.prefixlen - _MAPPED_BITS))
    return found


def text_of(network: Network) -> str:
    return str(network.network_address if network.num_addresses == 1 else network)
