"""A model from base to Hub to transformers, and its card as the Hub checks it."""

import json
import shutil

import pytest

LOAD = """
import sys, torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer
name, local = sys.argv[1:]
ModelCard.load(name).validate()
one, two = (AutoModelForCausalLM.from_pretrained(place, dtype="auto").eval() for place in (name, local))
tokens = AutoTokenizer.from_pretrained(name)("3 and 17 is 20", return_tensors="pt")
with torch.no_grad():
    assert torch.equal(one(**tokens).logits, two(**tokens).logits)
print(one.config._name_or_path)
"""


@pytest.fixture(scope="session")
def base(tmp_path_factory, checkpoint):
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(checkpoint("llama"), folder)
    (folder / "README.md").write_text(
        "---\nlicense: other\nlicense_name: some\nlicense_link: LICENSE\nlanguage: [en]\ntags: [tiny]\n"
        "extra_gated_prompt: Agree\nwidget: [{text: hi}]\nmodel-index: [{name: x, results: []}]\n---\n# Base\n"
    )
    (folder / "LICENSE").write_text("Some words.\n")
    return folder


def test_a_pushed_model_downloads_verifies_and_loads(hub, client, base, identified, tmp_path):
    commit = hub.state.add("org/base", base).head().oid
    out = tmp_path / "out"
    edit = ["scale", "org/base", "--from", identified("llama"), "--factor", "1.5", "-o", out]
    done = client(hub, *edit, "--push-to-hub", "tester/model")
    assert done.code == 0, done.err
    verified = client(hub, "verify", "tester/model", "--base", f"org/base@{commit}", "--json")
    assert verified.code == 0, verified.out + verified.err
    assert json.loads(verified.out)["elements_checked"] > 0
    loaded = client.python(hub, "-c", LOAD, "tester/model", out, HF_HOME=str(tmp_path / "elsewhere"))
    assert loaded.code == 0, loaded.err
    assert loaded.out.split()[-1] == "tester/model"
    card = hub.content("tester/model", "README.md").decode()
    for words in ("base_model: org/base\n", "base_model_relation: finetune\n", "license_name: some\n", "unevaluated"):
        assert words in card
    assert f"org/base@{commit}" in card
    assert f"(revision {commit})" in card
    for words in ("extra_gated", "widget", "model-index", str(tmp_path)):
        assert words not in card
