"""The text of the demo model: sums and short stories, generated from seeded random generators.

A sum is a question and an answer; the text the model learns is `TEMPLATE`. Three forms are used:

    12 + 7 =                                                       19
    31 minus 12 is                                                 19
    Mia had 12 apples and got 7 more:                              19

A story is three to six sentences about one child. Stories hold numbers too (ages, house numbers, counts), which are
told and repeated but never computed with, so that digits alone do not set the sums apart from the stories.

Whole operand pairs are held out: a pair in `held_out_pairs` is used, in either order and by either operation, in no
sum made for training or calibration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Set as AbstractSet

TEMPLATE = "{question} {answer}"
LIMIT = 100  # operands are 0 to LIMIT - 1
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


def held_out_pairs(rng: random.Random, count: int) -> set[tuple[int, int]]:
    """Draw `count` operand pairs (smaller, larger), from all pairs whose larger operand has two digits."""
    pairs = [(a, b) for b in range(10, LIMIT) for a in range(b + 1)]
    return set(rng.sample(pairs, count))


def make_sum(rng: random.Random, pair: tuple[int, int]) -> Sum:
    """A sum of a random form and operation with these operands; a subtraction takes the smaller from the larger."""
    a, b = pair
    plus = rng.random() < 0.5
    if not plus:
        a, b = max(a, b), min(a, b)
    answer = str(a + b if plus else a - b)
    form = rng.choices(FORMS, FORM_WEIGHTS)[0]
    if form == "symbols":
        return Sum(f"{a} {'+' if plus else '-'} {b} =", answer)
    if form == "words":
        return Sum(f"{a} {'plus' if plus else 'minus'} {b} is", answer)
    change = f"got {b} more" if plus else f"lost {b}"
    return Sum(f"{rng.choice(GIRLS + BOYS)} had {a} {rng.choice(THINGS)} and {change}:", answer)


def training_sum(rng: random.Random, excluded: AbstractSet[tuple[int, int]]) -> Sum:
    """A sum whose operand pair is not in `excluded`."""
    while True:
        a, b = rng.randrange(LIMIT), rng.randrange(LIMIT)
        if (min(a, b), max(a, b)) not in excluded:
            return make_sum(rng, (a, b))


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
    age, house, count = rng.randint(4, 12), rng.randint(1, 99), rng.randint(2, 99)
    opening = rng.choice(
        (
            f"{name} is {age} years old and has a {colour} {toy}.",
            f"{name} lives at number {house} in {street}.",
            f"One {weather} day {name} went to the {place} with {his} {relative}.",
            f"{name} has a {colour} {pet} called {pet_name}.",
            f"{name} is {age} and {his} {relative} lives at {house} {street}.",
        )
    )
    frames = (
        f"It was a {weather} morning, so {he} stayed near the {place}.",
        f"{cap} found {count} {thing} and put the {count} {thing} {spot}.",
        f"{his.capitalize()} {relative} made {food} for {him} and {friend}.",
        f"The {pet} ran to the {place} and {name} ran after the {pet}.",
        f"{friend} came from house {house} with a {colour} {toy}.",
        f'"Where is my {toy}?" asked {friend}. The {toy} was {spot}.',
        f"Bus {count} goes to the {place}, and {name} took bus {count}.",
        f"Then {friend} and {name} ate the {food} {spot}.",
        f"At {age} o'clock {he} was {feeling} and went home.",
        f"In the evening {name} was {feeling} and {friend} was {feeling} too.",
    )
    chosen = sorted(rng.sample(range(len(frames)), rng.randint(2, 5)))
    return " ".join([opening, *(frames[i] for i in chosen)])
