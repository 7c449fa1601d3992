"""Environments with another torch beside all else that this one has, or with another Python, as small as they can be.

A wheel of PyPI for Linux is linked against CUDA's libraries, gigabytes that a processor alone never calls. Here torch
comes without what it requires. NVIDIA's runtime, of two megabytes, is real, because kernels register there as torch is
loaded; each other library that is missing is a stub: it has the symbols that torch asks for, and whatever is called in
it gives an error. The other packages are those of the environment that runs this; for another Python the same versions
are installed. graphprobe itself is the checkout in each of them: its native core is built for all Pythons.
"""

from __future__ import annotations

import ctypes
import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY = "ready"
"""A file in an environment that is complete."""

NO_DEVICE = 100
"""What each function of a stub returns: CUDA's error for a machine without a device."""


def environment(folder: Path, torch: str, python: str = "") -> Path:
    """The Python of an environment with this torch, made in `folder` if need be; this one, if it is just that.

    Args:
        folder: of the environment.
        torch: the version.
        python: such as `3.13`; empty for the one that runs this.

    Raises:
        FileNotFoundError: this machine has no such Python.
        subprocess.CalledProcessError: something could not be installed, or torch cannot be imported.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = python not in ("", own)
    if not other and importlib.metadata.version("torch").partition("+")[0] == torch:
        return Path(sys.executable)
    inside = folder / "bin" / "python"
    if (folder / READY).is_file():
        return inside
    print(f"torch {torch}: installing it in {folder}", flush=True)
    base = interpreter(python) if other else Path(sys.executable)
    subprocess.run([base, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    install(inside, f"torch=={torch}", "--no-deps")
    packages = next(folder.glob("lib/python*/site-packages"))
    metadata = packages / f"torch-{torch}.dist-info" / "METADATA"
    runtime = runtime_requirement(metadata.read_text("utf-8"))
    if runtime is not None:
        install(inside, runtime)
    stubs = make_stubs(packages)
    shared = [str(ROOT / "src")]
    if other:
        metadata.write_text(without_devices(metadata.read_text("utf-8")), "utf-8")
        install_dependencies(inside, packages)
    else:
        shared += [path for path in sys.path if path.endswith("site-packages")]
    # Last, so that pip saw nothing that lies elsewhere. What comes first on the path is torch's own folder.
    (packages / "shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
    subprocess.run([inside, "-c", "import torch, graphprobe"], check=True)
    (folder / READY).touch()
    print(f"torch {torch}: {size(folder)} in {folder}, with stubs for {len(stubs)} libraries", flush=True)
    return inside


def interpreter(version: str) -> Path:
    """A Python of this version: on the path, or one of pyenv's."""
    found = shutil.which(f"python{version}", path=os.environ.get("PATH"))
    if found is not None and is_of(Path(found), version):
        return Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for python in sorted(root.glob(f"versions/{version}.*/bin/python{version}")):
        if is_of(python, version):
            return python
    raise FileNotFoundError(f"there is no Python {version}: not on the path, and not below {root}/versions")


def is_of(python: Path, version: str) -> bool:
    """Whether it runs and is of this version; what pyenv puts on the path may do neither."""
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.startswith(f"Python {version}.")


def install_dependencies(python: Path, packages: Path) -> None:
    """What graphprobe and its tests require, at the versions of constraints.txt, and its entry points."""
    own = importlib.metadata.distribution("graphprobe")
    required = [line.partition(";")[0].strip() for line in own.requires or () if not line.startswith("torch")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        constraints.write("\n".join(line for line in pinned if not line.startswith("torch==")) + "\n")
        constraints.flush()
        install(python, "--constraint", constraints.name, *required)
    info = next(path for path in map(Path, sys.path) if (path / f"graphprobe-{own.version}.dist-info").is_dir())
    name = f"graphprobe-{own.version}.dist-info"
    shutil.copytree(info / name, packages / name)


def without_devices(metadata: str) -> str:
    """The metadata of torch without the requirements that serve a GPU alone: pip would install gigabytes of them."""
    lines = metadata.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"Requires-Dist: (nvidia|cuda|triton)", line))


