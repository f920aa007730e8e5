"""The texts the bundled model is trained on, as rows of token ids; see train_bundled_model.py."""
from __future__ import annotations

import ast
import inspect
import math
import pathlib
import sysconfig

import numpy as np

UNK, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3

# ---------------------------------------------------------------------------------------------------------
# English from a grammar
# ---------------------------------------------------------------------------------------------------------

NAMES = {"he": "Tom Ben Max Leo Sam Jack Finn Oscar Hugo Paul".split(),
         "she": "Anna Lily Mia Rose Emma Nora Clara Ada Ruth Jane".split()}
POSSESSIVE = {"he": "his", "she": "her"}
OBJECT_CASE = {"he": "him", "she": "her"}
BEINGS = "boy fox bear cat mouse rabbit farmer sailor baker king".split()
BEINGS_SHE = "girl fox bear cat mouse rabbit farmer teacher baker queen".split()
TRAITS = "little kind brave clever quiet young happy curious gentle".split()
HOMES = ["a small house", "a green valley", "an old village", "a town by the sea", "a big forest",
         "a house on the hill", "a cabin near the river"]
DAYTIMES = ["One morning", "One day", "One evening", "One cold night", "One sunny day", "The next day"]
THINGS = "key book lamp box letter ball stone coin map bell boat flower".split()
THING_TRAITS = "red blue golden old small shiny strange heavy beautiful silver".split()
SPOTS = ["under a tree", "behind the door", "near the river", "in the garden", "on the road",
         "on the table", "in a dark cave", "beside the old well"]
FEELINGS = "happy glad surprised proud excited".split()
WEATHER = ["The sun was shining and the birds were singing.", "It was raining and the wind was cold.",
           "The sky was blue and the air was warm.", "Snow was falling on the roofs."]
KIN = ["mother", "uncle", "sister"]
MORALS = ["They were friends from that day on.", "They laughed and played until the sun went down.",
          "From that day on they always helped each other.", "And they lived happily ever after.",
          "Then they went home and slept well."]

WORKERS = "reader writer painter teacher sailor baker gardener student doctor builder".split()
SCENES = {
    "reader": ["opens the book and turns to the first page", "reads the story slowly and with a smile",
               "closes the book and looks out of the window", "finds a word that is new and writes it down"],
    "writer": ["takes a pen and begins a long letter", "thinks for a while and writes the next line",
               "puts the paper on the table and drinks some tea", "reads the whole text once more"],
    "painter": ["mixes the blue and the white paint", "paints a small boat on a calm sea",
                "steps back and looks at the picture", "cleans the brushes with warm water"],
    "teacher": ["asks a question and waits for an answer", "writes the date on the board",
                "tells the children about the stars", "opens the window to let in fresh air"],
    "sailor": ["looks at the sea and waits for the wind", "pulls the rope and lifts the sail",
               "steers the ship into the harbor", "sings an old song about the moon"],
    "baker": ["gets up early and lights the oven", "puts the bread on a wooden table",
              "sells a warm cake to a hungry child", "counts the eggs and fills the jar with flour"],
    "gardener": ["waters the flowers before the sun is high", "plants a row of small trees",
                 "picks the red apples and fills a basket", "rests in the shade and listens to the birds"],
    "student": ["opens the notebook and sharpens a pencil", "learns ten new words every day",
                "solves the first problem and checks the result", "asks a friend for help"],
    "doctor": ["listens to the heart of the old man", "gives the child a cup of warm milk",
               "writes a short note and smiles", "walks home through the quiet streets"],
    "builder": ["measures the wall and cuts the wood", "carries the stones up the hill",
                "builds a bridge over the river", "fixes the roof before the rain comes"],
}
LATER = ["Then", "After that,", "A little later", "Now", "Soon"]
SCENE_ENDS = ["It is a good day.", "The day is almost over.", "Everything is quiet now.",
              "Tomorrow there is more to do."]

NOTES = [
    "An attention head looks back at the words that came before.",
    "A previous-token head looks at the token just before the current one.",
    "An induction head finds the last time a token was seen and copies what came next.",
    "Each head has its own keys and values, and each key waits for a question.",
    "The cache keeps the keys and values so that no work is done twice.",
    "Many heads read the same text, and every head reads it in its own way.",
    "A small model can still learn to repeat what it has seen.",
    "The softmax turns scores into weights that add up to one.",
]


def pick(rng: np.random.Generator, options: list[str]) -> str:
    return options[rng.integers(len(options))]


