"""Every option of the commands, once: names, defaults and help for the command line and for Python.

`Options` is what the verbs work with. A field that was named by the caller is in `given`, so that `--from RUN` can tell
"the default" from "asked for".
"""

import difflib
import numbers
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mathneuro_export.errors import UsageError

CONTROLS = ("random", "wanda", "wanda-matched", "mirror")
GROUPS = {
    "identify": ("calibration", "compute", "memory", "selection", "from", "work", "model", "hub"),
    "scale": ("calibration", "compute", "memory", "selection", "edit", "from", "work", "model", "hub", "push"),
    "prune": ("calibration", "compute", "memory", "selection", "from", "work", "model", "hub", "push"),
    "apply": ("edit", "work", "model", "hub", "push"),
}
FLOAT32_MAX = 3.4028234663852886e38
STREAM = ("auto", "always", "never")
SIZE_UNITS = {"": 1, "B": 1}
SIZE_UNITS |= {f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")}
SIZE_UNITS |= {f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")}
DTYPES = ("auto", "float32", "bfloat16", "float16")


def _option(default: Any, group: str, help: str, **click: Any) -> Any:
    return field(default=default, metadata={"group": group, "help": help, "click": click})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller may set; lengths are in tokens, `proportion` is a share of each matrix's weights."""

    math: str = _option("builtin:math", "calibration", "Math corpus.", metavar="SPEC")
    general: tuple[str, ...] = _option(
        ("builtin:general",),
        "calibration",
        "General corpus; repeatable, all are subtracted.",
        metavar="SPEC",
        multiple=True,
    )
    num_samples: int = _option(500, "calibration", "Samples of each corpus, at most.", metavar="N")
    max_length: int = _option(1024, "calibration", "Tokens a sample is cut to.", metavar="N")
    batch_size: str = _option("auto", "calibration", "Samples a batch, or auto: a token budget.", metavar="auto|N")
    blocks: str = _option("auto", "calibration", "Blocks the samples of a corpus fall into.", metavar="auto|N")
    chat_template: bool = _option(
        False, "calibration", "Wrap samples in the chat template.", flags="--chat-template/--raw"
    )
    seed: int = _option(42, "calibration", "Seed of the order in which samples are drawn, and of --control random.")
    device: str = _option("auto", "compute", "Where the model runs.", metavar="auto|cpu|cuda[:N]|mps")
    dtype: str = _option(
        "auto", "compute", "Compute dtype; auto is float32 on the CPU, else the checkpoint's.", choices=DTYPES
    )
    stream: str = _option(
        "auto", "memory", "Calibrate one decoder layer at a time; auto: where the model does not fit.", choices=STREAM
    )
    max_memory: str | None = _option(
        None,
        "memory",
        "Host memory for layers, embeddings and hidden states, the rest of which go to disk.",
        metavar="SIZE",
    )
    proportion: float = _option(0.05, "selection", "Share of each matrix in its top, between 0 and 1.", metavar="P")
    control: str | None = _option(None, "selection", "A control in place of the math-specific mask.", choices=CONTROLS)
    include: tuple[str, ...] = _option(
        (), "selection", "Only tensors whose name on disk matches.", metavar="GLOB", multiple=True
    )
    exclude: tuple[str, ...] = _option(
        (), "selection", "Not the tensors whose name on disk matches.", metavar="GLOB", multiple=True
    )
    layers: str | None = _option(None, "selection", "Only these decoder layers, from 0, as 4-20.", metavar="A-B")
    min_expert_tokens: int = _option(
        256, "selection", "Leave experts alone that saw fewer tokens of any corpus; 0 leaves none.", metavar="N"
    )
    lm_head: bool = _option(False, "selection", "Edit the lm_head too, where it is not tied.", flags="--lm-head")
    factor: float = _option(1.1, "edit", "What masked weights are multiplied by.", metavar="F", aliases=["--scalar"])
    from_run: str | None = _option(
        None, "from", "Reuse a RUN's statistics; nothing is recalibrated.", metavar="RUN", flags="--from"
    )
    resume: bool = _option(True, "work", "Go on with the same command's unfinished work.", flags="--resume/--no-resume")
    overwrite: bool = _option(False, "work", "Replace what an earlier run wrote.", flags="--overwrite")
    strict: bool = _option(False, "work", "Fail on a warning about tensors left out.", flags="--strict")
    revision: str | None = _option(None, "model", "Branch, tag or commit of MODEL on the Hub.", metavar="REV")
    cache_dir: str | None = _option(None, "hub", "The Hub's cache, if it is elsewhere.", metavar="DIR")
    offline: bool = _option(False, "hub", "Take names of the Hub from its cache; ask nothing.", flags="--offline")
    push_to_hub: str | None = _option(None, "push", "Push OUT when it is done, as org/name.", metavar="REPO_ID")
    private: bool = _option(False, "push", "Make the repository that is pushed to private.", flags="--private")
    given: frozenset[str] = frozenset()

    @property
    def batch(self) -> int | None:
        """Samples a batch; None for the token budget."""
        return None if self.batch_size == "auto" else int(self.batch_size)

    @property
    def memory_limit(self) -> int | None:
        """`max_memory` in bytes; None where it was not given."""
        return None if self.max_memory is None else parse_size(self.max_memory)

    @property
    def block_count(self) -> int | None:
        """Blocks asked for; None for auto."""
        return None if self.blocks == "auto" else int(self.blocks)


def option_fields(*groups: str) -> list[Any]:
    """The dataclass fields of these groups, in order."""
    return [f for f in fields(Options) if f.metadata.get("group") in groups]


def build_options(verb: str, values: dict[str, Any]) -> Options:
    """Checked options of a verb from keyword arguments; None stands for "not given".

    Raises:
        UsageError: an unknown name (the nearest valid one is named) or a value out of range.
    """
    known = {f.name: f for f in option_fields(*GROUPS[verb])}
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it takes {', '.join(known)}"
            raise UsageError(f"{verb}: unknown option {name}{hint}")
    given = {name: _typed(known[name], value) for name, value in given.items()}
    if not given.get("general", ("",)):
        del given["general"]
    options = Options(**given, given=frozenset(given))
    _check(options)
    return options


def _typed(item: Any, value: Any) -> Any:
    """A value in its field's type: any whole or real number will do, a path for text, one text for several."""
    kind, wanted = str(getattr(item.type, "__name__", item.type)), ""
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "int" and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if kind == "float" and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if kind == "tuple":
        values = (value,) if isinstance(value, str | Path) else value
        if isinstance(values, list | tuple) and all(isinstance(one, str | Path) for one in values):
            return tuple(str(one) for one in values)
        wanted = "text, or a list of texts"
    if kind.startswith("str") and isinstance(value, str | Path | numbers.Integral) and not isinstance(value, bool):
        return str(value)
    expected = {"bool": "True or False", "int": "a whole number", "float": "a number"}.get(kind, wanted or "text")
    raise UsageError(f"{flag(item.name)} {str(value)[:80]}: expected {expected}, found {type(value).__name__}")


def _check(options: Options) -> None:
    number = isinstance(options.proportion, int | float) and not isinstance(options.proportion, bool)
    if not number or not 0 < options.proportion < 1:
        raise UsageError(f"--proportion {options.proportion}: expected a number between 0 and 1, as 0.05")
    if not isinstance(options.factor, int | float) or not abs(options.factor) <= FLOAT32_MAX:
        raise UsageError(f"--factor {options.factor}: expected a number that is finite in float32, as 1.1 (0 prunes)")
    for name, low in (("num_samples", 1), ("max_length", 1), ("seed", 0), ("min_expert_tokens", 0)):
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise UsageError(f"{flag(name)} {value}: expected a whole number of at least {low}")
    if options.max_memory is not None:
        parse_size(options.max_memory)
    for name in ("batch_size", "blocks"):
        value = getattr(options, name)
        if value != "auto" and not (value.isascii() and value.isdigit() and int(value) >= 1):
            raise UsageError(f"{flag(name)} {value}: expected auto or a whole number of at least 1")
    for name, choices in (("control", (None, *CONTROLS)), ("dtype", DTYPES), ("stream", STREAM)):
        value = getattr(options, name)
        if value not in choices:
            raise UsageError(f"{flag(name)} {value}: expected one of {', '.join(c for c in choices if c)}")
    if options.private and options.push_to_hub is None:
        raise UsageError("--private: nothing is pushed; give --push-to-hub REPO_ID too, or leave it out")
    if options.offline and options.push_to_hub is not None:
        raise UsageError(f"--push-to-hub {options.push_to_hub}: cannot be beside --offline; push OUT later")


def parse_size(text: str) -> int:
    """Bytes of a size as `5GB`, `500MiB` or `1000000`; decimal without the i, case aside.

    Raises:
        UsageError: another form, or nothing.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    units = {unit.lower(): factor for unit, factor in SIZE_UNITS.items()}
    size = int(float(match[1]) * units.get(match[2].lower(), 0)) if match else 0
    if size <= 0:
        raise UsageError(f"--max-memory {text}: expected a size in bytes, as 5GB or 500MiB")
    return size


def flag(name: str) -> str:
    """The command line's spelling of a field: `num_samples` is `--num-samples`."""
    return "--from" if name == "from_run" else "--" + name.replace("_", "-")
