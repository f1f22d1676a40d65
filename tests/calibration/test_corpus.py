"""Corpora: every form of file, the order drawn, and every bad input."""

import csv
import hashlib
import json

import pytest
from tiny import write_jsonl

from mathneuro_export.calibration.corpus import draw_order, load_corpus
from mathneuro_export.calibration.template import parse_template
from mathneuro_export.errors import Error, UsageError

TEXTS = [f"{i} + {i} = {2 * i}, élan" for i in range(12)]


def load(spec, count=None, seed=42):
    return load_corpus("math", str(spec), count, seed)


class TestForms:
    def test_every_form_gives_the_same(self, tmp_path):
        write_jsonl(tmp_path / "a.jsonl", [{"text": text, "n": 1} for text in TEXTS])
        write_jsonl(tmp_path / "b.jsonl", [{"n": 1, "q": text} for text in TEXTS])
        write_jsonl(tmp_path / "c.jsonl", TEXTS)
        (tmp_path / "d.json").write_text(json.dumps([{"text": text} for text in TEXTS]), encoding="utf-8-sig")
        (tmp_path / "e.json").write_text(json.dumps(TEXTS, indent=1))
        (tmp_path / "f.txt").write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8-sig")
        (tmp_path / "g.txt").write_bytes("\r\n".join(TEXTS).encode())
        with (tmp_path / "h.csv").open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerows([["x", "text"], *([i, text] for i, text in enumerate(TEXTS))])
        parts = [text.split(" = ") for text in TEXTS]
        write_jsonl(tmp_path / "i.jsonl", [{"l": left, "r": right} for left, right in parts])
        (tmp_path / "J.JSONL").write_text("\ufeff" + "\n".join(json.dumps(text) for text in TEXTS), encoding="utf-8")
        specs = ["a.jsonl", "b.jsonl", "b.jsonl:q", "c.jsonl", "d.json", "e.json", "f.txt", "g.txt", "h.csv"]
        specs += ["h.csv:text", "i.jsonl:{l} = {r}", "J.JSONL"]
        corpora = [load(tmp_path / spec) for spec in specs]
        assert len({corpus.digest for corpus in corpora}) == 1
        assert {corpus.texts for corpus in corpora} == {tuple(TEXTS[i] for i in draw_order(12, 42))}
        assert corpora[1].spec == "b.jsonl"
        assert corpora[2].spec == "b.jsonl:q"
        assert (corpora[10].spec, corpora[10].template) == ("i.jsonl", "{l} = {r}")
        answers = zip(corpora[10].texts, corpora[10].answers, strict=True)
        assert all(text[start:] == text.split(" = ")[1] for text, start in answers)

    def test_lines_end_at_newlines_only(self, tmp_path):
        odd = "a\x0cb\x1cc\u2028d\x85e"
        (tmp_path / "b.txt").write_text(odd, encoding="utf-8")
        assert load(tmp_path / "b.txt").texts == (odd,)
        (tmp_path / "a.jsonl").write_bytes(b'"b\x0cc"\n \n')
        with pytest.raises(Error, match="is no JSON: Invalid control character"):
            load(tmp_path / "a.jsonl")  # a bare form feed is no JSON, but stays within its line
        (tmp_path / "c.jsonl").write_bytes('{"text": "a\u2028b\x85c"}\n'.encode())
        assert load(tmp_path / "c.jsonl").texts == ("a\u2028b\x85c",)

    def test_csv_fields_of_many_lines_and_megabytes(self, tmp_path):
        long = "x" * 1_000_000
        (tmp_path / "a.csv").write_text(f'text\n"two\nlines, ""quoted"""\n{long}\n')
        assert set(load(tmp_path / "a.csv").texts) == {'two\nlines, "quoted"', long}
        assert csv.field_size_limit() == 131072

    def test_digests(self, tmp_path):
        corpus = load(write_jsonl(tmp_path / "a.jsonl", TEXTS))
        hashes = [hashlib.sha256(text.encode()) for text in corpus.texts]
        assert corpus.digest == hashlib.sha256(b"".join(each.digest() for each in hashes)).hexdigest()
        assert corpus.sample_digests == tuple(each.hexdigest()[:16] for each in hashes)

    def test_an_empty_text_is_a_sample(self, tmp_path):
        assert set(load(write_jsonl(tmp_path / "a.jsonl", ["", "a"])).texts) == {"", "a"}

    @pytest.mark.parametrize("kind", ["math", "general", "demo-math", "demo-general"])
    def test_builtin(self, kind):
        try:
            corpus = load(f"builtin:{kind}", 3)
        except Error as error:
            pytest.skip(str(error))
        assert corpus.spec == f"builtin:{kind}"
        assert len(corpus.texts) == 3


