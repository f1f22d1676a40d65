"""The text of the demo model: sums and short stories, generated from seeded random generators.

A sum is a question and an answer; the text the model learns is `TEMPLATE`. Three forms are used:

    12 + 7 =                                                       19
    31 minus 12 is                                                 19
    Mia had 12 apples and got 7 more:                              19

A story is three to six sentences about one child. Every fifth story holds a number too (an age, a house number, a bus,
a page), which may be repeated but is never computed with, so that digits alone do not set the sums apart from the
stories.

Whole operand pairs are held out: a pair of `held_out_pairs` is used, in either order and by either operation, in no sum
made for training or calibration.
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

TEMPLATE = "{question} {answer}"
ROWS = 320  # of each text file
NUMBER_SHARE = 0.2  # of the stories have a sentence with a number
LIMIT = 100  # operands are below it
FORMS = ("symbols", "words", "problem")
FORM_WEIGHTS = (60, 20, 20)

GIRLS = ("Mia", "Anna", "Lily", "Rosa", "Nora", "Ella", "Ida", "Zoe")
BOYS = ("Ben", "Tom", "Max", "Leo", "Sam", "Finn", "Otto", "Hugo")
THINGS = ("apples", "shells", "pencils", "stamps", "marbles", "plums", "cards", "nuts", "buttons", "coins")
PETS = ("dog", "cat", "rabbit", "pony", "goat", "duck", "parrot", "mouse")
PET_NAMES = ("Rusty", "Snow", "Pepper", "Biscuit", "Star", "Cloud")
COLOURS = ("red", "blue", "green", "yellow", "brown", "white", "black", "grey")
STREETS = ("Mill Lane", "Park Road", "Hill Street", "River Road", "Church Lane", "Garden Street")
PLACES = ("park", "lake", "market", "school", "forest", "library", "farm", "beach", "garden", "station")
WEATHER = ("sunny", "rainy", "windy", "cold", "warm", "cloudy", "snowy")
FOODS = ("bread", "soup", "cake", "cheese", "porridge", "rice", "honey", "salad")
TOYS = ("ball", "kite", "book", "boat", "drum", "lamp", "hat", "box", "bell", "scarf")
FEELINGS = ("happy", "tired", "proud", "hungry", "sleepy", "glad", "surprised", "calm")
FAMILY = ("mother", "father", "brother", "sister", "uncle", "aunt", "grandmother", "grandfather")
SPOTS = ("under the table", "behind the door", "on the shelf", "near the window", "in the basket", "by the gate")


class Sum(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str

    @property
    def text(self) -> str:
        """The joined text, as the model learns it."""
        return TEMPLATE.format(question=self.question, answer=self.answer)


def held_out_pairs(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Draw `count` pairs of two-digit operands, the larger first."""
    return rng.sample([(a, b) for a in range(10, LIMIT) for b in range(10, a + 1)], count)


def make_sum(rng: random.Random, a: int, b: int, plus: bool) -> Sum:
    """a + b, or a - b, in a random form."""
    answer = str(a + b if plus else a - b)
    form = rng.choices(FORMS, FORM_WEIGHTS)[0]
    if form == "symbols":
        return Sum(f"{a} {'+' if plus else '-'} {b} =", answer)
    if form == "words":
        return Sum(f"{a} {'plus' if plus else 'minus'} {b} is", answer)
    change = f"got {b} more" if plus else f"lost {b}"
    return Sum(f"{rng.choice(GIRLS + BOYS)} had {a} {rng.choice(THINGS)} and {change}:", answer)


def training_sum(rng: random.Random, excluded: AbstractSet[tuple[int, int]], limit: int = LIMIT) -> Sum:
    """A sum with a second operand below `limit`; its operand pair is, in neither order, in `excluded`.

    A subtraction puts the larger operand first.
    """
    while True:
        a, b, plus = rng.randrange(LIMIT), rng.randrange(limit), rng.random() < 0.5
        if (a, b) not in excluded and (b, a) not in excluded:
            return make_sum(rng, a, b, plus) if plus else make_sum(rng, max(a, b), min(a, b), plus)


