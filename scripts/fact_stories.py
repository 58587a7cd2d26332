#!/usr/bin/env python3
"""Stories that ask for something told long before: data that a window of recent tokens cannot predict.

    scripts/fact_stories.py FOLDER [--count N] [--sentences N] [--seed N]

Each file begins with two facts (a child's name, what the child has and its colour), goes on with sentences about others, and
asks for the facts again in the end: "The child is called Anna. The toy is a red boat." The words are those of books for
small children. `tensorcache eval --only-after "The child is called"` scores the answers alone.
"""

import argparse
import pathlib
import random

NAMES = "Anna Ben Lily Tom Mia Sam Sue Max Lucy Jack Amy Bob Sara Tim Ella Leo".split()
COLOURS = "red blue green yellow pink black white brown".split()
TOYS = "ball boat car doll kite book hat bear".split()
OTHERS = ["the cat", "the dog", "the bird", "the old man", "the frog", "the king", "the duck", "the rabbit"]
PLACES = ["the park", "the forest", "the beach", "the garden", "the shop", "the farm", "the river", "the house"]
THINGS = ["a big tree", "a small fish", "a long rope", "a shiny stone", "some cake", "a little bug", "an apple", "a bag"]
FEELINGS = "happy sad scared proud tired hungry angry surprised".split()
SENTENCES = [
    "One day, {other} went to {place}.",
    "There, {other} saw {thing}.",
    "It was a sunny day, and {other} was very {feeling}.",
    "{Other} wanted to play with {other2}.",
    '"Can you help me?" asked {other}.',
    '"Yes, I can," said {other2}.',
    "They found {thing} near {place}.",
    "{Other} was {feeling} and ran to {place}.",
    "Then {other} and {other2} went home.",
    "{Other} gave {thing} to {other2}.",
    "The next day, {other} looked for {thing}.",
    '"Look at {thing}!" said {other}.',
]


def sentence(rng):
    other, other2 = rng.sample(OTHERS, 2)
    return rng.choice(SENTENCES).format(
        other=other, Other=other[0].upper() + other[1:], other2=other2, place=rng.choice(PLACES),
        thing=rng.choice(THINGS), feeling=rng.choice(FEELINGS))


def story(rng, sentences):
    name, colour, toy = rng.choice(NAMES), rng.choice(COLOURS), rng.choice(TOYS)
    facts = f"Once upon a time, there was a child named {name}. {name} had a {colour} {toy}."
    middle = " ".join(sentence(rng) for _ in range(rng.randint(sentences // 2, sentences)))
    answers = f"Do you remember? The child is called {name}. The toy is a {colour} {toy}."
    return f"{facts} {middle} {answers}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=2000, help="files")
    parser.add_argument("--sentences", type=int, default=40, help="at most, between facts and answers; at least half")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    for i in range(arguments.count):
        (arguments.folder / f"{i:06}.txt").write_text(story(rng, arguments.sentences), encoding="utf-8")


if __name__ == "__main__":
    main()
