"""Name the command that installs an extra of this package, the way in which the package itself was installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "glassfs"
_TOOLS = (("pipx_metadata.json", "pipx install --force"), ("uv-receipt.toml", "uv tool install"))
"""Files that pipx and uv write into the environments that they make, and their commands."""


def command(extra: str) -> str:
    """Return a command for a shell: from a checkout it installs the checkout, otherwise from the package index."""
    from importlib import metadata  # takes 15 ms to import, and few programs need it

    try:
        distribution = metadata.distribution(NAME)
        found = json.loads(distribution.read_text("direct_url.json") or "{}")
        installer = (distribution.read_text("INSTALLER") or "").strip()
    except (metadata.PackageNotFoundError, OSError, ValueError):
        found, installer = {}, ""
    is_editable, package = _package(found if isinstance(found, dict) else {}, extra)
    words = f"{'-e ' if is_editable else ''}'{package}'" if "'" not in package else shlex.quote(package)
    for name, tool in _TOOLS:
        if os.path.exists(os.path.join(sys.prefix, name)):
            return f"{tool} {words}"
    return f"{_pip(installer)} {words}"


def _package(found: dict[str, Any], extra: str) -> tuple[bool, str]:
    """Return whether the package is installed in place, and what to install, from what ``direct_url.json`` says."""
    url = str(found.get("url", ""))
    version_control = found.get("vcs_info")
    if isinstance(version_control, dict):
        return False, f"{NAME}[{extra}] @ {version_control.get('vcs', 'git')}+{url}"
    folder = unquote(urlsplit(url).path) if url.startswith("file://") else ""
    if not os.path.isfile(os.path.join(folder, "pyproject.toml")) or not folder:
        return False, f"{NAME}[{extra}]"
    information = found.get("dir_info")
    is_editable = isinstance(information, dict) and information.get("editable") is True
    return is_editable, f"{folder}[{extra}]"


def _pip(installer: str) -> str:
    """Return the command of this environment's pip, which may be another one than that of the shell."""
    if installer == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    pip = shutil.which("pip")
    if pip is not None and os.path.dirname(pip) == os.path.dirname(sys.executable):
        return "pip install"
    return f"{shlex.quote(sys.executable)} -m pip install"
