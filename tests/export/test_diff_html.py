"""The page of `diff --html`: escaped, self-contained, and sortable in a real browser."""

import os
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mathneuro_export.export.colours import colour, top_of
from mathneuro_export.export.diff import diff
from mathneuro_export.export.diff_html import diff_html

from . import browser
from .runs import make_run, random_masks

PROGRAM = browser.find()
needs_browser = pytest.mark.skipif(
    PROGRAM is None and not os.environ.get("CI"), reason="no chromium on the path; install Debian's package chromium"
)
KINDS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
SHAPES: dict[str, tuple[int, ...]] = {f"model.layers.{i}.{kind}.weight": (24, 24) for i in range(12) for kind in KINDS}
HOSTILE = (
    "model.layers.0.</script><script>document.title='owned'</script>.weight",
    "model.layers.0.<img src=x onerror=\"document.title='owned'\">.weight",
    "model.layers.0.\"'><b onmouseover='x'>&amp;.weight",
    "model.layers.0.line\nbreak\u2028\u202e\x00.weight",
    "model.layers.0.</style><svg onload=alert(1)>",
    "model.layers.0.<!--",
    "model.layers.0.$&{title}{{body}}%s.weight",
)


def page_of(tmp_path: Path, shapes: dict[str, tuple[int, ...]], count: int = 2, **changes: Any) -> Path:
    runs = [make_run(tmp_path / f"run<{i}>", random_masks(shapes, i, 0.3), **changes) for i in range(count)]
    path = tmp_path / "page.html"
    path.write_text(diff_html(diff(runs)), encoding="utf-8")
    return path


class Tags(HTMLParser):
    """Every tag with its attributes, the text outside scripts and styles, and the scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.raw: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.raw if self.cdata_elem else self.text).append(data)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(HOSTILE, (4, 6))
    source = {"id": "<script>x</script>", "architecture": "</title><script>", "files": {}}
    page = page_of(tmp_path, shapes, source=source).read_text(encoding="utf-8")
    parser = Tags()
    parser.feed(page)
    names = [tag for tag, _ in parser.tags]
    assert names.count("script") == 1
    assert names.count("style") == 1
    assert not {"img", "iframe", "object", "link", "a"} & set(names)
    assert not [key for _, attrs in parser.tags for key in attrs if key.startswith("on") or key in ("src", "href")]
    assert all("owned" not in raw for raw in parser.raw)
    assert "document.title='owned'" in "".join(parser.text)
    assert not re.search("[\u2028\u202e\x00]", page)


def test_nothing_is_fetched_and_the_policy_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path, SHAPES).read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|url\(|@import|\bimport\(|fetch\(", page)


def test_every_row_and_cell_is_there(tmp_path: Path) -> None:
    page = page_of(tmp_path, SHAPES).read_text(encoding="utf-8")
    for name in SHAPES:
        assert f"<th scope=row>{name}</th>" in page
    assert page.count("<rect") == len(SHAPES) + 20


def test_colours_ascend_in_lightness_and_carry_readable_ink() -> None:
    def light(code: str) -> float:
        channels = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    steps = [colour(i / 50, 1.0) for i in range(51)]
    assert all(light(a.fill) < light(b.fill) for a, b in pairwise(steps))
    for fill, ink in steps:
        bright, dark = sorted((light(fill), light(ink)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4
    assert [top_of([value]) for value in (0.0, 0.013, 0.21, 0.6, 1.0)] == [1e-6, 0.02, 0.5, 1.0, 1.0]


@needs_browser
def test_sorting_by_click_in_a_real_browser(tmp_path: Path) -> None:
    assert PROGRAM, "no chromium: in CI the package must be installed"
    page_file = page_of(tmp_path, SHAPES)
    report = diff([tmp_path / "run<0>", tmp_path / "run<1>"]).pairs[0].masks
    names = "[...document.querySelectorAll('#tensor0 tbody th')].map(e => e.textContent)"
    heads = "[...document.querySelectorAll('#tensor0 thead button')]"
    with browser.browser(PROGRAM, tmp_path / "profile") as page:
        page.open(page_file)
        assert page.value(names) == list(SHAPES)
        titles = page.value(f"{heads}.map(e => e.textContent)")
        for title, number in (("Jaccard", "jaccard"), ("size B", "size_b")):
            rows = [(getattr(comparison, number), name) for name, comparison in report.tensors.items()]
            button = f"{heads}[{titles.index(title)}]"
            page.click(button)
            found = page.value(names)
            assert sorted(found) == sorted(SHAPES)
            assert [getattr(report.tensors[n], number) for n in found] == sorted((v for v, _ in rows), reverse=True)
            assert page.value(f"{button}.parentElement.getAttribute('aria-sort')") == "descending"
            page.click(button)
            assert [getattr(report.tensors[n], number) for n in page.value(names)] == sorted(v for v, _ in rows)
        page.click(f"{heads}[0]")
        layers = [int(name.split(".")[2]) for name in page.value(names)]
        assert layers == sorted(layers)
        assert page.value("document.querySelectorAll('[aria-sort=ascending]').length") == 1
        assert page.errors == []
        assert page.requests == [page_file.as_uri()]


@needs_browser
def test_hostile_names_do_nothing_in_a_real_browser(tmp_path: Path) -> None:
    assert PROGRAM, "no chromium: in CI the package must be installed"
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(HOSTILE, (4, 6))
    page_file = page_of(tmp_path, shapes, count=3)
    with browser.browser(PROGRAM, tmp_path / "profile") as page:
        page.open(page_file)
        assert page.value("document.title").startswith("Masks compared")
        shown = page.value("[...document.querySelectorAll('#tensor0 tbody th')].map(e => e.textContent)")
        assert shown[0] == HOSTILE[0]
        assert len(shown) == len(HOSTILE)
        assert page.value("document.scripts.length") == 1
        page.click("document.querySelector('#tensor2 thead button')")
        assert page.value("document.querySelector('#tensor2 thead th').getAttribute('aria-sort')") == "ascending"
        assert page.errors == []
        assert page.requests == [page_file.as_uri()]
