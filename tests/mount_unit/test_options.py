"""What ``-o`` takes: own options, those of FUSE, those of mount(8) to be passed over, and clear errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.mount.options import MountOptions
from glassfs.sizes import human_size, parse_size
from glassfs.source.remote.options import WrongValue, connection_from
from glassfs.source.remote.url import Connection


def test_values(tmp_path: Path) -> None:
    assert MountOptions.parse(()) == MountOptions.parse(("",)) == MountOptions()
    assert MountOptions().cache_size == 256 << 20
    options = MountOptions.parse((
        "uid=1000,gid=100", "umask=027,cache_size=512M", "max_open=9,read_ahead=4M", "spool_size=2G",
    ))
    assert (options.uid, options.gid, options.umask) == (1000, 100, 0o027)
    assert (options.cache_size, options.max_open, options.read_ahead) == (512 << 20, 9, 4 << 20)
    assert options.spool_size == 2 << 30
    assert MountOptions.parse((" cache_size=1G , uid=0 ",)) == MountOptions(uid=0, cache_size=1 << 30)
    assert MountOptions.parse(("uid=1,uid=2",)).uid == 2
    assert MountOptions.parse(("allow_other,nonempty", "debug")).flags == {"allow_other", "nonempty", "debug"}
    assert not MountOptions.parse(("catalogue=yes,catalogue=no",)).catalogue
    spool = tmp_path / "a,b\\c"
    spool.mkdir()
    escaped = str(spool).replace("\\", "\\\\").replace(",", "\\,")
    assert MountOptions.parse((f"spool={escaped},uid=1",)) == MountOptions(uid=1, spool=str(spool))


@pytest.mark.parametrize("option", [
    "ro", "defaults", "noauto", "nofail", "_netdev", "users", "noatime", "x-systemd.automount", "x-gvfs-show",
    "x-systemd.requires=network.target", "comment=anything", "suid", "exec", "dev",
])
def test_options_of_mount_are_passed_over(option: str) -> None:
    assert MountOptions.parse((option,)) == MountOptions()


def test_options_for_urls_are_parsed() -> None:
    options = MountOptions.parse((
        "endpoint=http://localhost:9000/,region=eu-north-1,anonymous,profile=lab", "timeout=2.5,poll=.5",
        "disk_cache=some/where,disk_cache_size=2G",
    ))
    folder = os.path.abspath("some/where")
    assert options.connection() == Connection(
        endpoint="http://localhost:9000", region="eu-north-1", anonymous=True, profile="lab", timeout=2.5, poll=0.5,
        disk_cache=folder, disk_cache_size=2 << 30,
    )
    shown = options.shown()
    assert (shown["endpoint"], shown["anonymous"], shown["timeout"]) == ("http://localhost:9000", True, 2.5)
    assert (shown["disk_cache"], shown["poll"]) == (folder, 0.5)


@pytest.mark.parametrize(("given", "permissions"), [
    ("", 0o400), ("uid=5,gid=5", 0o400), ("umask=0", 0o444), ("umask=027", 0o444),
])
def test_remote_files_are_private_without_a_umask(given: str, permissions: int) -> None:
    assert MountOptions.parse((given,)).connection().permissions == permissions


@pytest.mark.parametrize(("option", "reason"), [
    ("timeout=0", "'0' is not a number of seconds, over 0 and up to 3600"), ("timeout=3601", "'3601'"),
    ("timeout=inf", "'inf'"), ("timeout=-1", "'-1'"), ("timeout=1e9", "'1e9'"), ("timeout=", "needs a value"),
    ("timeout", "needs a value"), ("poll=0", "a number of seconds"), ("disk_cache=", "needs a value"),
    ("disk_cache_size=lots", "a size, such as"), ("endpoint=localhost:9000", "is not a URL such as"),
    ("endpoint=http://", "is not a URL such as"), ("endpoint=s3://bucket", "is not a URL such as"),
    ("anonymous=yes", "takes no value"), ("region=a b\x1b", "is not a name"), ("timout=3", "option 'timout=3'"),
    ("endpoint=https://me:hunter2@host", "never from the command line"),
    ("secret=hunter2", "option secret: credentials are taken"),
    ("aws_secret_access_key=hunter2", "never from the command line"), ("key=hunter2", "never from the command line"),
])
def test_wrong_options_of_urls(option: str, reason: str) -> None:
    for parse in (lambda: MountOptions.parse((option,)), lambda: connection_from([option])):
        with pytest.raises(WrongValue) as caught:
            parse()
        assert reason in str(caught.value)
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_mount_options_are_unknown_for_urls() -> None:
    for option in ("uid=5", "colour", "allow_other"):
        with pytest.raises(WrongValue, match="unknown option"):
            connection_from([option])


@pytest.mark.parametrize(("option", "reason"), [
    ("colour", "unknown mount option 'colour'"), ("cachesize=1G", "unknown mount option 'cachesize=1G'"),
    ("allow_other=1", "takes no value"), ("ro=1", "unknown"),
    ("uid", "uid"),
    ("uid=me", "'me' is not the number of a user"), ("uid=-1", "'-1'"), ("uid=1_0", "'1_0'"),
    ("gid=4294967295", "the number of a group"), ("umask=-1", "an octal number"),
    ("uid=١", "the number of a user"), ("read_ahead=fast", "a size, such as"),
    ("umask=888", "'888'"), ("umask=1000", "'1000'"),
    ("cache_size=lots", "'lots'"), ("cache_size=-1", "'-1'"), ("max_open=0", "'0'"), ("rw", "read-only"),
    ("spool=/none/such", "'/none/such' is not a directory"), ("spool", "name one"), ("spool=", "name one"),
    ("metrics=/none/m.prom", "is not a file in a folder"), ("log_file=/none/log", "is not a file in a folder"),
    ("metrics=/", "'/' is not a file"), ("log_file=/", "'/' is not a file"),
    ("allow_root", "only one of them"), ("catalogue", "is not yes or no"), ("catalogue=/tmp", "'/tmp'"),
])
def test_wrong_options_are_named(option: str, reason: str) -> None:
    with pytest.raises(WrongValue) as caught:
        MountOptions.parse((f"allow_other,{option}",))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_links_are_followed_for_one_ordinary_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "follow_links" in MountOptions.parse(("follow_links",)).flags
    with pytest.raises(WrongValue, match="not for mounts by root or with allow_other"):
        MountOptions.parse(("follow_links", "allow_other"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(WrongValue, match="not for mounts by root"):
        MountOptions.parse(("follow_links",))


def test_lenient_parser_ignores_unknown_options_only() -> None:
    """mount(8) passes all options of a line in fstab with ``-s``."""
    assert MountOptions.parse(("colour,uid=3",), is_lenient=True).uid == 3
    with pytest.raises(WrongValue):
        MountOptions.parse(("uid=x",), is_lenient=True)


def test_sizes() -> None:
    texts = {
        "0": 0, "512": 512, "4k": 4096, "4KB": 4096, "4KiB": 4096, "64M": 64 << 20, " 2g ": 2 << 30, "1T": 1 << 40,
        "١": 1,  # a digit in another script
    }
    assert {text: parse_size(text) for text in texts} == texts
    for text in ("", "M", "1.5M", "-1", "1P", "1 M", "0x10", "1MM"):
        with pytest.raises(ValueError, match="is not a size"):
            parse_size(text)
    shown = {
        0: "0", 1023: "1023", 1024: "1.0K", 1536: "1.5K", 10 << 10: "10K", 5 << 40: "5.0T", 3 << 50: "3072T",
    }
    assert {size: human_size(size) for size in shown} == shown