class TestNames:
    def test_colons(self, tmp_path):
        rows = [{"q": "1", "a: b": "2"}]
        for name in ("plain.jsonl", "a:b.jsonl", "x.json:y.jsonl"):
            path = write_jsonl(tmp_path / name, rows)
            assert load(f"{path}:Q: {{q}}").texts == ("Q: 1",)
            assert load(f"{path}:q").texts == ("1",)
            assert load(f"{path}:a: b").texts == ("2",)
        write_jsonl(tmp_path / "t:q.jsonl", ["whole"])
        assert load(tmp_path / "t:q.jsonl").texts == ("whole",)

    def test_no_folder_is_kept(self, tmp_path):
        for choice in ("", ":text", ":{text}"):
            corpus = load(str(write_jsonl(tmp_path / "a.jsonl", ["a"])) + choice)
            assert str(tmp_path) not in repr(corpus)

    @pytest.mark.parametrize("spec", [r"C:\data\none.jsonl", r"C:\data\none.jsonl:{q}: {a}", "none.csv:q", "none.txt"])
    def test_missing_files(self, spec):
        with pytest.raises(Error, match=r"^--math (C:.data.)?none\.\w+: no such file; expected a corpus") as caught:
            load(spec)
        assert caught.value.exit_code == 1

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("builtin:history", "expected builtin: and one of"),
            ("gsm8k", "not supported yet; save the rows as FILE.jsonl"),
            ("hf:openai/gsm8k:train:{question}", "not supported yet; save the rows as FILE.jsonl"),
            ("rows.parquet:text", r"\.parquet is not supported yet; save the rows as \.jsonl"),
            ("rows.xml", "expected builtin:math, builtin:general, or a file"),
            ("rows", "expected builtin:math"),
            ("", "expected builtin:math"),
            ("rows.txt:text", r"a \.txt file has no columns"),
            ("rows.jsonl:", "no column or template after the colon"),
        ],
    )
    def test_specs_that_cannot_be_meant(self, spec, message):
        with pytest.raises(UsageError, match=message) as caught:
            load_corpus("general", spec, None, 0)
        assert str(caught.value).startswith(f"--general {spec!r}: ")


