"""The statistics file."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mathneuro_export.calibration.statistics import Statistics, StatisticsFile, check_statistics, write_statistics
from mathneuro_export.errors import Error

RANDOM = np.random.default_rng(3)
STORED = {
    "math": {"a": RANDOM.random((4, 6), np.float32), "b": RANDOM.random((4, 3), np.float32)},
    "general": {"a": RANDOM.random((2, 6), np.float32), "b": RANDOM.random((2, 3), np.float32)},
}
SHARED = {"a": "a", "b": "b", "c": "a"}
AXES = {"a": 1, "b": 0, "c": 1, "never observed": 1}


def test_round_trip(tmp_path):
    path = tmp_path / "statistics.safetensors"
    digest = write_statistics(path, Statistics(STORED, SHARED), AXES, "b")
    assert digest.size == path.stat().st_size
    assert set(load_file(path)) == {f"{corpus}/{name}" for corpus in STORED for name in "ab"}
    read = StatisticsFile(path)
    for corpus, vectors in STORED.items():
        for name, blocks in vectors.items():
            assert np.array_equal(read.blocks(corpus, name), blocks)
            assert read.blocks(corpus, name).dtype == np.float32
    assert read.axes == {"a": 1, "b": 0, "c": 1}
    assert read.head == "b"
    assert read.corpora == {"math", "general"}
    assert read.stored_name("c") == "a"
    assert np.array_equal(read.vector("math", "c"), read.vector("math", "a"))
    with pytest.raises(Error, match=r"^statistics\.safetensors: math/d is missing"):
        read.vector("math", "d")


def test_the_vector_is_the_float64_sum_in_order_rounded_once():
    blocks = np.array([[1, 3e7], [2**-24, 1], [2**-24, 1]], np.float32)
    vector = Statistics({"math": {"a": blocks}}, {}).vector("math", "a")
    assert vector.dtype == np.float32
    assert vector.tolist() == [np.float32(1 + 2**-23), np.float32(30000002)]
    assert blocks.sum(0, dtype=np.float32)[0] == 1


def test_what_is_missing_is_named():
    statistics = Statistics(STORED, {})
    for corpus, name in (("math", "z"), ("general-2", "a")):
        with pytest.raises(Error, match=f"^statistics: {corpus}/{name} is missing"):
            statistics.vector(corpus, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.full((4, 6), -1, np.float32)}, "'math/a' holds a value that is negative or not finite"),
        ({"a": np.full((4, 6), np.nan, np.float32)}, "'math/a' holds a value that is negative or not finite"),
        ({"a": np.ones((4, 5), np.float32)}, "'general/a' has 6 inputs, but 5 in math"),
        ({"a": np.ones((3, 6), np.float32)}, "with the same blocks in all"),
        ({"a": np.ones((4, 6), np.float64)}, r"'math/a' is float64 \[4, 6\], expected float32"),
        ({"a": np.ones(6, np.float32)}, r"'math/a' is float32 \[6\], expected float32"),
        ({"d": np.ones((4, 6), np.float32)}, "d is in only one of the corpora"),
    ],
)
def test_what_cannot_be_is_not_written(change, message, tmp_path):
    path = tmp_path / "statistics.safetensors"
    stored = {**STORED, "math": {**STORED["math"], **change}}
    with pytest.raises(Error, match=message) as caught:
        write_statistics(path, Statistics(stored, SHARED), AXES, None)
    assert str(caught.value).startswith("statistics.safetensors: ")
    assert not path.exists()


def test_no_statistic_and_names_that_lead_nowhere(tmp_path):
    for stored in ({}, {"math": {}}):
        with pytest.raises(Error, match="holds no statistic"):
            write_statistics(tmp_path / "s", Statistics(stored, {}), {}, None)
    with pytest.raises(Error, match="c uses the statistic of z"):
        write_statistics(tmp_path / "s", Statistics(STORED, {"c": "z"}), AXES, None)


NAMES = '{"a":{"input_axis":1,"statistic":"a"}}'


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"math/a": np.ones((2, 3))}, {"tensors": NAMES}, r"'math/a' is F64 \[2, 3\], expected CORPUS/TARGET in F32"),
        ({"a": np.ones((2, 3), np.float32)}, {"tensors": NAMES}, "expected CORPUS/TARGET"),
        ({"math/b": np.ones((2, 3), np.float32)}, {"tensors": NAMES}, "math/a, the statistic of a, is missing"),
        ({"math/a": np.ones((2, 3), np.float32)}, {}, "its metadata does not say which tensor has which statistic"),
        ({"math/a": np.ones((2, 3), np.float32)}, {"tensors": '{"a":7}'}, "its metadata does not say"),
        ({"math/a": np.ones((2, 3), np.float32)}, {"tensors": NAMES.replace("1", "2")}, "its metadata does not say"),
        ({"math/a": np.ones((2, 3), np.float32)}, {"tensors": NAMES, "lm_head": "z"}, "names an lm_head without"),
    ],
)
def test_bad_files(tensors, metadata, message, tmp_path):
    path = tmp_path / "statistics.safetensors"
    save_file(tensors, path, metadata or None)
    with pytest.raises(Error, match=message) as caught:
        StatisticsFile(path)
    assert str(caught.value).startswith("statistics.safetensors: ")


@pytest.mark.parametrize("value", [-1, np.nan, np.inf])
def test_bad_values_are_found_on_reading(value, tmp_path):
    path = tmp_path / "statistics.safetensors"
    save_file({"math/a": np.full((2, 3), value, np.float32)}, path, {"tensors": NAMES})
    with pytest.raises(Error, match="'math/a' holds a value that is negative or not finite"):
        StatisticsFile(path).vector("math", "a")


def test_lengths_are_held_against_the_targets():
    statistics = Statistics(STORED, {"c": "a"})
    check_statistics("file", statistics, [("a", 6), ("c", 6), ("b", 3)])
    with pytest.raises(Error, match="file: math/c has 6 inputs, but the tensor has 7"):
        check_statistics("file", statistics, [("c", 7)])
