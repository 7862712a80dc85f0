"""From a URL to the server that answers for it: which protocol, which endpoint, and whose credentials."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from glassfs.errors import NotAllowed, Refused
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.library import EXTRA, obstore
from glassfs.source.remote.objects import SILENCE, ObjectServer, WebServer
from glassfs.source.remote.redirects import demand_same_host
from glassfs.source.remote.s3_pages import S3Pages
from glassfs.source.remote.server import Server
from glassfs.source.remote.signed import meant
from glassfs.source.remote.url import WEB, Url

REGION = "us-east-1"
CREDENTIALS_FOR = timedelta(minutes=10)
"""How long those that were found are used before they are looked up again."""
ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_FILES = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))


class _Made(NamedTuple):
    """What makes an obstore store, the endpoint of it if that is not the usual one, and another way to list folders."""

    make: Callable[[], Any]
    endpoint: str
    pages: S3Pages | None = None


def server_of(url: Url, connection: Connection) -> Server:
    """Who answers for a URL. Raises Refused and NotAllowed."""
    makers = {"s3": _s3, "gs": _gs, "az": _az}
    if url.scheme not in (*WEB, *makers):
        from glassfs.source.remote.fsspecs import FsspecServer

        return FsspecServer(url, connection)
    if url.userinfo and (url.scheme != "az" or ":" in url.userinfo):
        raise Refused(
            "has a user or password in it, which others could see: they come from the environment and the usual files",
            url.shown,
        )
    if url.scheme in WEB:
        return _web(url, connection)
    if not url.host:
        raise Refused("names no bucket", url.shown)
    library = obstore(url.shown)
    options = ObjectServer.options(connection.timeout)
    made = makers[url.scheme](url, connection, options)
    try:
        made.make()
    except Exception as error:
        raise Refused(f"cannot be opened: {str(error).partition(chr(10))[0]}", url.shown) from None
    name = f"{url.scheme}://{url.userinfo or url.host}"
    return ObjectServer(
        name, f"{name} {made.endpoint}", made.make, library, connection.timeout, True, made.pages,
    )


def _s3(url: Url, connection: Connection, options: dict[str, Any]) -> _Made:
    from obstore.store import S3Store

    region = connection.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    endpoint = connection.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    given: dict[str, Any] = {}
    session: Any = None
    if connection.anonymous:
        given["skip_signature"] = True
    elif connection.key:
        given |= {"access_key_id": connection.key, "secret_access_key": connection.secret}
        if connection.token:
            given["session_token"] = connection.token
    elif connection.profile or not all(map(os.environ.get, _ENVIRONMENT)):
        session = _session(url, connection.profile)
        found = session.get_credentials()
        if found is None:
            raise NotAllowed(
                "there are no credentials, neither in the environment nor in the usual files; "
                "a bucket that is open to all needs the option anonymous", url.shown,
            )
        given["credential_provider"] = _provider(found)
    if not (region and endpoint) and (session is not None or _has_files()):
        session = session or _session(url, connection.profile)
        region = region or session.get_config_variable("region") or ""
        endpoint = endpoint or _configured_endpoint(session)
    if endpoint:
        given["endpoint"] = endpoint
        _allow(endpoint, options)
    client = partial(_s3_client, connection, region or REGION, endpoint)
    return _Made(
        lambda: S3Store(url.host, region=region or REGION, **given, **options), endpoint,
        S3Pages(url.host, client, connection.timeout),
    )


def _s3_client(connection: Connection, region: str, endpoint: str) -> Any:
    """The same for botocore."""
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    patience = connection.timeout / SILENCE
    config = Config(
        signature_version=UNSIGNED if connection.anonymous else None, connect_timeout=patience, read_timeout=patience,
        retries={"total_max_attempts": 3, "mode": "standard"}, s3={"addressing_style": "path"},
        parameter_validation=False,
    )
    return botocore.session.Session(profile=connection.profile or None).create_client(
        "s3", region_name=region, endpoint_url=endpoint or None, config=config,
        aws_access_key_id=connection.key or None, aws_secret_access_key=connection.secret or None,
        aws_session_token=connection.token or None,
    )


def _has_files() -> bool:
    """Whether what takes a while to load could know more than the environment."""
    return any(os.path.exists(os.path.expanduser(os.environ.get(name) or usual)) for name, usual in _FILES)


def _session(url: Url, profile: str) -> Any:
    """What knows the files, roles and services that credentials for S3 come from."""
    try:
        import botocore.session
    except ImportError:
        raise Refused(EXTRA, url.shown) from None
    session = botocore.session.Session(profile=profile or None)
    try:
        session.get_scoped_config()
    except Exception as error:
        raise NotAllowed(f"the files of AWS cannot be understood: {error}", url.shown) from None
    return session


def _provider(credentials: Any) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        found = credentials.get_frozen_credentials()
        until = datetime.now(timezone.utc) + CREDENTIALS_FOR
        return {
            "access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token,
            "expires_at": until,
        }

    return provide


def _configured_endpoint(session: Any) -> str:
    """That of S3 alone, or that of all services."""
    config = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(config.get("services"), {})
    of_s3 = services.get("s3", {})
    return str((isinstance(of_s3, dict) and of_s3.get("endpoint_url")) or config.get("endpoint_url", ""))


def _allow(endpoint: str, options: dict[str, Any]) -> None:
    """Plain http, where an endpoint was named so."""
    options["client_options"]["allow_http"] = endpoint.startswith("http://")


def _gs(url: Url, connection: Connection, options: dict[str, Any]) -> _Made:
    from obstore.store import GCSStore

    given: dict[str, Any] = {}
    if connection.anonymous:
        given["skip_signature"] = True
    elif connection.token:
        given["bearer_token"] = connection.token
    if connection.endpoint:
        given["base_url"] = connection.endpoint
        _allow(connection.endpoint, options)
    return _Made(lambda: GCSStore(url.host, **given, **options), connection.endpoint)


def _az(url: Url, connection: Connection, options: dict[str, Any]) -> _Made:
    from obstore.store import AzureStore

    given: dict[str, Any] = {}
    if connection.anonymous:
        given["skip_signature"] = True
    elif connection.secret:
        given["account_key"] = connection.secret
    elif connection.token:
        given["bearer_token"] = connection.token
    # abfss://container@account.dfs.core.windows.net/path has both in its host.
    container, account = url.host, connection.key or os.environ.get(ACCOUNT, "")
    if url.userinfo:
        container, account = url.userinfo, url.host.partition(".")[0]
    if not account:
        raise NotAllowed(f"it is not said whose account it is in: {ACCOUNT} is not set", url.shown)
    given["account_name"] = account
    if connection.endpoint:
        given["endpoint"] = connection.endpoint
        _allow(connection.endpoint, options)
    return _Made(lambda: AzureStore(container, **given, **options), connection.endpoint or account)


def _web(url: Url, connection: Connection) -> ObjectServer:
    """A server of its own for each host and query: what is signed in the query is signed for one object."""
    library = obstore(url.shown)
    from obstore.store import HTTPStore

    options = ObjectServer.options(connection.timeout)
    options["client_options"]["allow_http"] = url.scheme == "http"
    authorization = _authorization(url, connection)
    if authorization:
        options["client_options"]["default_headers"] = {"Authorization": authorization}
    base = f"{url.scheme}://{url.host}"
    query = f"/?{url.query}" if url.query else ""

    def make() -> Any:
        return HTTPStore.from_url(f"{base}{query}", **options)

    try:
        make()
    except Exception:
        raise Refused("is not the URL of a server", url.shown) from None
    if url.query:
        demand_same_host(url, authorization, connection.timeout)
    word = meant(url.query)
    return WebServer(base, f"{base}?{word}" if word else base, make, library, connection.timeout, False)


def _authorization(url: Url, connection: Connection) -> str:
    """What a server is told of who asks, from what a program gave or from the file of all programs, ~/.netrc."""
    from base64 import b64encode
    from netrc import NetrcParseError, netrc

    if connection.token:
        return f"Bearer {connection.token}"
    user, password = connection.key, connection.secret
    if not user and not connection.anonymous:
        try:
            found = netrc(os.environ.get("NETRC") or None).authenticators(url.host.rpartition(":")[0] or url.host)
        except (OSError, NetrcParseError):
            found = None
        if found is not None:
            user, password = found[0], found[2] or ""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
