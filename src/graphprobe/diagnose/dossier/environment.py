"""Versions as `torch.utils.collect_env` gives them: those of its fields that cost nothing, and no list of pip's."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata

import torch

PACKAGES = ("numpy", "torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "intel-openmp", "mkl", "onnx")
"""Those that bear on what torch compiles; collect_env lists them too."""


def environment() -> dict[str, str]:
    """Name and version of torch, the system, the compiler, the processor and the packages; in some milliseconds.

    The names are those of collect_env. No path, host or user is in it.
    """
    cuda = torch.cuda.is_available()
    found = {
        "PyTorch version": torch.__version__,
        "PyTorch commit": str(torch.version.git_version),
        "Is debug build": str(torch.version.debug),
        "CUDA used to build PyTorch": torch.version.cuda or "None",
        "OS": f"{_system()} ({platform.machine()})",
        "GCC version": _compiler(),
        "Libc version": "-".join(filter(None, platform.libc_ver())) or "N/A",
        "Python version": f"{' '.join(sys.version.split())} ({sys.maxsize.bit_length() + 1}-bit runtime)",
        "Python platform": platform.platform(),
        "Is CUDA available": str(cuda),
    }
    if cuda:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["GPU models and configuration"] = ", ".join(f"GPU {i}: {name}" for i, name in enumerate(names))
        found["cuDNN version"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    found["CPU"] = f"{_processor()}, {os.cpu_count()} CPUs, {torch.backends.cpu.get_cpu_capability()}"
    found["Versions of relevant libraries"] = "\n".join(f"[pip3] {name}=={version}" for name, version in _packages())
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _compiler() -> str:
    """First line of what the C++ compiler that Inductor takes says of itself."""
    command = [*shlex.split(os.environ.get("CXX") or "g++"), "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        said = ""
    return said.splitlines()[0] if said.strip() else "Could not collect"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def _packages() -> list[tuple[str, str]]:
    found = []
    for name in PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found