def install(python: Path, *requirement: str) -> None:
    """Ask pip of this environment to install into that one; it shows sizes and progress."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--no-cache-dir", "install", *requirement]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)


def size(folder: Path) -> str:
    """What a folder takes on the disk, in GiB."""
    taken = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    return f"{taken / 2**30:.1f} GiB"


def runtime_requirement(metadata: str) -> str | None:
    """What to ask pip for to have NVIDIA's runtime alone, from the metadata of torch; None for a build without CUDA."""
    for line in email.message_from_string(metadata).get_all("Requires-Dist", []):
        requirement = line.partition(";")[0].strip()
        if requirement.startswith("nvidia-cuda-runtime"):
            return requirement
        if found := re.fullmatch(r"cuda-toolkit\[[\w,]*\bcudart\b[\w,]*\](.*)", requirement):
            return f"cuda-toolkit[cudart]{found[1]}"
    return None


def make_stubs(packages: Path) -> list[str]:
    """Write a stub beside torch's libraries for each that they need and this machine has not; returns which."""
    folder = packages / "torch" / "lib"
    libraries = [path for path in (*folder.glob("*.so*"), *folder.parent.glob("_C*.so")) if path.is_file()]
    here = {path.name for path in (*libraries, *packages.glob("nvidia/**/*.so*"))}
    sections = [dynamic_section(path) for path in libraries]
    missing = sorted({name for needed, _ in sections for name in needed if name not in here and not is_loadable(name)})
    versions = {key: file for _, versions in sections for key, file in versions.items()}
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    for symbol, version in undefined_symbols(libraries):
        # Which library a symbol without a version is of, is written nowhere: any that is loaded will do.
        file = versions.get(version) if version else next(iter(missing), None)
        if file in wanted:
            wanted[file][version].add(symbol)
    for name, symbols in wanted.items():
        write_stub(folder / name, symbols)
    return missing


def is_loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def dynamic_section(library: Path) -> tuple[list[str], dict[str, str]]:
    """The libraries that one needs; and, for each version of symbols that it needs, the library that is to have it."""
    text = _output("readelf", "--wide", "--dynamic", "--version-info", str(library))
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", text)
    versions: dict[str, str] = {}
    file = ""
    for kind, name in re.findall(r"(File|Name): (\S+)", text.partition("Version needs section")[2]):
        if kind == "File":
            file = name
        else:
            versions[name] = file
    return needed, versions


def undefined_symbols(libraries: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Symbols, with their versions or "", that no library has and none can do without; those of Python left out."""
    lines = [line.split()[-2:] for path in libraries for line in _output("nm", "--dynamic", str(path)).splitlines()]
    defined = {name.partition("@")[0] for kind, name in lines if kind not in "Uwv"}
    for name in {name for kind, name in lines if kind == "U"}:
        symbol, _, version = name.partition("@")
        if symbol not in defined and not symbol.startswith(("Py", "_Py")):
            yield symbol, version.lstrip("@")


def write_stub(library: Path, symbols: dict[str, set[str]]) -> None:
    """Build a library that has these symbols, by version; each is a function that returns NO_DEVICE."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "versions.map")
        names = sorted({name for group in symbols.values() for name in group if name.isidentifier()})
        source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names), "utf-8")
        nodes = [
            f"{version} {{ global: {'; '.join(sorted(group))}; }};\n" for version, group in symbols.items() if version
        ]
        script.write_text("".join(nodes), "utf-8")
        options = [f"-Wl,-soname,{library.name}", *([f"-Wl,--version-script={script}"] if nodes else [])]
        command = ["gcc", "-shared", "-nostdlib", "-fno-builtin", "-w", *options, "-o", str(library), str(source)]
        subprocess.run(command, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
