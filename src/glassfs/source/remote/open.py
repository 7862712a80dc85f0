"""Open what URLs name: servers, by protocol, endpoint and credentials, and stores of folders or single objects."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from threading import Event
from typing import Any, TypeAlias
from urllib.parse import unquote_plus, urlsplit

from glassfs.errors import DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused, TooLarge
from glassfs.forks import PerProcess
from glassfs.source.contract import ByteCache, Named, Path
from glassfs.source.remote.blocks import DiskCache, RemoteBlocks
from glassfs.source.remote.objects import (
    CODE,
    FINAL,
    ListPages,
    ObjectServer,
    facts_of,
    not_installed,
    obstore,
    read_options,
)
from glassfs.source.remote.server import MOST_NAMES, NO_HOST, TRIES, Facts, Listed, Server, calls, is_name
from glassfs.source.remote.store import RemoteStore
from glassfs.source.remote.url import WEB, Connection, Url, parsed
from glassfs.source.remote.web import WebServer

DEFAULT_REGION = "us-east-1"
CREDENTIALS_VALID = timedelta(minutes=10)
"""How long credentials of a provider are used before it is asked again."""
ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
MOST_BYTES = 64 << 20
"""Total length of the names and ETags in one folder."""
_MISSING = ("404", "NoSuchBucket", "NoSuchKey")
_DENIED = ("401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_FILES = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))

_Bucket: TypeAlias = tuple[Any, str, str, ListPages | None]
"""An obstore store, the endpoint that distinguishes stores of one name, the host, and a lister."""


def located(
    urls: Sequence[str], connection: Connection, is_file: Callable[[str], bool], cached: ByteCache,
) -> list[Named]:
    """Return what these URLs name. Their stores share servers and ``cached``.

    ``is_file`` returns for a name whether an object is more likely than a folder. Raises NotFound and others.
    """
    disk = DiskCache(connection.disk_cache, connection.disk_cache_size) if connection.disk_cache else None
    servers: dict[tuple[str, str, str], Server] = {}
    store = cache(partial(RemoteStore, connection=connection, blocks=RemoteBlocks(cached, disk)))

    def named(url: Url) -> Named:
        def folder() -> Named:
            found = store(server, url.path, has_folders=True)
            if next(found.list(()), None) is None and url.path:
                raise NotFound("there is no such object or folder", url.shown)
            return Named(found, (), url.path[-1] if url.path else url.host)

        def single() -> Named:
            found = Named(store(server, url.path[:-1], has_folders=False), url.path[-1:], url.path[-1])
            found.store.entry(found.path)
            return found

        key = url.scheme, f"{url.userinfo}@{url.host}", url.query
        try:
            if key not in servers:
                servers[key] = server_of(url, connection)
            server = servers[key]
            if url.is_folder:
                return folder()
            # A name may be an object or a folder, and each guess costs a request. The more likely one comes first.
            first, second = (single, folder) if url.query or is_file(url.path[-1]) else (folder, single)
            try:
                return first()
            except (NotFound, Refused) as error:
                try:
                    return second()
                except (NotFound, Refused):
                    raise error.at(url.shown) from None
        except DeviceFailed as error:
            # Servers without TLS, or with it, mostly do not say so.
            if url.scheme not in WEB or error.reason in (*FINAL, NO_HOST) or error.reason.startswith("the server"):
                raise
            asked = "TLS" if url.scheme == "https" else "plain HTTP instead of TLS"
            raise DeviceFailed(f"{error.reason}; does the server speak {asked}?", error.source) from None

    return [named(parsed(url)) for url in urls]


def server_of(url: Url, connection: Connection) -> Server:
    """Return the server of a URL. Raises Refused and NotAllowed."""
    try:
        if url.scheme in _BUCKETS:
            return bucket_of(url, connection)
        if url.scheme in WEB:
            return WebServer(url, connection)
        if url.scheme in ("sftp", "ssh"):
            try:
                from glassfs.source.remote.ssh import SshServer
            except ImportError:
                raise Refused(not_installed("ssh")) from None
            return SshServer(url, connection)
        from glassfs.source.remote.fsspecs import SERVERS, FsspecServer

        return SERVERS.get(url.scheme, FsspecServer)(url, connection)
    except GlassfsError as error:
        raise error.at(url.shown) from None


def bucket_of(url: Url, connection: Connection) -> ObjectServer:
    """Return the server of a bucket's URL. Raises Refused and NotAllowed."""
    if not url.host:
        raise Refused("names no bucket")
    library = obstore()
    try:
        store, endpoint, host, list_pages = _BUCKETS[url.scheme](url, connection, read_options(connection.timeout))
    except GlassfsError:
        raise
    except Exception:  # its message may repeat a credential
        raise Refused("cannot be opened: its name, an option or a credential is malformed") from None
    name = f"{url.scheme}://{url.userinfo or url.host}"
    host = urlsplit(endpoint).hostname or host
    return ObjectServer(name, f"{name} {endpoint}", store, library, connection.timeout, host, list_pages)