def with_article(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def story(rng: np.random.Generator) -> str:
    """A story of two friends and a thing; names, pronouns and the thing stay the same throughout."""
    they = [pick(rng, ["he", "she"]), pick(rng, ["he", "she"])]
    hero = pick(rng, NAMES[they[0]])
    friend = pick(rng, [name for name in NAMES[they[1]] if name != hero])
    being = pick(rng, BEINGS if they[0] == "he" else BEINGS_SHE)
    he, his = they[0], POSSESSIVE[they[0]]
    thing = f"{pick(rng, THING_TRAITS)} {pick(rng, THINGS)}"
    noun = thing.split()[1]
    lines = [f"Once upon a time there was {with_article(pick(rng, TRAITS))} {being} named {hero}."]
    home, kin = pick(rng, HOMES), pick(rng, ["mother", "father", "family"])
    lines.append(f"{he.capitalize()} lived in {home} with {his} {kin}.")
    if rng.random() < 0.5:
        lines.append(pick(rng, WEATHER))
    lines.append(f"{pick(rng, DAYTIMES)} {hero} found {with_article(thing)} {pick(rng, SPOTS)}.")
    lines.append(pick(rng, [
        f'"What a {thing}!" said {hero}.', f'"Whose {noun} is this?" asked {hero}.',
        f"{hero} was very {pick(rng, FEELINGS)} and looked at the {noun} for a long time.",
        f"{he.capitalize()} picked up the {noun} and put it in {his} bag."]))
    lines.append(pick(rng, [
        f"{hero} took the {noun} to {his} friend {friend}.",
        f"Then {hero} met {his} friend {friend} and showed {OBJECT_CASE[they[1]]} the {noun}."]))
    lines.append(pick(rng, [
        f'"I know this {noun}," said {friend}. "It belongs to my {pick(rng, KIN)}."',
        f'"Thank you, {hero}," said {friend}. "I was looking for my {noun} all day."',
        f"{friend} was {pick(rng, FEELINGS)} to see the {thing}.",
        f"{friend} smiled and gave {hero} {with_article(pick(rng, ['apple', 'cake', 'hug', 'pear']))}."]))
    lines.append(pick(rng, [
        f"So {hero} gave the {noun} to {friend}, and {friend} was very {pick(rng, FEELINGS)}.",
        f"{hero} and {friend} put the {noun} on the table and danced around it.",
        f"{hero} and {friend} took the {noun} home together."]))
    lines.append(pick(rng, MORALS))
    return " ".join(lines)


def scene(rng: np.random.Generator) -> str:
    """Four present-tense sentences about one person at work."""
    who = pick(rng, WORKERS)
    deeds = [SCENES[who][i] for i in np.sort(rng.permutation(len(SCENES[who]))[:3])]
    lines = [f"The {who} {deeds[0]}."]
    lines += [f"{pick(rng, LATER)} the {who} {deed}." for deed in deeds[1:]]
    lines.append(pick(rng, SCENE_ENDS))
    return " ".join(lines)


def english(rng: np.random.Generator) -> str:
    kind = rng.random()
    if kind < 0.6:
        return story(rng)
    if kind < 0.9:
        return scene(rng)
    return " ".join(NOTES[i] for i in rng.permutation(len(NOTES))[:3])


# ---------------------------------------------------------------------------------------------------------
# Other texts, and rows of token ids
# ---------------------------------------------------------------------------------------------------------


def docstrings() -> list[str]:
    """ASCII docstrings of at least 120 characters from the top-level modules of the standard library."""
    found = []
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = inspect.cleandoc(ast.get_docstring(node) or "")
                if len(text) >= 120 and text.isascii():
                    found.append(text)
    return found


def encode(text: str | bytes) -> list[int]:
    data = text.encode() if isinstance(text, str) else text
    return [byte + FIRST_BYTE for byte in data]


def decode(ids: list[int]) -> str:
    return bytes(i - FIRST_BYTE for i in ids if FIRST_BYTE <= i < FIRST_BYTE + 256).decode("utf-8", "replace")


ALPHABETS = [np.arange(256), np.arange(33, 127), np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8),
             np.array([c for c in range(128) if chr(c).isalnum()])]


def repeat_row(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and loss weights of a random segment repeated to the end; only what is predictable counts."""
    alphabet = ALPHABETS[rng.integers(len(ALPHABETS))]
    period = int(math.exp(rng.uniform(math.log(4), math.log(length // 2))))
    prefix = int(rng.integers(0, max(1, min(period, length - 2 * period))))
    segment = rng.choice(alphabet, period).astype(np.int64)
    if rng.random() < 0.5:
        segment[-1] = ord(" ")
    body = np.concatenate([rng.choice(alphabet, prefix), np.resize(segment, length - prefix)])
    weights = np.zeros(length, np.float32)
    weights[prefix + period + 1:] = 1
    return np.concatenate([[BOS], body + FIRST_BYTE]), weights


class TextStream:
    """Rows cut from endless documents; half of the rows start where a document starts."""

    def __init__(self, rng: np.random.Generator, next_document):
        self.rng, self.next_document = rng, next_document

    def row(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        ids = encode(self.next_document()) + [EOS, BOS]
        if self.rng.random() < 0.5:
            ids = ids[self.rng.integers(len(ids) - 1):]
        while len(ids) < length:
            ids += encode(self.next_document()) + [EOS, BOS]
        ids = np.array([BOS] + ids[:length])
        return ids, (ids[1:] != BOS).astype(np.float32)  # nobody has to guess that </s> is followed by <s>


class Mixture:
    """The training data (or, with another seed and other docstrings, the held-out data)."""

    def __init__(self, seed: int, documents: list[str]):
        self.rng = np.random.default_rng(seed)
        self.rows = {
            "repeats": lambda length: repeat_row(self.rng, length),
            "english": TextStream(self.rng, lambda: english(self.rng)).row,
            "docstrings": TextStream(self.rng, lambda: pick(self.rng, documents)).row,
        }

    def batch(self, rows: int, length: int, kind: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        kinds = [kind] * rows if kind else self.rng.choice(list(self.rows), rows, p=[0.5, 0.4, 0.1])
        ids, weights = zip(*(self.rows[k](length) for k in kinds))
        return np.stack(ids).astype(np.int32), np.stack(weights)
