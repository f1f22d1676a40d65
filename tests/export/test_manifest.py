import copy
import json
from importlib import resources

import jsonschema
import pytest

from mathneuro_export.errors import Error
from mathneuro_export.export.manifest import Manifest, digest_of, parse, read_document, seal

from .handmade import make_output, make_run, make_source

ATTN = "model.layers.0.attn.weight"


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifest")
    source = make_source(folder / "source")
    run, out = make_run(folder / "run", source), make_output(folder / "out", source)
    paths = run / "manifest.json", out / "mathneuro" / "manifest.json"
    return [json.loads(path.read_bytes()) for path in paths]


@pytest.fixture(scope="module")
def schema():
    text = (resources.files("mathneuro_export.export") / "manifest.schema.json").read_text(encoding="utf-8")
    return json.loads(text)


def test_schema_is_up_to_date(schema):
    assert schema == Manifest.model_json_schema(), (
        "run: python -m mathneuro_export.export.manifest > manifest.schema.json"
    )


def test_schema_accepts_manifests(schema, documents):
    jsonschema.Draft202012Validator.check_schema(schema)
    for document in documents:
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
        assert digest_of(document) == document["digest"]


DAMAGE = [
    lambda d: d.update(schema=2),
    lambda d: d.pop("tensors"),
    lambda d: d.pop("digest"),
    lambda d: d.update(digest="x"),
    lambda d: d["selection"].update(proportion=0),
    lambda d: d["selection"].update(proportion=1),
    lambda d: d["selection"].update(control="other"),
    lambda d: d["tensors"][ATTN].update(dtype="I8"),
    lambda d: d["tensors"][ATTN].update(k=-1),
    lambda d: d["tensors"][ATTN].update(k="3"),
    lambda d: d["tensors"][ATTN].pop("mask"),
    lambda d: d["tensors"][ATTN]["count"].update(masked=-1),
    lambda d: d["tensors"][ATTN]["threshold"].update(math="high"),
    lambda d: d["source"]["files"]["LICENSE"].update(sha256="AB" * 32),
    lambda d: d["skipped"].update(reason="name"),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_schema_and_parser_refuse_damage(schema, documents, damage):
    for document in map(copy.deepcopy, documents):
        damage(document)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
        with pytest.raises(Error, match=r"^[^\n]*damaged or was edited by hand$"):
            parse(document)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../b", "a//b", "./a", "", "a\\b", "a\0b"])
def test_paths_that_lead_out_are_refused(documents, name):
    document = copy.deepcopy(documents[1])
    document["output"][name] = {"size": 0, "sha256": "0" * 64}
    with pytest.raises(Error, match="not a plain path"):
        parse(document)


def test_unknown_keys_are_ignored_but_digested(documents):
    document = copy.deepcopy(documents[0])
    document["later"] = {"x": 1}
    assert parse(document) == parse(documents[0])
    assert digest_of(document) != document["digest"]


def test_seal_round_trip(documents, tmp_path):
    path = tmp_path / "manifest.json"
    unsigned = {key: value for key, value in documents[1].items() if key != "digest"}
    path.write_bytes(seal(unsigned))
    assert read_document(path) == documents[1]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "expected a JSON object"),
        ("{}", "schema None"),
        ('{"schema": true}', "schema True"),
        ("{", "not valid JSON"),
    ],
)
def test_read_document_refuses(tmp_path, text, word):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(Error, match=word):
        read_document(path)


def test_a_corpus_of_another_name_is_refused(documents):
    document = copy.deepcopy(documents[0])
    document["calibration"]["algebra"] = document["calibration"]["math"]
    with pytest.raises(Error, match="calibration"):
        parse(document)