class TestOrder:
    def test_it_is_the_same_for_ever(self):
        assert draw_order(10, 42) == [1, 0, 6, 4, 7, 9, 5, 8, 3, 2]
        assert draw_order(0, 42) == []
        assert sorted(draw_order(1000, 7)) == list(range(1000))
        assert draw_order(50, 7) != draw_order(50, 8)

    def test_number_of_samples(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", [str(i) for i in range(600)])
        default, few = load(path), load(path, 7)
        assert len(default.texts) == 500
        assert default.available == few.available == 600
        assert few.texts == default.texts[:7]
        assert not default.notes
        assert not load(path, 600).notes
        more = load(path, 700)
        assert len(more.texts) == 600
        assert more.notes[0].code == "fewer-samples"
        assert more.notes[0].details == {"corpus": "math", "asked": 700, "available": 600}
        with pytest.raises(UsageError, match="--num-samples 0"):
            load(path, 0)


class TestTemplates:
    ROW = {"q": "a", "n": 3, "list": ["x", 2, ["y"]], "none": None, "flag": True, "odd name": "o"}

    @pytest.mark.parametrize(
        ("template", "text"),
        [
            ("{q}", "a"),
            (r"{q}\n\t{n}", "a\n\t3"),
            ("{{{q}}} {{}}", "{a} {}"),
            ("{list}|{flag}", "x\n2\ny|True"),
            ("{odd name}{q}{q}.", "oaa."),
        ],
    )
    def test_filled(self, template, text):
        parsed = parse_template(template)
        filled, start = parsed.fill(self.ROW, "here")
        assert filled == text
        last = str(self.ROW[parsed.fields[-1]])
        assert parsed.fields[-1] == "list" or filled[start:].startswith(last)

    @pytest.mark.parametrize(
        "template", ["{q", "q}", "{}", "{ }", "{0.x}", "{q[0]}", "{q!r}", "{q:>9}", "{{q}}", "}{", "{q{n}}"]
    )
    def test_refused(self, template):
        with pytest.raises(UsageError, match=r"^template "):
            parse_template(template)

    @pytest.mark.parametrize(("field", "found"), [("none", "null"), ("nothing", "not there")])
    def test_missing_values(self, field, found, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", [{"none": "a", "nothing": "b"}, self.ROW])
        with pytest.raises(Error, match=rf"^a\.jsonl, line 2: column '{field}' is {found}; expected a value"):
            load(f"{path}:{{{field}}}")


class TestBadFiles:
    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            ("a.jsonl", b"", r"a\.jsonl: holds no sample"),
            ("a.txt", b"\n \n", r"a\.txt: holds no sample"),
            ("a.json", b"[]", r"a\.json: holds no sample"),
            ("a.csv", b"text\n", r"a\.csv: holds no sample"),
            ("a.csv", b"", r"a\.csv: holds no sample"),
            ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', r"^a\.jsonl, line 3: is no JSON: Expecting value"),
            ("a.jsonl", b'{"text": "a"}\n7\n', r"^a\.jsonl, line 2: is a number, expected an object"),
            ("a.jsonl", b"[" * 200_000, r"^a\.jsonl, line 1: is no JSON: it is nested too deep"),
            ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", r"^a\.jsonl, line 1: is no JSON: .*4300"),
            ("a.json", b'[\n{"text": 1,}]', r"^a\.json, line 2: is no JSON"),
            ("a.json", b'{"text": "a"}', r"^a\.json: holds an object, expected a list"),
            ("a.json", b'[{"text": "a"}, null]', r"^a\.json, item 2: is null, expected an object"),
            ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', r"^a\.jsonl, line 2: byte 0xff is no valid UTF-8"),
            ("a.txt", b"a\nb\nc\xc3", r"^a\.txt, line 3: byte 0xc3 is no valid UTF-8"),
            ("a.csv", b"text\nb\nc\xe9d", r"^a\.csv, line 3: byte 0xe9 is no valid UTF-8"),
            ("a.json", "[1]".encode("utf-16"), r"^a\.json, line 1: byte 0xff is no valid UTF-8"),
            ("a.csv", b"a,a\n1,2\n", r"^a\.csv, line 1: a column's name stands twice"),
            ("a.csv", b"a,b\n1,2\n3\n", r"^a\.csv, line 3: has 1 fields, expected the header's 2"),
            ("a.csv", b'text\n"open', r"^a\.csv, line 2: is no CSV"),
            ("a.jsonl", b'{"q": "a", "r": "b"}', r"^a\.jsonl: which column is the text\? It has q, r; write"),
            ("a.jsonl", b'{"q": 1}', r"^a\.jsonl: which column is the text\? It has q"),
            ("a.jsonl", b'{"text": 5}', r"^a\.jsonl, line 1: column 'text' is a int, expected text"),
            ("a.jsonl", b'{"text": null}', r"^a\.jsonl, line 1: column 'text' is null, expected text"),
            (
                "a.jsonl",
                b'{"text": "a"}\n{"txt": "b"}',
                r"^a\.jsonl, line 2: has no column 'text'; its columns are txt",
            ),
            ("a.jsonl", b'{"text": "\\ud800"}', r"^a\.jsonl, line 1: holds half a surrogate pair"),
        ],
    )
    def test_one_line_that_names_the_place(self, name, data, message, tmp_path):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(Error, match=message) as caught:
            load(tmp_path / name)
        assert caught.value.exit_code == 1
        assert "\n" not in str(caught.value)

    def test_a_column_that_is_not_there(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", [{"q": "a"}])
        with pytest.raises(Error, match=r"line 1: has no column 'answer'; its columns are q"):
            load(f"{path}:answer")

    def test_a_folder_or_a_closed_file(self, tmp_path):
        (tmp_path / "a.jsonl").mkdir()
        with pytest.raises(Error, match="no such file"):
            load(tmp_path / "a.jsonl")