def _s3(url: Url, connection: Connection, options: dict[str, Any]) -> _Bucket:
    from obstore.store import S3Store

    region = connection.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    endpoint = connection.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    # botocore knows the files, roles and services that credentials come from, and takes 0.2 s to import. It is needed
    # only if the environment's keys do not count, or if files may name a region or an endpoint.
    credentials: dict[str, Any] = {}
    session: Any = None
    if connection.anonymous:
        credentials["skip_signature"] = True
    elif connection.key or connection.profile or not all(map(os.environ.get, _KEYS)):
        session = _session(connection)
        found = session.get_credentials()
        if found is None:
            reason = "there are no credentials, neither in the environment nor in the usual files"
            raise NotAllowed(f"{reason}; for a public bucket pass the option anonymous")
        credentials["credential_provider"] = partial(_provide, found)
    has_files = any(os.path.exists(os.path.expanduser(os.environ.get(name) or usual)) for name, usual in _FILES)
    if not (region and endpoint) and (session is not None or has_files):
        session = session or _session(connection)
        region = region or session.get_config_variable("region") or ""
        endpoint = endpoint or _configured_endpoint(session)
    if endpoint:
        credentials["endpoint"] = endpoint
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    region = region or DEFAULT_REGION
    client = PerProcess(partial(_client, connection, region, endpoint))

    async def list_pages(path: Path) -> list[Listed]:
        return await calls.get().run(partial(_list, url.host, client, path))

    store = S3Store(url.host, region=region, **credentials, **options)
    return store, endpoint, f"s3.{region}.amazonaws.com", list_pages


def _list(bucket: str, client: PerProcess[Any], path: Path, abandoned: Event) -> list[Listed]:
    """Return what is in a bucket's folder, page by page. An abandoned call ends after a page.

    obstore fails to list a folder if one key has an empty part (``a//b``) or a control character, and it collects names
    without a limit. Here the number of names is limited, and keys that no file can have are marked.
    """
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
                    raise TooLarge(f"has more than {MOST_NAMES} objects, or very long names")
                found[listed.name, listed.facts is None] = listed
            if not page.get("IsTruncated"):
                return list(found.values())
            # The time bounds a listing without end, and the bytes what it may take; a token that repeats itself
            # would ask for the same page until then.
            token = page.get("NextContinuationToken")
            if not token or token == request.get("ContinuationToken"):
                raise DeviceFailed("the server says that its listing goes on, but not where")
            request["ContinuationToken"] = token
    except GlassfsError:
        raise
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _MISSING:
            raise NotFound("there is no such bucket") from None
        reason = "the server does not list it" + (f" ({code})" if re.fullmatch(CODE, code) else "")
        raise (NotAllowed if code in _DENIED else DeviceFailed)(reason) from None
    except (BotoCoreError, OSError) as error:
        raise DeviceFailed(f"the listing failed ({type(error).__name__})") from None
    raise DeviceFailed("the listing does not end in time")


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


def _client(connection: Connection, region: str, endpoint: str) -> Any:
    """Return a botocore client with the same credentials and endpoint. Raises Refused and NotAllowed."""
    session = _session(connection)
    from botocore import UNSIGNED
    from botocore.config import Config

    silence = connection.timeout / TRIES
    config = Config(
        signature_version=UNSIGNED if connection.anonymous else None, connect_timeout=silence, read_timeout=silence,
        retries={"total_max_attempts": 3, "mode": "standard"}, s3={"addressing_style": "path"},
        parameter_validation=False,
    )
    return session.create_client("s3", region_name=region, endpoint_url=endpoint or None, config=config)


def _session(connection: Connection) -> Any:
    """Return a botocore session: it knows the files, roles and services that credentials come from."""
    try:
        import botocore.session
    except ImportError:
        raise Refused(not_installed()) from None
    session = botocore.session.Session(profile=connection.profile or None)
    try:
        session.get_scoped_config()
    except Exception as error:
        raise NotAllowed(f"cannot parse the AWS configuration files: {error}") from None
    if connection.key:
        session.set_credentials(connection.key, connection.secret, connection.token or None)
    return session


def _provide(credentials: Any) -> dict[str, Any]:
    """Return botocore's credentials as obstore takes them."""
    found = credentials.get_frozen_credentials()
    return {
        "access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token,
        "expires_at": datetime.now(timezone.utc) + CREDENTIALS_VALID,
    }


def _configured_endpoint(session: Any) -> str:
    """Return the endpoint in the configuration file: that of S3, or else that of all services."""
    from botocore.configprovider import ConfiguredEndpointProvider

    return str(ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide() or "")


def _credentials(connection: Connection, options: dict[str, Any], endpoint: str, secret: str = "") -> dict[str, Any]:
    """Return the credentials and the endpoint as obstore takes them, under its names for endpoint and secret."""
    credentials: dict[str, Any] = {}
    if connection.anonymous:
        credentials["skip_signature"] = True
    elif secret and connection.secret:
        credentials[secret] = connection.secret
    elif connection.token:
        credentials["bearer_token"] = connection.token
    if connection.endpoint:
        credentials[endpoint] = connection.endpoint
        options["client_options"]["allow_http"] = connection.endpoint.startswith("http://")
    return credentials


def _gs(url: Url, connection: Connection, options: dict[str, Any]) -> _Bucket:
    from obstore.store import GCSStore

    credentials = _credentials(connection, options, "base_url")
    return GCSStore(url.host, **credentials, **options), connection.endpoint, "storage.googleapis.com", None


def _az(url: Url, connection: Connection, options: dict[str, Any]) -> _Bucket:
    from obstore.store import AzureStore

    # abfss://container@account.dfs.core.windows.net/path has both in its host.
    container, account = url.host, connection.key or os.environ.get(ACCOUNT, "")
    if url.userinfo:
        container, account = url.userinfo, url.host.partition(".")[0]
    if not account:
        raise NotAllowed(f"the storage account is unknown: set {ACCOUNT}")
    credentials = _credentials(connection, options, "endpoint", "account_key")
    store = AzureStore(container, account_name=account, **credentials, **options)
    return store, connection.endpoint or account, f"{account}.blob.core.windows.net", None


_BUCKETS: dict[str, Callable[[Url, Connection, dict[str, Any]], _Bucket]] = {"s3": _s3, "gs": _gs, "az": _az}
