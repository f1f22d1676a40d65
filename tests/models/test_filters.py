"""Layers and kinds by name, and the narrowing by them."""

import pytest

from mathneuro_export.errors import UsageError
from mathneuro_export.models.filters import kind_of, layers_of, narrow, parse_layers


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


NAMES = [
    f"model.layers.{layer}.{name}.weight"
    for layer in range(3)
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
]


class TestNarrow:
    def test_reasons(self):
        kept, skipped = narrow(
            [*NAMES, "lm_head.weight"],
            include=["*mlp*"],
            exclude=["*.down_proj.*"],
            layers="1-2",
            head="lm_head.weight",
        )
        assert kept == ["model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"]
        counts = {reason: len(names) for reason, names in skipped.items()}
        assert counts == {"lm_head (use --lm-head)": 1, "outside --layers": 4, "not included": 4, "excluded": 2}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"include": ["*nothing*"]}, r"--include \*nothing\*"),
            ({"exclude": ["*norm*"]}, r"--exclude \*norm\*"),
            ({"include": ["*Q_PROJ*"]}, r"--include \*Q_PROJ\*"),
            ({"layers": "3-4"}, "--layers '?3-4"),
            ({"layers": "2,9"}, "--layers '?2,9"),
            ({"layers": "2-1"}, "--layers '?2-1"),
            ({"layers": "all"}, "--layers '?all"),
            ({"include": ["*q_proj*"], "exclude": ["*self_attn*"]}, "no target is left"),
            ({"lm_head": True}, r"^--lm-head: .*tied"),
        ],
    )
    def test_options_that_match_nothing(self, options, message):
        with pytest.raises(UsageError, match=message):
            narrow(NAMES, **options)
