"""Tokens and batches."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_tokenizer, write_jsonl

from mathneuro_export.calibration.batches import AUTO_TOKENS, batch_plan, encode, make_batches
from mathneuro_export.calibration.corpus import load_corpus
from mathneuro_export.errors import Error, UsageError


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def corpus_of(tmp_path, rows, choice=""):
    return load_corpus("math", str(write_jsonl(tmp_path / "c.jsonl", rows)) + choice, None, 0)


def spoken(tokenizer, ids) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(list(ids)))


class TestBatches:
    @given(st.lists(st.integers(0, 3000), max_size=60), st.none() | st.integers(1, 20))
    @settings(max_examples=100, deadline=None)
    def test_every_sample_once_sorted_and_within_the_budget(self, lengths, batch_size):
        batches = make_batches([range(length) for length in lengths], batch_size)
        flat = [pair for batch in batches for pair in zip(batch.lengths, batch.samples, strict=True)]
        assert flat == sorted((length, number) for number, length in enumerate(lengths) if length)
        for batch, following in zip(batches, [*batches, None][1:], strict=True):
            count = len(batch.samples)
            if batch_size is None:
                assert count == 1 or count * batch.padded <= AUTO_TOKENS
                assert following is None or (count + 1) * following.lengths[0] > AUTO_TOKENS
            else:
                assert count == batch_size or (following is None and count < batch_size)

    def test_plan(self):
        assert batch_plan(make_batches([[0] * 5, [], [0] * 2, [0] * 3], 2)) == [[2, 3], [1, 5]]


class TestEncode:
    def test_raw_adds_what_the_tokenizer_adds(self, tmp_path, tokenizer):
        corpus = corpus_of(tmp_path, [{"text": "ab"}])
        encoded = encode(corpus, tokenizer, 10, False, 256)
        assert spoken(tokenizer, encoded.ids[0]) == "<bos>ab"
        assert (encoded.tokens, encoded.truncated, encoded.notes) == (3, 0, ())

    def test_truncation_is_counted_and_noted_above_one_percent(self, tmp_path, tokenizer):
        rows = [{"text": f"{i:03d}"} for i in range(200)]
        for long, noted in ((2, False), (3, True)):
            texts = [{"text": "x" * 20}] * long + rows[long:]
            encoded = encode(corpus_of(tmp_path, texts), tokenizer, 10, False, 256)
            assert encoded.truncated == long
            assert bool(encoded.notes) == noted
        assert max(len(ids) for ids in encoded.ids) == 10
        assert encoded.notes[0].details == {"corpus": "math", "count": 3, "samples": 200, "max_length": 10}

    def test_a_sample_of_ten_megabytes(self, tmp_path, tokenizer):
        words = "seven and 12 are " * 600_000
        start = time.process_time()
        encoded = encode(corpus_of(tmp_path, [{"text": words}]), tokenizer, 64, False, 256)
        assert time.process_time() - start < 5
        assert encoded.truncated == 1
        assert spoken(tokenizer, encoded.ids[0]) == "<bos>" + words[:63]

    def test_a_text_cut_before_its_tokens_are_enough(self, tmp_path):
        """A tokenizer that drops spaces: the first 100 x max_length characters give too few tokens."""
        from tokenizers import normalizers

        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" ", "")
        for tail, truncated in (("abc", False), ("abcdefgh", True)):
            encoded = encode(corpus_of(tmp_path, [{"text": " " * 900 + tail}]), tokenizer, 6, False, 256)
            assert spoken(tokenizer, encoded.ids[0]) == "<bos>" + tail[:5]
            assert encoded.truncated == truncated

    def test_empty_samples(self, tmp_path, tokenizer):
        from tokenizers import processors

        encoded = encode(corpus_of(tmp_path, [{"text": ""}, {"text": "a"}]), tokenizer, 10, False, 256)
        assert sorted(len(ids) for ids in encoded.ids) == [1, 2]
        bare = tiny_tokenizer()
        bare.backend_tokenizer.post_processor = processors.Sequence([])
        encoded = encode(corpus_of(tmp_path, [{"text": ""}, {"text": "a"}]), bare, 10, False, 256)
        assert sorted(len(ids) for ids in encoded.ids) == [0, 1]
        assert encoded.notes[0].code == "empty-samples"
        with pytest.raises(Error, match=r"math \(c\.jsonl\): no text of the corpus has a token"):
            encode(corpus_of(tmp_path, [{"text": ""}]), bare, 10, False, 256)


class TestChat:
    def test_turns(self, tmp_path, tokenizer):
        rows = [{"q": "2+2?", "a": "4"}]
        for choice, expected in (
            (":{q}\\n{a}", "<|user|>2+2?<eos><|assistant|>4<eos>"),
            (":Sum: {q}", "<|user|>Sum: 2+2?<eos>"),
            (":q", "<|user|>2+2?<eos>"),
        ):
            corpus = corpus_of(tmp_path, rows, choice)
            assert spoken(tokenizer, encode(corpus, tokenizer, 60, True, 256).ids[0]) == expected

    def test_truncated_without_adding_anything(self, tmp_path, tokenizer):
        encoded = encode(corpus_of(tmp_path, [{"text": "abcdefgh"}]), tokenizer, 4, True, 256)
        assert spoken(tokenizer, encoded.ids[0]) == "<|user|>abc"
        assert encoded.special_tokens == {"added_by": "chat template", "added": []}

    def test_a_tokenizer_without_a_template(self, tmp_path):
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = None
        with pytest.raises(UsageError, match="--chat-template: the tokenizer has no chat template; use --raw"):
            encode(corpus_of(tmp_path, [{"text": "a"}]), tokenizer, 9, True, 256)

    def test_a_template_that_refuses(self, tmp_path):
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = "{{ raise_exception('no\\nsystem') }}"
        with pytest.raises(Error, match=r"^math \(c\.jsonl\), sample 0: the tokenizer cannot take it: no system$"):
            encode(corpus_of(tmp_path, [{"text": "a"}]), tokenizer, 9, True, 256)
