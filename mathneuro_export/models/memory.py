"""How much memory of host and device a process may still take."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path


def available_memory() -> int:
    """Bytes of host memory that are free or reclaimable, within a control group's limit if there is one."""
    free = _meminfo()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    return free if limit is None or used is None else max(0, min(free, limit - used))


def device_memory(device: str) -> int:
    """Bytes of a device's memory that are free; host memory where the device is the CPU or shares it."""
    if not device.startswith("cuda"):
        return available_memory()
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def give_back() -> None:
    """Give freed host memory back to the system; the C library may keep it for later, where it can be told not to."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _meminfo() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
