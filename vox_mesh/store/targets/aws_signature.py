"""AWS Signature Version 4, as S3 and services that are compatible with it check it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SERVICE: Final = "s3"
_SIGNED_HEADERS: Final = "host;x-amz-content-sha256;x-amz-date"


class Credentials(NamedTuple):
    """The key of a service, its secret, and the region that it is for."""

    key_id: str
    secret: str
    region: str


def quoted_path(path: str) -> str:
    """Return a path in the form that is sent and signed."""
    return quote(path, safe="/-_.~")


def quoted_query(values: Mapping[str, str]) -> str:
    """Return a query in the form that is sent and signed."""
    return urlencode(sorted(values.items()), safe="-_.~", quote_via=quote)


def signed_headers(
    credentials: Credentials,
    method: str,
    host: str,
    path: str,
    content_sha256: str,
    at: datetime,
    query: str = "",
) -> dict[str, str]:
    """Return the headers of a request; `path` and `query` are quoted, `at` is in UTC."""
    time = at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{time[:8]}/{credentials.region}/{_SERVICE}/aws4_request"
    canonical = "\n".join(
        (
            *(method, path, query),
            *(f"host:{host}", f"x-amz-content-sha256:{content_sha256}", f"x-amz-date:{time}", ""),
            *(_SIGNED_HEADERS, content_sha256),
        )
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((_ALGORITHM, time, scope, digest))
    signature = hmac.new(_signing_key(credentials, time[:8]), text.encode(), "sha256").hexdigest()
    return {
        "x-amz-content-sha256": content_sha256,
        "x-amz-date": time,
        "authorization": f"{_ALGORITHM} Credential={credentials.key_id}/{scope}, "
        f"SignedHeaders={_SIGNED_HEADERS}, Signature={signature}",
    }


def _signing_key(credentials: Credentials, day: str) -> bytes:
    key = f"AWS4{credentials.secret}".encode()
    for part in (day, credentials.region, _SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return key
