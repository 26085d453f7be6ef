"""`python -m recipes.question_kinds`: train the classifier of question kinds on phrasings, and test it on those kept back.

The questions are those of drawn documents (`arr_coc.training.documents.phrasings`), and more of the kinds that no drawing has yet.
Writes `question_kinds.safetensors` of the package and prints a table of held-out accuracy by kind.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from arr_coc.training.documents.phrasings import PHRASINGS, say
from arr_coc.training.documents.questions import _split
from arr_coc.types.question import BUCKETS, KINDS, WEIGHTS, ngrams

FIND = (
    "where",
    "is there",
    "relation",
    "object colour",
    "coloured",
    "clock",
    "legend colour",
    "legend series",
    "colour",
)
COMPARE = ("largest", "smallest", "biggest", "trend")
DRAWN = dict.fromkeys(FIND, "find") | dict.fromkeys(COMPARE, "compare") | {"count": "count", "whole": "describe"}

MORE = {  # phrasings to train with, and phrasings kept back
    "count": (
        "How many {things_} can you see? | count the {things_} | Number of {things_}? | How many {things_} in total? | "
        "what is the number of {things_} | How many lines does the list have? | How many rows are in the table? | "
        "How many different {things_} are shown? | How many of them are {colour}? | Count all {things_} in the picture. | "
        "how many people are there | How many items are listed? | How many entries are on the page? | "
        "Tell me how many {things_} there are. | How often does {thing_} appear?",
        "Give me the count of {things_}. | How many {things_} do we have here? | How many products are on the receipt? | "
        "how many {colour} {things_} do you count | In total, how many {things_}?",
    ),
    "compare": (
        "Which is bigger, {thing_} or {other_}? | Is {thing_} larger than {other_}? | Compare {thing_} and {other_}. | "
        "Which costs more, {thing_} or {other_}? | What is the difference between {thing_} and {other_}? | "
        "Which item is the most expensive? | Which is cheaper? | How do {thing_} and {other_} compare? | "
        "Does {thing_} have more than {other_}? | Are {thing_} and {other_} the same? | What is the cheapest item? | "
        "Which {thing_} is the tallest? | Who has the most? | Which of the two is higher? | Rank them by size. | "
        "Is the {thing_} on the left bigger than the one on the right? | Which one has the highest value?",
        "Between {thing_} and {other_}, which is larger? | Which is the dearest? | Contrast {thing_} with {other_}. | "
        "Is there more {thing_} than {other_}? | Which product has the lowest price?",
    ),
    "describe": (
        "Describe the scene. | Describe everything you see. | Give a detailed description of the image. | "
        "What is happening in this picture? | Tell me everything about this image. | What does the image depict? | "
        "Write a caption. | Describe the photo in one sentence. | What's the picture about? | Summarise what you see. | "
        "Please describe the image for a blind person. | What is the overall content?",
        "Give me a short description of the photo. | What do we see in this scene? | Paint me a picture of what is here. | "
        "Please provide a caption for this photo. | Outline the content of the page.",
    ),
    "odd": (
        "What is unusual here? | What is odd about this picture? | What is strange in this image? | What is wrong here? | "
        "Is anything out of place? | Which one does not belong? | Find the odd one out. | What looks different? | "
        "Spot the difference. | Is there anything suspicious? | Do you see any anomaly? | What does not fit? | "
        "Are there any defects? | What is unexpected in this scene? | Anything weird? | What stands out as strange? | "
        "Which {thing_} is different from the others? | What is abnormal here? | Is something missing or broken? | "
        "What surprises you in this picture? | Where is the anomaly? | What is funny about this image? | odd one out?",
        "What seems off in this picture? | Does anything look unusual? | Which of them is the outlier? | "
        "Point out what is peculiar here. | What is the strange thing in the photo? | Is there something that does not belong here?",
    ),
}
# Words of a kind in frames: what a classifier of n-grams cannot guess, it must have seen.
GRAMMAR: dict[str, tuple[str, dict[str, str]]] = {
    "odd": (
        "What is {odd} here? | What looks {odd} in this {whole}? | Is anything {odd}? | Is there something {odd} in the {whole}? | "
        "Find the {odd} thing. | Which part of the {whole} is {odd}? | Do you notice anything {odd}? | Show me what is {odd}. | "
        "What appears {odd} about it? | Which {thing_} is {odd}? | What do you find {odd} in this {whole}? | anything {odd}?",
        {
            "odd": "unusual | odd | strange | weird | wrong | abnormal | unexpected | surprising | suspicious | out of place | "
            "broken | missing | defective | anomalous | irregular | bizarre | atypical | funny | curious | faulty | damaged | "
            "different from the rest | not normal | inconsistent | misplaced"
        },
    ),
    "describe": (
        "{tell} the {whole}. | {tell} this {whole} for me. | Please {tell} the whole {whole}. | Can you {tell} what you see? | "
        "{tell} what is going on. | {tell} everything in the {whole} | {tell} it briefly. | {tell} this in a sentence. | "
        "What is this {whole}? | What can be seen in this {whole}? | What is in the {whole}? | What does this {whole} show us? | "
        "Give me a {text} of this {whole}. | Write a {text} for the {whole}. | I need a {text}. | {text} please",
        {
            "tell": "describe | summarise | summarize | caption | explain | outline | recap | characterise | sketch | present | "
            "talk about | report on",
            "text": "description | summary | caption | short text | overview | synopsis | brief description | long description",
        },
    ),
    "compare": (
        "Which {thing_} is the {most}? | Which is the {most}? | What is the {most} {thing_}? | Which one is {most}? | "
        "Which {thing_} has the {most} value? | Name the {most} of them. | the {most}? | Is {thing_} {more} than {other_}? | "
        "Which is {more}: {thing_} or {other_}? | How much {more} is {thing_} than {other_}? | Are there {more} {things_} than "
        "{other_}s? | What is {more}, the {thing_} or the {other_}? | Which of these comes out {most}? | Does {thing_} go up or down? | "
        "Is {thing_} rising or falling over time? | Which {thing_} is ahead of the others?",
        {
            "most": "largest | smallest | highest | lowest | most expensive | cheapest | tallest | longest | shortest | heaviest | "
            "best | worst | biggest | greatest | least | maximum | minimum | strongest | weakest | most frequent | oldest | newest",
            "more": "larger | smaller | higher | lower | more expensive | cheaper | taller | longer | shorter | heavier | better | "
            "worse | bigger | greater | more | less | fewer | older | newer | faster",
        },
    ),
    "count": (
        "How many {things_} {there}? | how many {things_} {there} | Count the {things_} {there}. | {count} of {things_}? | "
        "What is the {count} of {things_} {there}? | I want the {count} of {colour} {things_}. | How many {colour} {things_} {there}? | "
        "Please count every {thing_}. | Can you count the {things_}? | How many people {there}? | How many {things_} or {other_}s {there}?",
        {
            "there": "are there | are shown | do you see | can be seen | are in the picture | does it have | are listed | in all | "
            "are visible | are on the table | altogether",
            "count": "number | count | total number | exact number",
        },
    ),
    "read": (  # what resembles other kinds and is to be read
        "How many {item} were ordered? | What is the number of the {item}? | Which {item} number is it? | How much does {item} cost? | "
        "What is the {item} number? | Where does it say {item}? | What is the price of the {colour} {item}? | How much is {item}? | "
        "What is written next to {item}? | Read the {item} line. | What does the {item} say? | Who wrote the {item}?",
        {},
    ),
}
WHOLE = ("picture", "image", "photo", "scene", "page", "document", "screenshot", "photograph", "drawing")
WORDS = (
    "dog",
    "cat",
    "chair",
    "apple",
    "bottle",
    "car",
    "tree",
    "lamp",
    "book",
    "cup",
    "boat",
    "horse",
    "clock",
    "house",
    "window",
    "bird",
    "table",
    "umbrella",
    "guitar",
    "shoe",
    "revenue",
    "sales",
    "coffee",
    "bread",
    "milk",
    "paper",
    "ink",
    "pen",
    "stamp",
    "string",
    "glue",
    "ticket",
    "order",
    "invoice",
    "customer",
    "delivery",
    "rent",
    "phone",
    "screen",
)
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink", "gray")
RELATIONS = ("left of", "right of", "above", "below", "next to", "behind", "in front of", "under")
REPEATS = 12  # of a phrasing, with other words in its slots


def slots(rng: random.Random) -> dict[str, str]:
    """A value for every slot of a phrasing."""
    thing, other = rng.sample(WORDS, 2)
    texts = ("item", "name", "series", "row", "column", "key", "words", "which", "place", "time", "day")
    named = {name: rng.choice(WORDS) for name in texts}
    more = {"thing_": thing, "other_": other, "things_": f"{thing}s", "a_thing": f"a {thing}"}
    more |= {"whole": rng.choice(WHOLE)}
    return named | more | {"colour": rng.choice(COLOURS), "relation": rng.choice(RELATIONS)}


def make_questions(held_out: bool, seed: int = 0) -> list[tuple[str, str]]:
    """(question, kind) for all phrasings that training uses, or for those kept back."""
    rng = random.Random(f"question kinds {seed} {held_out}")
    made = []
    for drawn in PHRASINGS:
        kind = DRAWN.get(drawn, "read")
        for _ in range(
            REPEATS * (1 if kind == "read" else 12 if held_out is False and kind in ("count", "describe") else 4)
        ):
            made.append((say(rng, drawn, held_out, literal=False, **slots(rng)), kind))
    for kind, parts in MORE.items():
        for phrasing in _split(parts[held_out]):
            for _ in range(REPEATS):
                asked = phrasing.format(**slots(rng))
                made.append((asked if rng.random() < 0.6 else asked.lower().rstrip("?. "), kind))
    for kind, (frames, words) in () if held_out else GRAMMAR.items():
        for frame in _split(frames):
            for _ in range(REPEATS):
                filled = slots(rng) | {name: rng.choice(_split(choices)) for name, choices in words.items()}
                asked = frame.format(**filled)
                made.append((asked if rng.random() < 0.6 else asked.lower().rstrip("?. "), kind))
    return made


def fit(questions: list[tuple[str, str]], decay: float = 2e-5) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[KINDS, BUCKETS]` and bias `[KINDS]` of a logistic regression, all kinds counting alike."""
    given = torch.tensor(np.stack([ngrams(text) for text, _ in questions]), dtype=torch.float32)
    wanted = torch.tensor([KINDS.index(kind) for _, kind in questions])
    share = torch.bincount(wanted, minlength=len(KINDS)).float()
    model = torch.nn.Linear(BUCKETS, len(KINDS))
    torch.nn.init.zeros_(model.weight)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        found = torch.nn.functional.cross_entropy(model(given), wanted, weight=(1 / share.clamp(min=1)).sqrt())
        total = found + decay * model.weight.square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    return model.weight.detach().numpy(), model.bias.detach().numpy()


def store(weights: np.ndarray, bias: np.ndarray, path: Path) -> None:
    scale = float(np.abs(weights).max()) / 127
    rounded = np.round(weights / scale).astype(np.int8)
    save_file({"weights": rounded, "bias": bias.astype(np.float32), "scale": np.array([scale], np.float32)}, path)


def test(weights: np.ndarray, bias: np.ndarray, questions: list[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """(right, all) by kind."""
    counts = {kind: [0, 0] for kind in KINDS}
    for text, kind in questions:
        counts[kind][0] += KINDS[int((weights @ ngrams(text) + bias).argmax())] == kind
        counts[kind][1] += 1
    return {kind: (right, number) for kind, (right, number) in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.question_kinds", description=__doc__)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go (the package)")
    given = parser.parse_args()
    torch.manual_seed(0)
    weights, bias = fit(make_questions(held_out=False))
    store(weights, bias, given.out)
    print("| kind | right, of phrasings kept back |\n|---|---|")
    for kind, (right, number) in test(weights, bias, make_questions(held_out=True)).items():
        print(f"| {kind} | {right / number:.3f} of {number} |")


if __name__ == "__main__":
    main()
