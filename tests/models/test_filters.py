"""Layers and kinds by name; the narrowing itself is tested with the plan."""

import pytest

from mathneuro_export.errors import UsageError
from mathneuro_export.models.filters import kind_of, layers_of, parse_layers


def test_layers_are_those_of_the_list_with_most_names():
    layers = [f"model.layers.{i}.mlp.{kind}.weight" for i in range(3) for kind in ("up_proj", "experts.7.w1")]
    others = ["model.altup_projections.0.weight", "model.altup_projections.1.weight", "lm_head.weight"]
    found = layers_of([*others, *layers])
    assert [found[name] for name in layers] == [0, 0, 1, 1, 2, 2]
    assert {found[name] for name in others} == {None}
    assert layers_of(["h.11.attn.c_attn.weight", "7.weight"])["h.11.attn.c_attn.weight"] == 11
    assert layers_of(["lm_head.weight"]) == {"lm_head.weight": None}
    assert layers_of(["layer1.weight"]) == {"layer1.weight": None}
    assert layers_of([]) == {}


def test_kinds():
    assert kind_of("model.layers.0.self_attn.q_proj.weight") == "q_proj"
    assert kind_of("lm_head.weight") == "lm_head"


def test_ranges():
    assert parse_layers("4-20") == [(4, 20)]
    assert parse_layers("4") == [(4, 4)]
    assert parse_layers("4-20, 25") == [(4, 20), (25, 25)]
    for text in ("", "a", "-1", "3-", "5-4", "1,,2", "1-2-3", "1.5", "²"):
        with pytest.raises(UsageError, match="--layers "):
            parse_layers(text)
