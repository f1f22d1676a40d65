"""The bundled math corpus: its form, its variety and its arithmetic.

Every row carries ``check``, an arithmetic expression over the question's numbers; its value must
be the answer's final number. Every equation that the worked solution writes out must hold too.
Both are computed with fractions, from a syntax tree, without ``eval``.
"""

import ast
import collections
import itertools
import json
import re
import statistics
from fractions import Fraction
from pathlib import Path

import pytest

CORPUS = Path(__file__).resolve().parents[2] / "mathneuro_export" / "data" / "math.jsonl"
CENT = Fraction(1, 200)  # a value rounded to cents is off by half a cent at most

FINAL = re.compile(r"(?:The answer is (?P<said>\S+)\.|#### (?P<marked>\S+))\Z")
NUMBER = r"\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?%?"
TOKEN = re.compile(
    rf"(?P<num>(?<![\w.]){NUMBER}(?!\w|[.,]\d))"
    r"|(?P<op>[+\-*/\u00d7\u00f7]|(?<=\s)x(?=\s))|(?P<par>[()])|(?P<eq>=)|(?P<gap>[ \t]+)|(?P<word>\w+|\n|.)"
)


def arithmetic(text):
    """The value of a Python arithmetic expression of plain numbers, as a Fraction."""

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return Fraction(ast.get_source_segment(text, node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div):
                return left / right
            if isinstance(node.op, ast.FloorDiv):
                return Fraction(left // right)
            if isinstance(node.op, ast.Mod):
                return left % right
            if isinstance(node.op, ast.Pow) and right.denominator == 1 and 0 <= right <= 12:
                return left ** int(right)
        raise ValueError(f"not plain arithmetic: {text!r}")

    text = text.strip()
    return Fraction(value(ast.parse(text, mode="eval").body))


def number(text):
    """The number that a token shows, without its dollar sign, commas and percent sign."""
    return Fraction(text.strip("$%").replace(",", ""))


def final_number(answer):
    found = FINAL.search(answer.rpartition("\n")[2])
    assert found, f"no final line: {answer!r}"
    return number(found["said"] or found["marked"])


def sides(answer):
    """Chains of ``=`` in the text: each a list of sides, each side a list of (kind, text)."""
    run = []
    for found in [*TOKEN.finditer(answer), None]:
        kind = found.lastgroup if found else "word"
        if kind == "gap":
            continue
        if kind != "word":
            run.append((kind, found.group()))
            continue
        # A side cut short by a word is no whole side: it starts or ends with an operator.
        if any(token[0] == "eq" for token in run):
            chain = [[]]
            for token in run:
                if token[0] == "eq":
                    chain.append([])
                else:
                    chain[-1].append(token)
            yield chain
        run = []


def side_values(side):
    """The values a side may have (a lone ``25%`` is 25 or 1/4), or none if it is not whole."""
    if not side:
        return []
    if len(side) == 1:
        shown = side[0][1]
        if side[0][0] != "num":
            return []
        return [number(shown), number(shown) / 100] if shown.endswith("%") else [number(shown)]
    parts = []
    for kind, text in side:
        if kind == "num":
            plain = text.strip("$%").replace(",", "")
            parts.append(f"({plain}/100)" if text.endswith("%") else plain)
        else:
            parts.append({"\u00d7": "*", "x": "*", "\u00f7": "/"}.get(text, text))
    try:
        return [arithmetic(" ".join(parts))]
    except SyntaxError:
        return []


def equations(answer):
    """The equations written out in a solution: (as written, does it hold)."""
    found = []
    for line in answer.split("\n"):
        slack = CENT if re.search(r"\brounded\b", line) else 0
        for chain in sides(line):
            for left, right in itertools.pairwise(chain):
                if len(left) < 3 and len(right) < 3:
                    continue  # no operator on either side
                one, other = side_values(left), side_values(right)
                if one and other:
                    shown = " ".join(text for _, text in [*left, ("eq", "="), *right])
                    found.append((shown, any(abs(a - b) <= slack for a in one for b in other)))
    return found


def skeleton(question):
    text = re.sub(NUMBER, "0", question)
    text = re.sub(r"\b[A-Z]\w*", "A", text)
    return " ".join(text.split())


def words(row):
    return len(row["question"].split()) + len(row["answer"].split())


@pytest.fixture(scope="module")
def rows():
    text = CORPUS.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\r" not in text
    return [json.loads(line) for line in text[:-1].split("\n")]


def test_rows_have_exactly_the_three_keys(rows):
    assert len(rows) >= 300
    for row in rows:
        assert list(row) == ["question", "answer", "check"]
        assert all(isinstance(row[key], str) and row[key] == row[key].strip() != "" for key in row)
        assert "<<" not in row["question"] + row["answer"]


def test_check_gives_the_final_number(rows):
    wrong = [
        (row["question"][:60], row["check"], str(arithmetic(row["check"])), str(final_number(row["answer"])))
        for row in rows
        if arithmetic(row["check"]) != final_number(row["answer"])
    ]
    assert not wrong


def test_written_equations_hold(rows):
    per_row = [equations(row["answer"]) for row in rows]
    assert not [shown for found in per_row for shown, holds in found if not holds]
    with_some = sum(bool(found) for found in per_row)
    assert with_some >= 0.85 * len(rows), f"{with_some} of {len(rows)} rows"
    counted = sum(len(found) for found in per_row)
    assert counted >= 2 * len(rows), f"{counted} equations in {len(rows)} rows"


def test_answer_formats_are_mixed(rows):
    marked = sum(row["answer"].rpartition("\n")[2].startswith("####") for row in rows)
    assert 0.15 <= marked / len(rows) <= 0.35


def test_questions_are_distinct(rows):
    questions = [row["question"] for row in rows]
    assert len(set(questions)) == len(questions)
    same = collections.Counter(map(skeleton, questions))
    assert not [text for text, times in same.items() if times > 1]
    starts = collections.Counter(" ".join(text.split()[:4]) for text in questions)
    assert not [(text, times) for text, times in starts.items() if times > 3]


def test_lengths_are_those_of_word_problems(rows):
    assert 60 <= statistics.median(map(words, rows)) <= 140
    for row in rows:
        assert 18 <= len(row["question"].split()) <= 100, row["question"]
        assert 18 <= len(row["answer"].split()) <= 140, row["answer"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She sold 48 / 2 = 24 clips.", [True]),
        ("That is 3 \u00d7 $1.50 = $4.50, so $20 - $4.50 = $15.50.", [True, True]),
        ("He has 2,400 x 1/4 = 600 litres.", [True]),
        ("A share of 12 / 48 = 25% is left.", [True]),
        ("In all (2 + 3) * 4 = 5 * 4 = 20.", [True, True]),
        ("It is 15% \u00d7 80 = 12.", [True]),
        ("It is 7 + 5 = 13.", [False]),
        ("Each gets 10 / 3 = 3.33 dollars.", [False]),
        ("Each gets 10 / 3 = 3.33 dollars, rounded to cents.", [True]),
        ("So 3n + 5 = 20 and n = 5.", []),
        ("So 12 = 4n, and 5 \u00f7 n = 15.", []),
    ],
)
def test_equation_finder(text, expected):
    assert [holds for _, holds in equations(text)] == expected


def test_arithmetic_refuses_all_but_numbers():
    assert arithmetic("48 + 48/2") == 72
    assert arithmetic("0.1 + 0.2") == Fraction(3, 10)
    for text in ("abs(3)", "x + 1", "'a'", "True", "2 ** 99", "1 < 2"):
        with pytest.raises(ValueError, match="not plain arithmetic"):
            arithmetic(text)