def make_story(rng: random.Random) -> str:
    """A story of three to six sentences: one that names the child, then two to five of the frames, in order."""
    girl = rng.random() < 0.5
    name = rng.choice(GIRLS if girl else BOYS)
    friend = rng.choice([other for other in GIRLS + BOYS if other != name])
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    cap = he.capitalize()
    pet, pet_name, colour, toy = (rng.choice(words) for words in (PETS, PET_NAMES, COLOURS, TOYS))
    place, weather, food, feeling = (rng.choice(words) for words in (PLACES, WEATHER, FOODS, FEELINGS))
    thing, relative, spot, street = (rng.choice(words) for words in (THINGS, FAMILY, SPOTS, STREETS))
    age, house = rng.randint(4, 12), rng.randint(1, 99)
    opening = rng.choice(
        (
            f"{name} had a {colour} {toy}.",
            f"{name} lived in {street} with {his} {relative}.",
            f"One {weather} day {name} went to the {place} with {his} {relative}.",
            f"{name} had a {colour} {pet} called {pet_name}.",
        )
    )
    frames = (
        f"It was a {weather} morning, so {he} stayed near the {place}.",
        f"{cap} found some {thing} and put the {thing} {spot}.",
        f"{his.capitalize()} {relative} made {food} for {him} and {friend}.",
        f"The {pet} ran to the {place} and {name} ran after the {pet}.",
        f"{friend} came with a {colour} {toy}.",
        f'"Where is my {toy}?" asked {friend}. The {toy} was {spot}.',
        f"Then {friend} and {name} ate the {food} {spot}.",
        f"{cap} was {feeling} and went home.",
        f"In the evening {name} was {feeling} and {friend} was {feeling} too.",
    )
    with_number = (
        f"{name} was {age} years old and {friend} was {age} too.",
        f"{friend} lived at number {house}, near the {place}.",
        f"Bus {house} went to the {place}, and {name} took bus {house}.",
        f"On page {house} of the book was a {colour} {pet}.",
    )
    sentences = [frames[i] for i in sorted(rng.sample(range(len(frames)), rng.randint(2, 5)))]
    if rng.random() < NUMBER_SHARE:
        sentences[rng.randrange(len(sentences))] = rng.choice(with_number)
    return " ".join([opening, *sentences])


def write_text(out: Path, seed: int) -> None:
    """Write the four text files, `ROWS` rows each; the general ones share no story, the math ones no operand pair."""
    rng = random.Random(seed)
    pairs = held_out_pairs(rng, ROWS // 2)
    held_out = [make_sum(rng, a, b, plus) for a, b in pairs for plus in (True, False)]
    rng.shuffle(held_out)
    calibration: dict[str, Sum] = {}
    while len(calibration) < ROWS:
        new = training_sum(rng, set(pairs))
        calibration[new.question] = new
    stories = list(dict.fromkeys(make_story(rng) for _ in range(3 * ROWS)))
    rows: dict[str, list[dict[str, str]]] = {
        "math_calibration": [s._asdict() for s in calibration.values()],
        "math_heldout": [s._asdict() for s in held_out],
        "general_calibration": [{"text": text} for text in stories[:ROWS]],
        "general_heldout": [{"text": text} for text in stories[ROWS : 2 * ROWS]],
    }
    for name, content in rows.items():
        lines = "".join(json.dumps(row) + "\n" for row in content)
        (out / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def read_sums(path: Path) -> list[Sum]:
    """The sums of a text file."""
    return [Sum(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def read_stories(path: Path) -> list[str]:
    """The stories of a text file."""
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def operands(question: str) -> tuple[int, int]:
    """The operand pair of a question."""
    a, b = (int(number) for number in re.findall(r"\d+", question))
    return a, b
