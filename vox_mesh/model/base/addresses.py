"""Addresses of nodes' HTTP services, and of this machine."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_SERVICE: Final = re.compile(r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_MAX_PORT: Final = 65_535


def is_service_url(text: str) -> bool:
    """Return whether a text is the address of a service: a scheme, a host and a port, and nothing else."""
    found = _SERVICE.fullmatch(text)
    return found is not None and int(found[1] or 0) <= _MAX_PORT


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Return the host of a URL."""
    return urlsplit(url).hostname or ""
