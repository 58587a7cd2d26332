#!/usr/bin/env python3
"""Stories that ask for something told long before: data that a window of recent tokens cannot predict.

    scripts/fact_stories.py FOLDER [--count N] [--questions N] [--between N] [--seed N]

Each file begins with six facts ("The child is called Anna. The toy is a boat. ..."), goes on with sentences about others, and
every now and then says one of the facts again, in the same words: each once before any comes twice. The words are those of
books for small children. `tensorcache eval --only-after "The child is called"` scores what the model says of the child alone.
"""

import argparse
import pathlib
import random

FACTS = {
    "The child is called {}.": "Anna Ben Lily Tom Mia Sam Sue Max Lucy Jack Amy Bob Sara Tim Ella Leo".split(),
    "The toy is a {}.": "ball boat car doll kite book hat bear truck cup".split(),
    "The colour is {}.": "red blue green yellow pink black white brown purple".split(),
    "The pet is a {}.": "cat dog bird frog fish duck rabbit mouse bunny pig".split(),
    "The house is near the {}.": "park farm beach garden forest lake hill school store".split(),
    "The best food is {}.": "cake soup milk bread candy pie fruit rice pizza".split(),
}
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


def story(rng, questions, between):
    facts = [fact.format(rng.choice(words)) for fact, words in FACTS.items()]
    parts = ["Once upon a time, there was a child.", *facts]
    for i in range(questions):
        if i % len(facts) == 0:
            order = rng.sample(facts, len(facts))
        parts += [sentence(rng) for _ in range(rng.randint(between, between * 2))]
        parts.append(order[i % len(facts)])
    return " ".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=2000, help="files")
    parser.add_argument("--questions", type=int, default=36, help="facts that come again")
    parser.add_argument("--between", type=int, default=1, help="sentences between two of them, at least; at most twice that")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    for i in range(arguments.count):
        (arguments.folder / f"{i:06}.txt").write_text(story(rng, arguments.questions, arguments.between), encoding="utf-8")


if __name__ == "__main__":
    main()
