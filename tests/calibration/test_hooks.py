"""The recorder alone: shapes, pads, shared inputs."""

import gc

import pytest
import torch

from mathneuro_export.calibration.hooks import Recorder, Rows
from mathneuro_export.errors import Error


def started(blocks=(0, 0), lengths=(3, 5), padded=5) -> Recorder:
    recorder = Recorder(max(blocks) + 1)
    recorder.begin(Rows(blocks, lengths, padded))
    return recorder


def norms(x: torch.Tensor, lengths=(3, 5)) -> torch.Tensor:
    """Of an input [B, T, ..., in], summed over the rows."""
    parts = [x[row, :length].double().reshape(-1, x.shape[-1]) for row, length in enumerate(lengths)]
    return sum(part.pow(2).sum(0).sqrt() for part in parts)


class TestShapes:
    x = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1))

    @pytest.mark.parametrize("shape", [(2, 5, 7), (10, 7)])
    def test_tokens_in_two_forms(self, shape):
        recorder = started()
        recorder.see("a", self.x.reshape(shape))
        torch.testing.assert_close(recorder.sums["a"][0], norms(self.x))

    def test_further_dimensions_count_as_tokens(self):
        many = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(2))
        recorder = started()
        recorder.see("middle", many)
        recorder.see("leading", many.permute(2, 0, 1, 3).contiguous())
        for name in ("middle", "leading"):
            torch.testing.assert_close(recorder.sums[name][0], norms(many))

    def test_a_dimension_of_one_between(self):
        recorder = started()
        recorder.see("a", self.x.unsqueeze(1))
        torch.testing.assert_close(recorder.sums["a"][0], norms(self.x))

    @pytest.mark.parametrize("shape", [(2, 4, 7), (5, 2, 7), (2, 7), (7,), (1, 10, 7)])
    def test_others_are_refused(self, shape):
        with pytest.raises(Error, match=r"^a: its input has shape"):
            started().see("a", torch.zeros(shape))

    def test_pads_are_dropped_even_if_they_are_nan(self):
        x = self.x.clone()
        x[0, 3:] = float("nan")
        recorder = started()
        recorder.see("a", x)
        torch.testing.assert_close(recorder.sums["a"][0], norms(self.x))

    def test_rows_go_to_their_blocks_and_the_input_stays(self):
        x = self.x.clone()
        recorder = started(blocks=(2, 0))
        recorder.see("a", x)
        assert torch.equal(x, self.x)
        sums = recorder.sums["a"]
        assert sums.dtype == torch.float64
        torch.testing.assert_close(sums[2], norms(self.x[:1], (3,)))
        torch.testing.assert_close(sums[0], norms(self.x[1:], (5,)))
        assert not sums[1].any()


class TestSharing:
    def test_one_tensor_is_recorded_once(self):
        x, other = torch.ones(2, 5, 4), torch.ones(2, 5, 4)
        recorder = started()
        for name, value in (("q", x), ("k", x), ("o", other)):
            recorder.see(name, value)
        assert recorder.leaders == {"q": "q", "k": "q", "o": "o"}
        assert set(recorder.sums) == {"q", "o"}

    def test_a_change_in_place_ends_it(self):
        x = torch.ones(2, 5, 4)
        recorder = started()
        recorder.see("q", x)
        x.mul_(2)
        recorder.see("k", x)
        assert recorder.leaders["k"] == "k"
        torch.testing.assert_close(recorder.sums["k"], 2 * recorder.sums["q"])

    def test_a_freed_tensor_is_not_mistaken(self):
        recorder = started()
        for i in range(50):
            recorder.see(f"m{i}", torch.full((2, 5, 4), float(i)))
            gc.collect()
        assert all(name == leader for name, leader in recorder.leaders.items())

    def test_a_group_that_splits_later_is_an_error(self):
        x = torch.ones(2, 5, 4)
        recorder = started()
        recorder.see("q", x)
        recorder.see("k", x)
        recorder.begin(Rows((0, 0), (3, 5), 5))
        recorder.see("q", x)
        with pytest.raises(Error, match=r"^k: no longer sees the same input as q"):
            recorder.see("k", x.clone())

    def test_a_group_that_joins_later_stays_apart(self):
        recorder = started()
        recorder.see("q", torch.ones(2, 5, 4))
        recorder.see("k", torch.zeros(2, 5, 4))
        recorder.begin(Rows((0, 0), (3, 5), 5))
        x = torch.ones(2, 5, 4)
        recorder.see("q", x)
        recorder.see("k", x)
        torch.testing.assert_close(recorder.sums["q"], 2 * recorder.sums["k"])

    def test_twice_in_a_batch_or_outside_one(self):
        recorder = started()
        recorder.see("q", torch.ones(2, 5, 4))
        with pytest.raises(Error, match="ran twice"):
            recorder.see("q", torch.ones(2, 5, 4))
        recorder.end()
        with pytest.raises(Error, match="outside a calibration batch"):
            recorder.see("k", torch.ones(2, 5, 4))

    def test_no_input_is_kept_alive(self):
        import weakref

        x = torch.ones(2, 5, 4)
        recorder = started()
        recorder.see("q", x)
        gone = weakref.ref(x)
        del x
        assert gone() is None


class TestExperts:
    def test_each_sees_its_tokens_and_no_pad(self):
        x = torch.randn(10, 7, generator=torch.Generator().manual_seed(3))
        recorder = started(blocks=(1, 0))
        tokens = torch.tensor([0, 2, 4, 5, 9])  # sample 0 has 3 tokens: 4 is a pad
        recorder.see_expert("up", (4, 7), 2, x[tokens], tokens, 10)
        recorder.see_expert("up", (4, 7), 0, x[:0], tokens[:0], 10)
        assert recorder.tokens["up"].tolist() == [0, 0, 4, 0]
        sums = recorder.sums["up"]
        torch.testing.assert_close(sums[1, 2], x[[0, 2]].double().pow(2).sum(0).sqrt())
        torch.testing.assert_close(sums[0, 2], x[[5, 9]].double().pow(2).sum(0).sqrt())
        assert not sums[:, [0, 1, 3]].any()

    def test_other_tokens_and_a_second_run_are_refused(self):
        recorder = started()
        x, tokens = torch.ones(3, 7), torch.arange(3)
        with pytest.raises(Error, match=r"^up: its experts see 8 tokens, the batch has 2 x 5"):
            recorder.see_expert("up", (4, 7), 0, x, tokens, 8)
        recorder.see_expert("up", (4, 7), 1, x, tokens, 10)
        with pytest.raises(Error, match="ran twice"):
            recorder.see_expert("up", (4, 7), 1, x, tokens, 10)
