"""List folders of S3 page by page through botocore, if obstore cannot list them in bounded memory.

obstore fails to list a folder if one key has an empty part (``a//b``) or a control character, and it collects names
without a limit. Here the number of names is limited, and keys that no file can have are marked. Runs on threads of its
own; any thread may call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from threading import Event
from typing import Any
from urllib.parse import unquote_plus

from glassfs.errors import DeviceFailed, GlassfsError, NotAllowed, NotFound, TooLarge
from glassfs.forks import PerProcess
from glassfs.source.contract import Path
from glassfs.source.remote.objects import CODE, facts_of
from glassfs.source.remote.server import MOST_NAMES, Facts, Listed, calls, is_name

MOST_BYTES = 64 << 20
"""Total length of the names and ETags in one folder."""
_MISSING = ("404", "NoSuchBucket", "NoSuchKey")
_DENIED = ("401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")


async def entries(bucket: str, client: PerProcess[Any], path: Path, shown: str) -> list[Listed]:
    """Return what is in a bucket's folder; errors call it ``shown``. Cancelling it ends it after the current page."""
    return await calls.get().run(partial(_list, bucket, client, path, shown))


def _list(bucket: str, client: PerProcess[Any], path: Path, shown: str, abandoned: Event) -> list[Listed]:
    session = client.get()  # raises Refused without botocore
    from botocore.exceptions import BotoCoreError, ClientError

    prefix = "".join(f"{name}/" for name in path)
    found: dict[tuple[str, bool], Listed] = {}
    size = 0
    request = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/", "EncodingType": "url"}
    try:
        while not abandoned.is_set():
            page = session.list_objects_v2(**request)
            for listed in _listed_on(page, prefix):
                size += len(listed.name) + (len(listed.facts.etag) if listed.facts is not None else 0)
                if len(found) == MOST_NAMES or size > MOST_BYTES:
                    raise TooLarge(f"has more than {MOST_NAMES} objects, or very long names", shown)
                found[listed.name, listed.facts is None] = listed
            if not page.get("IsTruncated"):
                return list(found.values())
            # The time bounds a listing without end, and the bytes what it may take; a token that repeats itself
            # would ask for the same page until then.
            token = page.get("NextContinuationToken")
            if not token or token == request.get("ContinuationToken"):
                raise DeviceFailed("the server says that its listing goes on, but not where", shown)
            request["ContinuationToken"] = token
    except GlassfsError:
        raise
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _MISSING:
            raise NotFound("there is no such bucket", shown) from None
        reason = "the server does not list it" + (f" ({code})" if re.fullmatch(CODE, code) else "")
        raise (NotAllowed if code in _DENIED else DeviceFailed)(reason, shown) from None
    except (BotoCoreError, OSError) as error:
        raise DeviceFailed(f"the listing failed ({type(error).__name__})", shown) from None
    raise DeviceFailed("the listing does not end in time", shown)


def _listed_on(page: Any, prefix: str) -> Iterator[Listed]:
    """Yield what one page lists, without the object that is the folder itself, and keys that are not below it."""
    found: list[tuple[str, Facts | None]] = [(one["Prefix"], None) for one in page.get("CommonPrefixes", ())]
    for one in page.get("Contents", ()):
        facts = facts_of({"size": one["Size"], "e_tag": one.get("ETag"), "last_modified": one["LastModified"]})
        if facts is not None:
            found.append((one["Key"], facts))
    for quoted, facts in found:
        key = unquote_plus(quoted, errors="surrogateescape")
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and name:
            folder = name.removesuffix("/")
            yield Listed(folder if facts is None and is_name(folder) else name, facts)
