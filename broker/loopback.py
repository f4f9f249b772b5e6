"""Which addresses only this machine can reach."""

import ipaddress


def is_loopback(host: str) -> bool:
    """As it stands in an address; a name, an interface or all of them may be reached from afar."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
