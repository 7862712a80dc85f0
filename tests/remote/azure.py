"""A small blob service like Azure's, over the same buckets as our own S3: a container's listing, and blobs in ranges.

``{url}/account/container/blob``, as emulators have it. Signatures are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from email.utils import formatdate
from pathlib import Path

from tests.remote.faults import Fault, Faults
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, answer_object, as_bytes, as_text, escaped

PAGE = 5000
"""Names in one page of a listing, as on Azure."""
ACCOUNT = "glass"


class AzureServer(HttpServer):
    """Containers by their names."""

    def __init__(
        self, containers: Mapping[str, Bucket], *, delay: float = 0, bandwidth: float | None = None,
        faults: Faults | Iterable[Fault | None] = (), certificate: Path | None = None,
    ) -> None:
        super().__init__(
            self._answer_request, delay=delay, bandwidth=bandwidth, faults=faults, certificate=certificate,
        )
        self.containers = containers

    @property
    def endpoint(self) -> str:
        return f"{self.url}/{ACCOUNT}"

    def _answer_request(self, request: Request) -> Reply:
        name, _, key = request.path.removeprefix(f"/{ACCOUNT}/").partition("/")
        container = self.containers.get(name)
        if container is None:
            return failure("ContainerNotFound")
        if not key:
            return listing(container, request.query)
        made = container.get(key)
        return failure("BlobNotFound") if made is None else answer_object(made, request)


def listing(container: Bucket, query: Mapping[str, str]) -> Reply:
    prefix, delimiter = as_bytes(query.get("prefix", "")), as_bytes(query.get("delimiter", ""))
    most = min(PAGE, int(query.get("maxresults", PAGE)))
    found, last = container.page(prefix, delimiter, bytes.fromhex(query.get("marker", "")), most)
    parts = []
    for key in found:
        made = container.get(as_text(key))
        if made is None or (delimiter and key.endswith(delimiter) and key != prefix):
            parts.append(f"<BlobPrefix><Name>{escaped(key)}</Name></BlobPrefix>")
        else:
            parts.append(
                f"<Blob><Name>{escaped(key)}</Name><Properties><Last-Modified>{formatdate(made.modified, usegmt=True)}"
                f"</Last-Modified><Etag>{escaped(made.etag.encode())}</Etag><Content-Length>{made.size}"
                "</Content-Length><Content-Type>application/octet-stream</Content-Type></Properties></Blob>",
            )
    marker = "" if last is None else last.hex()
    text = (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>'
        f"{''.join(parts)}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
    )
    return Reply(200, [("Content-Type", "application/xml")], text.encode(errors="surrogateescape"))


def failure(code: str) -> Reply:
    text = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return Reply(404, [("Content-Type", "application/xml"), ("x-ms-error-code", code)], text.encode())
