"""What a service takes and what it refuses, and how it says so."""

import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from hydra_ensembles.data.images import FORMATS
from hydra_ensembles.optional import import_extra


@dataclass(frozen=True)
class Limits:
    """Of one request, and of all together."""

    body_bytes: int = 10 * 2**20
    pixels: int = 50_000_000
    characters: int = 100_000
    waiting: int = 128
    """Requests that are worked on or wait, at one front; one more is told to come back."""
    body_seconds: float = 10.0
    """For a request to arrive."""
    answer_seconds: float = 30.0
    tries: int = 3
    """How often a request is asked whose replica died."""


class Refusal(Exception):
    """A request that is not answered: an HTTP status, what is wrong, and headers."""

    def __init__(self, status: int, detail: str, **headers: str):
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


async def read_body(length: str | None, chunks: AsyncIterator[bytes], limits: Limits) -> bytes:
    """The body of a request, refused as soon as it is known to be too long."""
    too_long = Refusal(413, f"the body is longer than {limits.body_bytes:,} bytes", Connection="close")
    if length is not None and length.isdigit() and int(length) > limits.body_bytes:
        raise too_long
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > limits.body_bytes:
            raise too_long
    return bytes(content)


def checked_image(content: bytes, limits: Limits) -> bytes:
    """An encoded image whose header can be read and whose size is within the limit; it is not decoded yet."""
    images = import_extra("PIL.Image", "data", "reading images")
    if not content:
        raise Refusal(422, "the body is empty; send the bytes of an image")
    try:
        width, height = images.open(io.BytesIO(content), formats=FORMATS).size
    except images.DecompressionBombError:
        raise Refusal(413, f"the image has more than {limits.pixels:,} pixels") from None
    except Exception:  # whatever Pillow makes of bytes that are no image
        known = ", ".join(FORMATS)
        raise Refusal(422, f"the body is not an image that can be read ({known})") from None
    if width * height > limits.pixels:
        raise Refusal(413, f"the image has {width} x {height} pixels, more than {limits.pixels:,}")
    return content


def checked_text(content: bytes, limits: Limits) -> str | tuple[str, str]:
    """A text, or a pair of texts, from `{"text": ...}`."""
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise Refusal(422, 'the body is not JSON; send {"text": "..."}') from None
    text = found.get("text") if isinstance(found, dict) else None
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, list) or len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
        raise Refusal(422, 'expected {"text": "..."}, or {"text": ["...", "..."]} for a pair')
    if sum(map(len, parts)) > limits.characters:
        raise Refusal(413, f"the text has more than {limits.characters:,} characters")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError:
        raise Refusal(422, "the text holds half of a surrogate pair") from None
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])
