"""Published packages of fixtures/ecosystem.toml -> their sources under .ecosystem/; nothing of them is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HOME = ROOT / ".ecosystem"

# pip wants the metadata of a source archive even when it only downloads it, and would run the setup.py inside
# to get them. It is given this for setuptools instead, which hands out what the archive itself says.
_BACKEND = '''\
"""Stands in for setuptools: the metadata of a source archive are those it brings along."""
import shutil
from email.parser import BytesParser
from pathlib import Path


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    said = BytesParser().parsebytes(Path("PKG-INFO").read_bytes(), headersonly=True)
    folder = Path(metadata_directory, f"{said['Name']}-{said['Version']}.dist-info")
    folder.mkdir()
    shutil.copy("PKG-INFO", folder / "METADATA")
    return folder.name


class __legacy__:
    get_requires_for_build_wheel = staticmethod(get_requires_for_build_wheel)
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
'''


def sources(name: str, version: str) -> Path:
    """The directory with the unpacked sources, fetched first unless they are there."""
    target = HOME / f"{name}-{version}"
    if not target.is_dir():
        partial = HOME / f"{target.name}.part"
        shutil.rmtree(partial, ignore_errors=True)
        _unpack(_download(name, version), partial)
        partial.rename(target)
    return target


def _download(name: str, version: str) -> Path:
    """The wheel or source archive, by pip and from wherever pip is set up to look."""
    backend = HOME / "backend" / "setuptools"
    backend.mkdir(parents=True, exist_ok=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_BACKEND)
    folder = HOME / "archives" / f"{name}-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--dest", str(folder), f"{name}=={version}"]
    print(f"downloading {name} {version}", flush=True)
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(backend.parent)})
    (archive,) = folder.iterdir()
    return archive


def _unpack(archive: Path, target: Path) -> None:
    if archive.name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    # A source archive holds one directory, named after itself.
    (inside,) = target.iterdir()
    for entry in inside.iterdir():
        entry.rename(target / entry.name)
    inside.rmdir()
