"""The bundled GENERAL calibration text: the look of math data, with nothing computed."""
import json
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest

import mathneuro_export

DATA = Path(mathneuro_export.__file__).parent / "data"
GENERAL = DATA / "general.jsonl"
MATH = DATA / "math.jsonl"


def texts():
    lines = GENERAL.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def is_question_answer(text):
    lines = text.split("\n")
    return (
        len(lines) >= 3
        and "?" in text
        and re.fullmatch(r"The answer is .+[.?!]|#### .+", lines[-1]) is not None
    )


def digit_share(items):
    return sum(len(re.findall(r"[0-9]", t)) for t in items) / sum(map(len, items))


def test_file_form():
    raw = GENERAL.read_bytes()
    assert raw.endswith(b"\n") and not raw.endswith(b"\n\n")
    assert b"\r" not in raw
    for line in raw.decode("utf-8").splitlines():
        row = json.loads(line)
        assert list(row) == ["text"]
        assert isinstance(row["text"], str)
        assert row["text"] == row["text"].strip() != ""


def test_enough_rows_of_each_kind():
    rows = texts()
    assert len(rows) >= 300
    assert sum(map(is_question_answer, rows)) >= len(rows) / 2
    assert sum(re.search(r"[0-9]", t) is not None for t in rows) >= len(rows) / 2


def test_both_last_lines_are_used():
    rows = [t for t in texts() if is_question_answer(t)]
    hashes = sum(t.split("\n")[-1].startswith("#### ") for t in rows)
    assert 0.15 <= hashes / len(rows) <= 0.40


def test_no_duplicates():
    rows = texts()
    assert len(set(rows)) == len(rows)

    def skeleton(text):
        text = re.sub(r"[0-9]+", "0", text)
        return re.sub(r"\b[A-Z]\w*", "N", text)

    repeated = [s for s, n in Counter(map(skeleton, rows)).items() if n > 1]
    assert repeated == []


def test_openings_vary():
    starts = Counter(" ".join(t.split()[:4]).lower() for t in texts())
    assert {s: n for s, n in starts.items() if n > 3} == {}


def test_lengths():
    words = [len(t.split()) for t in texts()]
    assert min(words) >= 50
    assert max(words) <= 190
    assert 60 <= statistics.median(words) <= 140


def without_dates(text):
    text = re.sub(r"\b\d{1,2}/\d{1,2}/\d{4}\b", "DATE", text)  # 6/14/1952
    text = re.sub(r"\b(?:0?[1-9]|1[0-2])/\d{4}\b", "DATE", text)  # 05/2016
    return text


def test_nothing_is_computed():
    # Ranges, phone numbers and marks (1914-1918, 555-0143, 88-2041-7) have a
    # hyphen without spaces; a difference is written with spaces.
    operation = re.compile(
        r"=|\d\s*[+*×÷⋅·/^]\s*[$\d]|\d\s+[-–−]\s+[$\d]|\d\s*[–−]\s*\d|\d\s*[xX]\s*\d|%|√|"
        r"\d\s+(?:plus|minus|times|divided by)\s+\d"
    )
    found = []
    for text in texts():
        match = operation.search(without_dates(text))
        if match:
            found.append((match.group(), text[:60]))
    assert found == []


def test_no_question_asks_for_a_quantity():
    asking = re.compile(
        r"\bhow (?:many|much|far|long|old|often)\b|\baltogether\b|\bin total\b|"
        r"\bpercent|\bon average\b|\bleft over\b|\b(?:sum|product|difference|remainder) of\b",
        re.IGNORECASE,
    )
    found = [(asking.search(t).group(), t[:60]) for t in texts() if asking.search(t)]
    assert found == []


def test_digit_share_is_near_that_of_the_math_text():
    if not MATH.exists():
        pytest.skip("math.jsonl is not there yet, so there is no share to compare with")
    math = []
    for line in MATH.read_text(encoding="utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            math.append(row["question"] + "\n" + row["answer"])
    share, math_share = digit_share(texts()), digit_share(math)
    assert math_share / 2 <= share <= math_share * 2
