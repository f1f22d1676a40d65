"""The CPU half of the check that a machine with a GPU runs."""

import importlib.util
import json
from pathlib import Path

import torch


def test_the_cpu_half_runs(capsys, tmp_path):
    torch.set_num_threads(1)
    path = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = ["--gigabytes", "0.0001", "--hidden", "64", "--samples", "4", "--length", "20"]
    module.main(["--device", "cpu", *sizes, "--folder", str(tmp_path), "--json"])
    table = json.loads(capsys.readouterr().out)
    assert table["device"] == "cpu"
    assert table["float32 statistics, device against CPU: largest difference"] == 0
    assert table["streamed against in memory: largest difference"] == 0
    assert 0.5 < table["bfloat16 masks against float32: Jaccard"] <= 1
    assert table["calibration over bare forward passes"] > 0
