"""What of a message's JSON is kept when the bytes of images are not: everything else, as sent.

Works on the bytes, so that numbers, key order, escapes and unknown fields stay what they were.
"""

import hashlib
import re

MIN_BASE64_CHARS = 512  # shorter `data` is no picture, file or recording

_BASE64 = rb"(?:[A-Za-z0-9+_=-]|\\?/|\\[nr])"
# A JSON string that is a data URL as a whole; `/` may be escaped.
_DATA_URL = re.compile(
    rb'"data:(?P<type>[\w.+-]+\\?/[\w.+-]+)?(?:;[\w.+-]+=[^;,"\\]*)*;base64,(?P<data>'
    + _BASE64
    + rb'*)"'
)
# Bare base64 stands under these keys (input_audio, file, source of type base64).
_BARE = re.compile(
    rb'(?P<key>"(?:data|file_data|b64_json)"\s*:\s*)"(?P<data>' + _BASE64 + rb'{512,})"'
)


def without_images(body: bytes, key: bytes) -> bytes:
    """The JSON with a keyed hash and the size in place of what is encoded in base64."""
    if b"base64," in body:
        body = _DATA_URL.sub(lambda match: _url_marker(match, key), body)
    return _BARE.sub(lambda match: match["key"] + b'"' + _marker(match["data"], key) + b'"', body)


def _url_marker(match: re.Match[bytes], key: bytes) -> bytes:
    kind = (match["type"] or b"").replace(b"\\", b"")
    return b'"data:' + kind + b";" + _marker(match["data"], key) + b',"'


def _marker(data: bytes, key: bytes) -> bytes:
    digits = re.sub(rb"\\[nr]|\\", b"", data)
    digest = hashlib.blake2b(digits, key=key, digest_size=16).hexdigest()
    size_bytes = len(digits.rstrip(b"=")) * 3 // 4
    return f"omitted;bytes={size_bytes};hash={digest}".encode()
