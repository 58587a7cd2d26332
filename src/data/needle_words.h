// Words that needles are found by: an adjective and a noun, as in "hollow-lantern".
#pragma once

#include <array>
#include <string_view>

namespace tensorcache::data {

inline constexpr auto kNeedleAdjectives = std::to_array<std::string_view>(
    {"able",    "ample",   "amber",   "ancient", "azure",   "bitter",   "blank",   "bold",    "brave",   "brief",
     "bright",  "brittle", "broad",   "broken",  "calm",    "candid",   "careful", "cheap",   "civil",   "clean",
     "clever",  "coarse",  "cold",    "common",  "copper",  "crisp",    "crooked", "curious", "damp",    "dark",
     "deaf",    "deep",    "distant", "divine",  "dry",     "dusty",    "eager",   "early",   "earnest", "eastern",
     "elegant", "empty",   "even",    "exact",   "faint",   "faithful", "famous",  "fertile", "fierce",  "flat",
     "foreign", "formal",  "frail",   "frozen",  "full",    "gentle",   "giant",   "golden",  "grand",   "gray",
     "green",   "guilty",  "hasty",   "heavy",   "hidden",  "hollow",   "honest",  "humble",  "icy",     "idle",
     "jolly",   "keen",    "large",   "latent",  "lazy",    "light",    "little",  "lively",  "lonely",  "loud",
     "lucky",   "magic",   "mellow",  "merry",   "mighty",  "modern",   "modest",  "mossy",   "muddy",   "narrow",
     "nervous", "noble",   "noisy",   "obscure", "odd",     "orange",   "pale",    "patient", "plain",   "polite",
     "proud",   "purple",  "quaint",  "quick",   "quiet",   "ragged",   "rapid",   "rare",    "remote",  "ripe",
     "rough",   "round",   "rusty",   "sacred",  "scarlet", "secret",   "shallow", "sharp",   "silent",  "silver",
     "simple",  "slender", "slow",    "smooth",  "solemn",  "sour",     "spare",   "steep",   "stern",   "sturdy",
     "subtle",  "sudden",  "sweet",   "swift",   "tall",    "tame",     "tender",  "thick",   "tidy",    "timid",
     "tiny",    "tired",   "urgent",  "useful",  "vague",   "vast",     "violet",  "vivid",   "warm",    "wary",
     "weary",   "western", "whole",   "wicked",  "wide",    "wild",     "wise",    "wooden",  "young",   "zealous"});

inline constexpr auto kNeedleNouns = std::to_array<std::string_view>(
    {"acorn",    "anchor",  "apple",    "arrow",   "autumn",  "badge",   "bakery",  "ballad",  "banner",  "barley",
     "barrel",   "basket",  "beacon",   "bell",    "blanket", "bottle",  "branch",  "bread",   "bridge",  "bronze",
     "bucket",   "button",  "cabin",    "candle",  "canvas",  "carpet",  "castle",  "cavern",  "cedar",   "chapel",
     "cherry",   "circle",  "clay",     "clock",   "cloud",   "coach",   "comet",   "compass", "coral",   "cottage",
     "cotton",   "cradle",  "creek",    "cricket", "crown",   "curtain", "dagger",  "daisy",   "desert",  "diamond",
     "dragon",   "drum",    "eagle",    "ember",   "engine",  "falcon",  "farmer",  "feather", "fiddle",  "flame",
     "forest",   "fossil",  "fountain", "garden",  "garnet",  "glacier", "glove",   "goblet",  "granite", "hammer",
     "harbor",   "harvest", "helmet",   "heron",   "hill",    "honey",   "horizon", "island",  "ivory",   "jacket",
     "jewel",    "journal", "kettle",   "kitchen", "ladder",  "lagoon",  "lantern", "laurel",  "leaf",    "lemon",
     "linen",    "lizard",  "lobster",  "maple",   "marble",  "market",  "meadow",  "mirror",  "mitten",  "morning",
     "mountain", "needle",  "nest",     "oak",     "ocean",   "olive",   "orchard", "otter",   "paddle",  "painter",
     "palace",   "parcel",  "pebble",   "pepper",  "piano",   "pigeon",  "pillow",  "planet",  "pocket",  "pony",
     "poppy",    "prairie", "puzzle",   "quarry",  "quill",   "rabbit",  "raven",   "ribbon",  "river",   "rocket",
     "saddle",   "sailor",  "salmon",   "sandal",  "shadow",  "shelf",   "shovel",  "sparrow", "spring",  "stable",
     "statue",   "summer",  "sunset",   "tablet",  "teapot",  "temple",  "thistle", "thunder", "ticket",  "timber",
     "tower",    "trumpet", "tulip",    "tunnel",  "turtle",  "valley",  "velvet",  "village", "violin",  "wagon",
     "walnut",   "whistle", "willow",   "window",  "winter",  "wizard",  "wolf",    "wreath",  "yard",    "zebra"});

}  // namespace tensorcache::data
