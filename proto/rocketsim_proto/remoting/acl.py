"""Signs requests for RocketMQ's access control, version 1.0 (4.x to 5.3.2) and 2.0 (from 5.3.0) alike.  Pure.

The signature covers the values of all fields and the body, but neither the request's code nor its opaque number, so
somebody who has seen a request can send it again.  Only TLS keeps others from seeing requests.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"


def signature(secret_key: str, fields: Mapping[str, str], body: bytes | memoryview = b"") -> str:
    """Signs the values of the fields, sorted by name, and then the body.  The fields must include the access key."""
    mac = hmac.new(secret_key.encode(), digestmod=hashlib.sha1)
    for name in sorted(fields, key=_code_units):
        if name != SIGNATURE:
            mac.update(fields[name].encode(errors="replace"))
    mac.update(body)
    return base64.b64encode(mac.digest()).decode()


def signed(
    fields: Mapping[str, str],
    body: bytes | memoryview,
    access_key: str,
    secret_key: str,
    security_token: str = "",
) -> dict[str, str]:
    """Returns the fields of a request with access key and signature.

    Empty fields are left out, because a server that gets empty fields in a binary header reads them as absent, and
    would compute another signature.
    """
    whole = {name: value for name, value in fields.items() if value}
    whole[ACCESS_KEY] = access_key
    if security_token:
        whole[SECURITY_TOKEN] = security_token
    whole[SIGNATURE] = signature(secret_key, whole, body)
    return whole


def _code_units(name: str) -> bytes:
    """Returns a key that sorts texts as Java does."""
    return name.encode("utf-16-be", "surrogatepass")
