"""Start-up of the command line: median wall seconds of fresh processes, beside a bare interpreter.

python benchmarks/startup.py [--runs 7]
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import mathneuro_export

MODEL = Path(mathneuro_export.__file__).parent / "demo" / "model"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "--help": ["-m", "mathneuro_export", "--help"],
    "scale --help": ["-m", "mathneuro_export", "scale", "--help"],
    "inspect MODEL": ["-m", "mathneuro_export", "inspect", str(MODEL)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, arguments in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
    bare = statistics.median(seconds["python -c pass"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:<16} {median:6.3f} s   {median / bare:5.1f} x bare")


if __name__ == "__main__":
    main()
