"""The headers of the console: a page runs its own scripts only, and asks its own node and other live ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from vox_mesh.model.base.addresses import is_service_url

POLICY: Final = "Content-Security-Policy"
MAX_SOURCES: Final = 16
"""The addresses of other nodes that a page may ask."""

_SECURE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def secure_headers(urls: Iterable[str] = ()) -> dict[str, str]:
    """Return the headers of everything under `/ui/`; `urls` are the addresses of other nodes."""
    return {POLICY: content_policy(urls), **_SECURE}


def content_policy(urls: Iterable[str]) -> str:
    """Return the policy of a page that may ask these nodes; what is no address of a node is left out."""
    sources = list(dict.fromkeys(source for url in urls if (source := source_of(url)) is not None))
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            " ".join(("connect-src 'self'", *sources[:MAX_SOURCES])),
            "form-action 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def source_of(url: str) -> str | None:
    """Return the scheme, host and port of a node's address; `None` if it is none."""
    if not is_service_url(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
