#!/usr/bin/env python3
"""Writes the wheel of the Python package: a ZIP file with the modules, liborthant.so and the metadata (PEP 427). The
platform in its name states the glibc that the library requires (PEP 600), which is read from the library.

  python/make_wheel.py PACKAGE_FOLDER OUTPUT_FOLDER
"""
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
OLDEST_GLIBC = (2, 17)  # the oldest one that manylinux names


def required_glibc(library):
    """Returns the newest version of glibc whose symbols the library uses, as (2, 35)."""
    symbols = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_(\d+\.\d+)", symbols)}
    return max(versions | {OLDEST_GLIBC})[:2]


def version_of(root):
    """Returns the version of the project that CMakeLists.txt states."""
    return re.search(r"project\(Orthant VERSION (\S+)", (root / "CMakeLists.txt").read_text())[1]


def metadata(version):
    description = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    return (f"Metadata-Version: 2.1\nName: orthant\nVersion: {version}\n"
            "Summary: Plans, checks and compares layouts for training transformers over many devices\n"
            f"Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n{description}")


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def make_wheel(package, output):
    """Writes the wheel into the output folder, and returns its path. Equal packages give equal bytes."""
    version = version_of(ROOT)
    major, minor = required_glibc(package / "liborthant.so")
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    info = f"orthant-{version}.dist-info"
    files = {f"orthant/{path.name}": path.read_bytes() for path in sorted(package.iterdir()) if path.is_file()}
    files[f"{info}/METADATA"] = metadata(version).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: orthant\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = "".join(record_line(name, data) for name, data in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    path = output / f"orthant-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # its date is 1980, so that the bytes do not depend on the clock
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def main(arguments):
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    package, output = map(pathlib.Path, arguments)
    path = make_wheel(package, output)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB; install it with `pip install {path}`")


if __name__ == "__main__":
    main(sys.argv[1:])
