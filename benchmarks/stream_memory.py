"""Streamed calibration of a synthetic Llama in four shards: peak anonymous memory, time, bytes read, a memory limit.

    python benchmarks/stream_memory.py [--gigabytes 1.7] [--samples 4] [--length 128] [--folder DIR]

Prints, in float32 on one thread: times, and peaks of anonymous memory above a process that imported torch and
transformers, in memory, streamed, and streamed with `--max-memory` at two layers, the embeddings and a tenth of the
hidden states; the bounds they are held to; the ratio of times; whether the statistics are the same bits. Then a whole
streamed `scale`: bytes read from the disk over the checkpoint's, and whether it finishes under a limit on its data
(RLIMIT_DATA) that is smaller than the checkpoint and under which the model in memory does not. Each run is a process of
its own.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export.checkpoint.write import Entry, write_safetensors

SHARDS = 4
MARGIN = 150_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama."""

    hidden: int = 2048
    inner: int = 5632
    heads: int = 16
    kv_heads: int = 4
    vocabulary: int = 256

    @property
    def layer(self) -> dict[str, tuple[int, ...]]:
        """The tensors of a decoder layer."""
        kv = self.hidden * self.kv_heads // self.heads
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.inner, self.hidden),
            "mlp.up_proj": (self.inner, self.hidden),
            "mlp.down_proj": (self.hidden, self.inner),
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
        }


SHAPE = Shape()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.7)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", choices=["memory", "streamed", "disk", "scale", "limited", "limited-memory"])
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.folder, arguments.length)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        layers = make(folder, arguments.gigabytes, arguments.samples, arguments.length)
        report(folder, layers, arguments.length)


def report(folder: Path, layers: int, length: int) -> None:
    size = sum(path.stat().st_size for path in (folder / "model").glob("*.safetensors"))
    print(f"{size / 1e9:.2f} GB in bf16, {layers} layers")
    runs = {name: start(name, folder, length) for name in ("memory", "streamed", "disk")}
    bounds = {name: run["bound"] for name, run in runs.items()}
    for name, run in runs.items():
        bound = "" if name == "memory" else f"   bound {bounds[name] >> 20:5d} MiB"
        times = f"{run['seconds']:8.1f} s{run['processor']:8.1f} CPU s"
        print(f"{name:<10}{times}{run['peak'] >> 20:8d} MiB{bound}")
    ratio, processor = (runs["streamed"][kind] / runs["memory"][kind] for kind in ("seconds", "processor"))
    same = len({run["digest"] for run in runs.values()}) == 1
    bits = "the same bits" if same else "DIFFER"
    print(
        f"streamed over in memory: {ratio:.2f} x the time, {processor:.2f} x the CPU time; statistics {bits}",
        flush=True,
    )
    scaled = start("scale", folder, length)
    print(f"scale, streamed: {scaled['read'] / size:.3f} x the checkpoint read, {scaled['seconds']:.1f} s")
    for name in ("limited", "limited-memory"):
        limited = start(name, folder, length)
        how = "streamed" if name == "limited" else "in memory"
        print(f"scale, {how}, data limited to {limited['limit'] / size:.2f} x the checkpoint: {limited['outcome']}")


