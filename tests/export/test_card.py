import copy
import dataclasses
import json
import re

import pytest
import yaml

from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.export.card import build_card, read_base_card

from .handmade import make_output, make_source

CLAIMS = re.compile(r"boost|improve|remove", re.IGNORECASE)
BASE = """---
license: other
license_name: some-licence
license_link: LICENSE
language:
- en
- no
tags: [llama, 7, mathneuro]
datasets: org/data
pipeline_tag: text2text-generation
base_model: org/older
model-index:
- name: x
widget: [{text: hi}]
new_version: org/newer
extra_gated_prompt: Agree
---
# The base

| a | b |
---
Its own words.
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    source = make_source(folder / "source")
    out = make_output(folder / "out", source)
    document = json.loads((out / "mathneuro" / "manifest.json").read_bytes())
    document = {key: value for key, value in document.items() if key not in ("digest", "output")}
    return open_source(source), document


def split(card: str) -> tuple[dict, str]:
    _, header, body = re.split(r"^---\n", card, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(header), body


def on_hub(source):
    return dataclasses.replace(source, id="org/base-1B", revision="0123abc")


class TestMetadata:
    def test_kept_and_dropped(self, made):
        source, document = made
        card, warnings = build_card(on_hub(source), document, BASE)
        assert warnings == []
        assert split(card)[0] == {
            "library_name": "transformers",
            "pipeline_tag": "text2text-generation",
            "base_model": "org/base-1B",
            "base_model_relation": "finetune",
            "license": "other",
            "license_name": "some-licence",
            "license_link": "LICENSE",
            "language": ["en", "no"],
            "datasets": "org/data",
            "tags": ["llama", "mathneuro", "mathneuro-export", "unevaluated"],
        }

    @pytest.mark.parametrize("text", [None, "", "# Only words\n", "---\n---\nx", "---\n# a rule above\n"])
    def test_base_without_metadata(self, made, text):
        card, warnings = build_card(*made, text)
        assert warnings == []
        assert split(card)[0] == {
            "library_name": "transformers",
            "pipeline_tag": "text-generation",
            "tags": ["mathneuro", "mathneuro-export", "unevaluated"],
        }

    def test_a_folder_is_named_by_its_card_or_not_at_all(self, made):
        source, document = made
        plain = BASE.replace("base_model: org/older\n", "")
        for other in (source, dataclasses.replace(source, id="a b", revision="main")):
            card, _ = build_card(other, document, BASE)
            assert split(card)[0]["base_model"] == "org/older"
            assert split(card)[0]["base_model_relation"] == "finetune"
            assert "--base BASE" in card
            metadata = split(build_card(other, document, plain)[0])[0]
            assert not {"base_model", "base_model_relation"} & metadata.keys()

    def test_local_paths_in_a_card_are_no_base(self, made):
        text = BASE.replace("org/older", "[/home/someone/model, ../x, 7]")
        assert "base_model" not in split(build_card(*made, text)[0])[0]

    def test_two_bases(self, made):
        text = BASE.replace("org/older", "[org/one, org/two]")
        assert split(build_card(*made, text)[0])[0]["base_model"] == ["org/one", "org/two"]

    @pytest.mark.parametrize(
        ("licence", "notice"),
        [
            ("llama3", "Built with Meta Llama 3."),
            ("llama3.1", "Built with Llama."),
            ("llama4", "Built with Llama."),
            ("gemma", "Gemma is provided under"),
        ],
    )
    def test_notices(self, made, licence, notice):
        assert notice in build_card(*made, f"---\nlicense: {licence}\n---\n")[0]
        assert notice not in build_card(*made, BASE)[0]

    @pytest.mark.parametrize(
        "header", ["a: [", "a: b: c", "- x", "just text", "!!python/object:os.system {}", "[" * 5000]
    )
    def test_broken_header_keeps_the_body(self, made, header):
        card, warnings = build_card(*made, f"---\n{header}\n---\n# Kept\n")
        assert [warning["code"] for warning in warnings] == ["base-card"]
        assert "\n" not in warnings[0]["message"]
        assert "# Kept" in card
        assert "license" not in split(card)[0]

    def test_values_of_other_kinds_are_dropped(self):
        text = "---\nlicense: {a: 1}\nlanguage: [1, en, {}]\ntags: 5\nlicense_name: [a, b]\n---\n"
        assert read_base_card(text).metadata == {"language": ["en"], "tags": []}

    def test_aliases_do_not_grow(self, made):
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
        card, _ = build_card(*made, "---\n" + "\n".join(lines) + "\ntags: *a11\n---\nx\n")
        assert len(card) < 20_000

    def test_line_ends_and_byte_order_mark(self, made):
        card, _ = build_card(*made, "\ufeff" + BASE.replace("\n", "\r\n"))
        assert card == build_card(*made, BASE)[0]
        assert "\r" not in card


class TestText:
    def test_what_was_changed(self, made):
        source, document = made
        card, _ = build_card(on_hub(source), document, BASE)
        counts = [entry["count"] for entry in document["tensors"].values()]
        total = sum(sum(c["masked"]) if isinstance(c["masked"], list) else c["masked"] for c in counts)
        assert f"| Masked weights | {total:,} |" in card
        assert "| Factor | 1.1 (given) |" in card
        assert "| Proportion | 0.3 |" in card
        assert "| Corpus general-2 | text.jsonl, 7 samples, 100 tokens |" in card
        assert "| Targets | 5 tensors with 388 weights |" in card
        assert f"| Masked share of all target weights | {100 * total / 388:.4g} % |" in card
        assert "mathneuro-export verify . --base org/base-1B@0123abc" in card
        assert "mathneuro-export apply . org/base-1B@0123abc -o OUT --factor 1.1" in card
        assert "2410.16930" in card

    @pytest.mark.parametrize("control", [None, "random", "wanda", "wanda-matched", "mirror"])
    @pytest.mark.parametrize("factor", [0.0, 1.1])
    @pytest.mark.parametrize("factor_source", ["default", "option", "recipe"])
    def test_no_claims(self, made, control, factor, factor_source):
        source, document = copy.deepcopy(made[0]), copy.deepcopy(made[1])
        document["selection"]["control"] = control
        document["edit"] = {
            "operation": "scale" if factor else "prune",
            "factor": factor,
            "factor_source": factor_source,
        }
        card, _ = build_card(source, document, None)
        assert not CLAIMS.search(card)
        assert ("control** (" in card) == (control is not None)
        assert ("set to 0" in card.split("\n## ")[0]) == (factor == 0)

    def test_base_card_below(self, made):
        card, _ = build_card(*made, BASE)
        assert card.endswith("---\n\n## The base model's card\n\n" + BASE.split("---\n", 2)[2])
        assert "extra_gated" not in card

    def test_no_base_card(self, made):
        card, _ = build_card(*made, None)
        assert "The base model's card" not in card
        assert card.endswith("```\n")

    def test_tokens_are_hidden(self, made):
        token = "hf_" + "aB3" * 11
        text = f"---\nlicense_link: https://x/{token}\n---\nlogin {token} and pip install hf_transfer\n"
        card, _ = build_card(*made, text)
        assert token not in card
        assert "pip install hf_transfer" in card

    def test_same_card_at_another_time_and_place(self, made, tmp_path):
        source, document = made
        other = {**document, "created": "2030-01-01T00:00:00+00:00", "environment": {"device": "cuda"}}
        moved = dataclasses.replace(source, folder=tmp_path)
        card, _ = build_card(moved, other, BASE)
        assert card == build_card(source, document, BASE)[0]
        assert str(source.folder) not in card

    def test_hostile_names(self, made):
        source, document = copy.deepcopy(made[0]), copy.deepcopy(made[1])
        evil = "a|b`c`\n\n# <script>alert(1)</script> [x](http://y) *z*\x1b[0m\u2028"
        source = dataclasses.replace(source, id=evil)
        document["calibration"]["math"]["spec"] = evil
        document["tool"]["version"] = evil
        card, _ = build_card(source, document, None)
        assert "<script>" not in card
        assert "\x1b" not in card
        assert "\u2028" not in card
        rows = [line for line in card.splitlines() if line.startswith("|")]
        assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
        assert len([line for line in card.splitlines() if line.startswith("# ")]) == 1

    def test_parents(self, made):
        source, document = made
        document = copy.deepcopy(document)
        document["selection"]["parents"] = ["0" * 64]
        document["calibration"] = {}
        assert "another run" in build_card(source, document, None)[0]

    def test_huggingface_hub_reads_it(self, made):
        from huggingface_hub import ModelCard

        source, document = made
        card = ModelCard(build_card(on_hub(source), document, BASE)[0])
        assert card.data.base_model == "org/base-1B"
        assert card.data.license == "other"