def start(name: str, folder: Path, length: int) -> dict[str, Any]:
    """One run in a fresh process with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--one", name, "--folder", str(folder), "--length", str(length)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def one(name: str, folder: Path, length: int) -> dict[str, Any]:
    import torch
    import transformers
    from safetensors import safe_open

    torch.set_num_threads(1)
    _ = (transformers.LlamaForCausalLM, safe_open)
    if name.startswith("limited"):
        return limited(folder, name, length)
    return scale(folder, length) if name == "scale" else calibration(name, folder, length)


def calibration(name: str, folder: Path, length: int) -> dict[str, Any]:
    import threading

    from mathneuro_export.calibration.corpus import load_corpus
    from mathneuro_export.calibration.parking import Parking
    from mathneuro_export.calibration.runner import calibrate
    from mathneuro_export.calibration.stream import calibrate_streamed
    from mathneuro_export.checkpoint.source import open_source
    from mathneuro_export.models.loading import load_model, load_tokenizer
    from mathneuro_export.models.streaming import stream_model
    from mathneuro_export.models.targets import plan_targets

    source = open_source(folder / "model")
    tokenizer = load_tokenizer(source)
    corpora = [load_corpus(c, str(folder / f"{c}.jsonl"), None, 42) for c in ("math", "general")]
    plan = plan_targets(source)
    assert plan.sizes is not None
    samples = sum(len(corpus.texts) for corpus in corpora)
    hidden = samples * length * SHAPE.hidden * 4
    fixed = (sum(sorted(plan.sizes.layers)[-2:]) + plan.sizes.rest) * 4
    budget = hidden // 10 if name == "disk" else hidden
    settings: dict[str, Any] = {"max_length": length, "batch_size": 1}
    peak, done, before = 0, threading.Event(), anonymous()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous() - before)

    sampler = threading.Thread(target=sample)
    sampler.start()
    began, processor = time.perf_counter(), time.process_time()
    if name == "memory":
        result = calibrate(load_model(source, "cpu", "float32"), plan, corpora, tokenizer, **settings)
    else:
        parking = Parking(budget if name == "disk" else None, folder / "work")
        model = stream_model(source, "cpu", "float32")
        result = calibrate_streamed(model, plan, corpora, tokenizer, **settings, parking=parking)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    done.set()
    sampler.join()
    digest = hashlib.sha256()
    for vectors in result.statistics.stored.values():
        for array in vectors.values():
            digest.update(array.tobytes())
    bound = fixed + budget + MARGIN
    return {"seconds": seconds, "processor": processor, "peak": peak, "bound": bound, "digest": digest.hexdigest()}


def scale(folder: Path, length: int) -> dict[str, Any]:
    """A whole streamed `scale` with cold files; bytes that came from the disk."""
    for path in (folder / "model").glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before, began = read_bytes(), time.perf_counter()
    run_scale(folder, length, "always")
    return {"read": read_bytes() - before, "seconds": time.perf_counter() - began}


def limited(folder: Path, name: str, length: int) -> dict[str, Any]:
    """A whole `scale` whose private writable memory may grow by less than the checkpoint's size."""
    size = sum(path.stat().st_size for path in (folder / "model").glob("*.safetensors"))
    limit = int(0.9 * size)
    total = status("VmData") + limit
    resource.setrlimit(resource.RLIMIT_DATA, (total, total))
    try:
        run_scale(folder, length, "always" if name == "limited" else "never")
    except Exception as error:
        return {"limit": limit, "outcome": f"does not finish ({' '.join(str(error).split())[:80]})"}
    return {"limit": limit, "outcome": "finishes"}


def run_scale(folder: Path, length: int, stream: str) -> None:
    import shutil

    import mathneuro_export

    out = folder / f"out-{stream}"
    shutil.rmtree(out, ignore_errors=True)
    mathneuro_export.scale(
        folder / "model",
        out,
        math=folder / "math.jsonl",
        general=folder / "general.jsonl",
        max_length=length,
        batch_size=1,
        dtype="float32",
        stream=stream,
        factor=1.5,
    )


def anonymous() -> int:
    """Resident anonymous bytes of this process."""
    return status("RssAnon")


def status(field: str) -> int:
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def read_bytes() -> int:
    """Bytes that this process had fetched from the disk."""
    with Path("/proc/self/io").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def make(folder: Path, gigabytes: float, samples: int, length: int, sizes: Shape = SHAPE) -> int:
    """A random checkpoint, its tokenizer and two corpora; how many layers it has."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from tiny import tiny_tokenizer, write_jsonl  # type: ignore[import-not-found]

    model = folder / "model"
    model.mkdir()
    shapes = sizes.layer
    per_layer = sum(int(np.prod(shape)) for shape in shapes.values())
    layers = max(SHARDS, round(gigabytes * 1e9 / 2 / per_layer))
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "num_hidden_layers": layers,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (model / "config.json").write_text(json.dumps(settings))
    weight_map: dict[str, str] = {}
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        entries = [
            Entry(f"model.layers.{layer}.{name}.weight", "BF16", shape, partial(weights, rng, shape))
            for layer in range(layers)
            if layer * SHARDS // layers == shard
            for name, shape in shapes.items()
        ]
        if shard == 0:
            entries.append(weight(rng, "model.embed_tokens.weight", (sizes.vocabulary, sizes.hidden)))
        if shard == SHARDS - 1:
            entries.append(weight(rng, "lm_head.weight", (sizes.vocabulary, sizes.hidden)))
            entries.append(weight(rng, "model.norm.weight", (sizes.hidden,)))
        write_safetensors(model / file, entries, {"format": "pt"})
        weight_map |= {entry.name: file for entry in entries}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    tiny_tokenizer().save_pretrained(model)
    for number, corpus in enumerate(("math", "general")):
        texts = [" ".join(str((i * 7919 + number + n) % 9973) for n in range(length)) for i in range(samples)]
        write_jsonl(folder / f"{corpus}.jsonl", [{"text": text} for text in texts])
    return layers


def weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Entry:
    return Entry(name, "BF16", shape, partial(weights, rng, shape))


def weights(rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """0.02 N(0, 1) in bf16, or ones where the shape is that of a norm."""
    values = (
        np.ones(shape, np.float32) if len(shape) == 1 else rng.standard_normal(shape, np.float32) * np.float32(0.02)
    )
    return [(values.view(np.uint32) >> 16).astype(np.uint16)]


if __name__ == "__main__":
    main()
