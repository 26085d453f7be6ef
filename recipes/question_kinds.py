"""`python -m recipes.question_kinds`: train the classifier of question kinds on phrasings, and test it on those kept back.

The questions are those of drawn documents (`arr_coc.training.documents.phrasings`), and more of the kinds that no drawing has yet.
Writes `question_kinds.safetensors` of the package and prints a table of held-out accuracy by kind.
"""

import argparse
import random
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from arr_coc.training.documents.phrasings import PHRASINGS, say, templates
from arr_coc.training.documents.questions import _split, normalize_phrasing
from arr_coc.types.question import BUCKETS, KINDS, WEIGHTS, features, question_kind

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
# A second set kept back: neither these phrasings nor nearly all words that decide their kind occur in training.
OTHER_WORDS = {
    "count": "What's the headcount of {things_}? | Work out the quantity of {things_}. | {things_}: how numerous are they? | "
    "enumerate the {things_} | How large is the group of {things_}? | Reckon up the {colour} {things_}.",
    "compare": "Who wins, {thing_} or {other_}? | Put {thing_} against {other_}. | Which {thing_} dwarfs the rest? | "
    "Is it {thing_} or {other_} that weighs more? | Sort the {things_} by length. | Which of the {things_} is the priciest?",
    "describe": "Walk me through this {whole}. | What am I looking at? | Narrate the scene. | Put this {whole} into words. | "
    "Fill me in on this {whole}. | Break down what the {whole} contains.",
    "odd": "Does something here strike you as fishy? | What jars in this {whole}? | What should not be here? | "
    "What is the glitch in this {whole}? | Which {thing_} is unlike its neighbours? | What is uncommon about the {whole}?",
    "find": "Whereabouts is the {thing_}? | Circle the {thing_}. | Pinpoint the {colour} {thing_}. | On which side is the {thing_}? | "
    "Is {a_thing} anywhere? | Help me track down the {thing_}.",
    "read": "Spell out the {item}. | What comes after {item}? | What amount is charged for {item}? | Type out the line with {item}. | "
    "Which number follows {item}? | What do they ask for {item}? | What is printed under {item}? | How long is {item} valid?",
}
# Words of a kind in frames: what a classifier of words and letters cannot guess, it must have seen.
GRAMMAR: dict[str, tuple[str, dict[str, str]]] = {
    "odd": (
        "What is {odd} here? | What looks {odd} in this {whole}? | Is anything {odd}? | Is there something {odd} in the {whole}? | "
        "Find the {odd} thing. | Which part of the {whole} is {odd}? | Do you notice anything {odd}? | Show me what is {odd}. | "
        "What appears {odd} about it? | Which {thing_} is {odd}? | What do you find {odd} in this {whole}? | anything {odd}? | "
        "Does any {thing_} look {odd}? | Does something seem {odd} to you? | Point to what is {odd}. | Which of the {things_} is {odd}? | "
        "Does everything look right? | Is everything as it should be? | Is this {whole} normal? | Is there a {flaw} in the {whole}? | "
        "Where is the {flaw}? | Find the {flaw}. | Can you spot a {flaw}? | Which {thing_} is the {flaw}? | Which of these is the {flaw}? | "
        "Is one of the {things_} not like the others? | Which {thing_} breaks the pattern? | What does not match? | "
        "Which one is out of line? | Which {thing_} has been changed? | What has changed here? | Which is not a {thing_}? | "
        "What is the {odd} one? | Is there a {thing_} that is {odd}? | Which one differs? | What makes this {whole} {odd}?",
        {
            "odd": "unusual | odd | strange | weird | wrong | abnormal | unexpected | surprising | suspicious | out of place | "
            "broken | missing | defective | anomalous | irregular | bizarre | atypical | funny | curious | faulty | damaged | "
            "different from the rest | not normal | inconsistent | misplaced | peculiar | off | remarkable | exceptional | "
            "extraordinary | rare | special | striking | alien | mistaken | incorrect | not right | not as expected | unnatural | "
            "unlike the others | a bit off | somewhat odd | distorted | deformed | torn | upside down | the wrong way round",
            "flaw": "mistake | error | flaw | defect | anomaly | fault | exception | outlier | stranger | oddity | irregularity | "
            "problem | inconsistency | fake | intruder | misfit | odd one | exception to the rule | damage | crack",
        },
    ),
    "describe": (
        "{tell} the {whole}. | {tell} this {whole} for me. | Please {tell} the whole {whole}. | Can you {tell} what you see? | "
        "{tell} what is going on. | {tell} everything in the {whole} | {tell} it briefly. | {tell} this in a sentence. | "
        "What is this {whole}? | What can be seen in this {whole}? | What is in the {whole}? | What does this {whole} show us? | "
        "Give me a {text} of this {whole}. | Write a {text} for the {whole}. | I need a {text}. | {text} please | "
        "Please give a {text} of the scene. | Could you provide a {text}? | What do you see? | What do you see here? | "
        "What is going on here? | What is happening? | What is this about? | What is this? | What is shown? | What do the {whole} and "
        "its parts show? | {tell} the contents of the {whole}. | {tell} the {whole} in detail. | {tell} the main points. | "
        "Tell me about this {whole}. | Tell me what this {whole} is about. | What kind of {whole} is this? | What is the {whole} about? | "
        "In a few words, what is this {whole}? | Say something about the {whole}. | What is the {whole} of? | What is in front of us? | "
        "What is the subject of this {whole}? | What story does the {whole} tell? | What are the main things in the {whole}? | "
        "List everything that you see. | Name all the things in the {whole}. | What all is in this {whole}? | Can you {tell} the {whole}?",
        {
            "tell": "describe | summarise | summarize | caption | explain | outline | recap | characterise | sketch | present | "
            "talk about | report on | portray | depict | give an account of | elaborate on | comment on | sum up | interpret",
            "text": "description | summary | caption | short text | overview | synopsis | brief description | long description | "
            "title | detailed account | paragraph | sentence or two | rundown | digest | outline | full description | gist",
        },
    ),
    "compare": (
        "Which {thing_} is the {most}? | Which is the {most}? | What is the {most} {thing_}? | Which one is {most}? | "
        "Which {thing_} has the {most} value? | Name the {most} of them. | the {most}? | Is {thing_} {more} than {other_}? | "
        "Which is {more}: {thing_} or {other_}? | How much {more} is {thing_} than {other_}? | Are there {more} {things_} than "
        "{other_}s? | What is {more}, the {thing_} or the {other_}? | Which of these comes out {most}? | Does {thing_} go up or down? | "
        "Is {thing_} rising or falling over time? | Which {thing_} is ahead of the others? | Find the {most} {thing_}. | "
        "Which {thing_} comes {place}? | What comes {place}? | Which one is at the {end}? | What is at the {end} of the ranking? | "
        "Which {thing_} is {more} than all others? | Which {thing_} {beats} all the others? | Which {beats} the rest? | "
        "What {beats} everything else? | Does {thing_} {beat} {other_}? | Of {thing_} and {other_}, which is {more}? | "
        "Which of {thing_} and {other_} is {more}? | Is there a difference between {thing_} and {other_}? | "
        "How does {thing_} differ from {other_}? | {thing_} versus {other_} | {thing_} or {other_}: which is {more}? | "
        "Is {thing_} {trend}? | Over time, is {thing_} {trend}? | Is the trend of {thing_} {trend}? | Which way does {thing_} {move}? | "
        "Does {thing_} {move} up or down? | Which {thing_} takes {most_of} space? | What takes {most_of} space? | "
        "Which {thing_} needs {most_of} time? | What has {most_of} weight? | Who has {most_of} {things_}? | Which side has {more} {things_}? | "
        "Which has {more} {things_}, the left or the right? | Is the first {thing_} {more} than the second? | "
        "Do {thing_} and {other_} have the same size? | Are both {things_} equally big? | What is the ratio of {thing_} to {other_}? | "
        "What did more: {thing_} or {other_}? | Arrange the {things_} from {most} to last. | {most} {thing_}? | the {most} product",
        {
            "most": "largest | smallest | highest | lowest | most expensive | cheapest | tallest | longest | shortest | heaviest | "
            "best | worst | biggest | greatest | least | maximum | minimum | strongest | weakest | most frequent | oldest | newest | "
            "widest | narrowest | least expensive | fastest | slowest | most popular | dearest | costliest | leading | top | last | "
            "top scoring | brightest | darkest",
            "more": "larger | smaller | higher | lower | more expensive | cheaper | taller | longer | shorter | heavier | better | "
            "worse | bigger | greater | more | less | fewer | older | newer | faster | wider | brighter | darker | closer | stronger",
            "place": "first | second | last | out on top | in last | top | before all others",
            "end": "top | bottom | very top | very bottom | head | tail | end",
            "beats": "leads | tops | exceeds | beats | outdoes | surpasses | trails | lags behind | falls behind | outperforms | outgrows",
            "beat": "exceed | beat | top | surpass | outdo | lag behind | fall behind | match | equal",
            "trend": "rising | falling | growing | shrinking | increasing | decreasing | declining | heading up | heading down | stable",
            "move": "go | move | tend | develop | run | head | point | change",
            "most_of": "the most | the least | more | less | most of the",
        },
    ),
    "count": (
        "How many {things_} {there}? | how many {things_} {there} | Count the {things_} {there}. | {count} of {things_}? | "
        "What is the {count} of {things_} {there}? | I want the {count} of {colour} {things_}. | How many {colour} {things_} {there}? | "
        "Please count every {thing_}. | Can you count the {things_}? | How many people {there}? | How many {things_} or {other_}s {there}? | "
        "How many {things_} {group}? | How many different {things_} {there}? | How many {things_} {do} you {see}? | "
        "How many of the {things_} are {colour}? | how many {colour} {things_}? | {things_}, how many? | number of {colour} {things_} {there} | "
        "What {count} of {things_} {do} you {see}? | Give the {count} of {things_}. | Tell me the {count} of {things_} {there}. | "
        "Please {give} me the {count} of all {things_}. | How many times {do} you {see} {a_thing}? | Are there one, two or three {things_}? | "
        "Is there more than one {thing_}? | Are there any other {things_}, and how many? | How many {group} have {a_thing}? | "
        "How many {things_} has the {whole}? | How many {things_} does the {whole} {contain}? | Find the {count} of {things_}. | "
        "Add up the {things_}. | Count them. | How many? | How many are there? | How many {group} {there}? | What is the {count}? | "
        "The {count} of {things_} you {see} | What {count} of {group} {there}? | How many {things_} are {relation} the {other_}? | "
        "Count {things_} and {other_}s. | Count everything that is {colour}. | Together, how many {things_} and {other_}s {there}? | "
        "{things_} in total? | How many more {things_} fit on the {whole}?",
        {
            "there": "are there | are shown | do you see | can be seen | are in the picture | does it have | are listed | in all | "
            "are visible | are on the table | altogether | are printed | in this picture | on the page | here | in total | you can see",
            "count": "number | count | total number | exact number | tally | sum | figure | amount | total",
            "group": "lines | rows | columns | bars | slices | items | products | entries | pages | stars | men | women | children | "
            "animals | cars | persons | objects | shapes | buttons | fields | positions | articles | goods",
            "do": "do | can | could | would",
            "see": "see | find | recognise | notice | spot | identify | make out",
            "give": "give | tell | send | show",
            "contain": "contain | have | show | list | include | hold",
        },
    ),
    "find": (
        "Where is the {thing_}? | Where are the {things_}? | Find the {thing_}. | Show me the {thing_}. | Locate the {colour} {thing_}. | "
        "Point at the {thing_}. | Where can I see {a_thing}? | Can you see {a_thing}? | Is there {a_thing}? | Is there {a_thing} {relation} "
        "the {other_}? | What is {relation} the {thing_}? | Which object is {relation} the {thing_}? | What colour is the {thing_}? | "
        "Which part shows the {thing_}? | I am looking for {a_thing}. | Search for the {thing_}. | Do you see any {things_}? | "
        "In which corner is the {thing_}? | Where in the {whole} is the {thing_}? | Is the {thing_} {relation} the {other_}? | "
        "Are there {things_} in the {whole}? | Spot the {thing_}. | Highlight the {colour} {thing_}. | Mark the {thing_}. | {thing_}? | "
        "where's the {thing_}? | Does the {whole} show {a_thing}? | What is the {thing_} made of? | What does the {thing_} look like? | "
        "Who is next to the {thing_}? | What is the {colour} thing? | Which {thing_} is {colour}?",
        {},
    ),
    "read": (  # what resembles other kinds and is to be read
        "How many {item} were ordered? | What is the number of the {item}? | Which {item} number is it? | How much does {item} cost? | "
        "What is the {item} number? | Where does it say {item}? | What is the price of the {colour} {item}? | How much is {item}? | "
        "What is written next to {item}? | Read the {item} line. | What does the {item} say? | Who wrote the {item}? | "
        "Which one? | Which? | Which one is it? | Which {thing_}? | Which one do I need? | What? | And the {field}? | "
        "What is the total amount? | What is the total of the {item}? | What is the sum to pay? | What is the total? | the total please | "
        "Give me the total for {item}. | What figure is given for {item}? | What amount was paid? | How much was paid? | "
        "What is the {field}? | What {field} is given? | Give me the {field}. | Tell me the {field}. | Which {field} does it have? | "
        "Please report the {field}. | Find the {field}. | Look up the {field}. | {field}? | Is there {a_field}? | Where is the {field} printed? | "
        "What is the {field} of {item}? | What does the {whole} say about {item}? | Which {field} is on the {whole}? | "
        "How much tax is included? | How much change was given? | When does it start? | At what time is it open? | When was it printed? | "
        "Who is it for? | Who signed it? | Which company is it? | What are the opening hours? | What is the title of the {whole}? | "
        "What is the caption of the {whole}? | What is the heading? | Which words stand at the top of the {whole}? | What is at the top left? | "
        "What is written at the bottom? | What is the last line? | What is the first word? | What is the value of {item} in {name}? | "
        "What value does {item} have for {name}? | How high is {item}? | What is the share of {item}? | What percentage is {item}? | "
        "What does the label {item} mean? | What does the error say? | What is the error message? | What is the problem according to the message? | "
        "Which option is selected? | Is {item} switched on? | What is the description of {item}? | What is the name of the {item}? | "
        "What is the quantity of {item}? | How many {item} did they buy? | How many units of {item} are on the bill? | What count is given for {item}? | "
        "What is the difference due? | What is the balance? | What is the maximum speed allowed? | What is the minimum age? | "
        "What is the order number? | What is the number of the {whole}? | What number is printed {relation} {item}? | What is the special offer? | "
        "What is the missing amount? | What is the top line? | Which {field} is {relation} {item}? | What {field} comes with {item}?",
        {
            "field": "date | time | phone number | address | name | VAT number | price | tax | account number | IBAN | email address | "
            "invoice number | customer | company | reference | weight | postcode | city | street | currency | discount | subtotal | "
            "total | total amount | table number | cashier | receipt number | due date | sender | signature | room number | seat",
            "a_field": "a date | a phone number | an address | a discount | a signature | an email address | a tip | a reference",
        },
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
            made += [(_typed(rng, phrasing.format(**slots(rng))), kind) for _ in range(REPEATS)]
    for kind, (frames, words) in () if held_out else GRAMMAR.items():
        for frame in _split(frames):
            for _ in range(REPEATS):
                filled = {name: rng.choice(_split(choices)) for name, choices in words.items()}
                phrasing = frame.format(**{name: f"{{{name}}}" for name in slots(rng)} | filled)
                if not {_shape(frame), _shape(phrasing)} & _kept_back():
                    made.append((_typed(rng, phrasing.format(**slots(rng))), kind))
    return made


def make_others(seed: int = 0) -> list[tuple[str, str]]:
    """(question, kind) of `OTHER_WORDS`."""
    rng = random.Random(f"other words {seed}")
    return [
        (_typed(rng, phrasing.format(**slots(rng))), kind)
        for kind, phrasings in OTHER_WORDS.items()
        for phrasing in _split(phrasings)
        for _ in range(REPEATS)
    ]


@lru_cache(maxsize=1)
def _kept_back() -> frozenset[str]:
    """The shapes of all phrasings that no training question may have."""
    drawn = {one for kind in PHRASINGS for part in templates(kind, held_out=True) for one in part}
    more = {one for parts in MORE.values() for one in _split(parts[True])}
    others = {one for phrasings in OTHER_WORDS.values() for one in _split(phrasings)}
    return frozenset(_shape(one) for one in drawn | more | others)


def _shape(phrasing: str) -> str:
    return re.sub(r"\{\w+\}", "{}", normalize_phrasing(phrasing))


def _typed(rng: random.Random, asked: str) -> str:
    """At times in small letters and without a mark at its end."""
    return asked if rng.random() < 0.6 else asked.lower().rstrip("?. ")


def fit(questions: list[tuple[str, str]], decay: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[KINDS, BUCKETS]` and bias `[KINDS]` of a logistic regression, all kinds counting alike."""
    given = torch.tensor(np.stack([features(text) for text, _ in questions]), dtype=torch.float32)
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


def test(questions: list[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """(right, all) by kind, with the stored weights. Finding and reading are treated alike, so they count as one."""
    counts = {kind: [0, 0] for kind in KINDS}
    for text, kind in questions:
        found = question_kind(text)
        counts[kind][0] += found == kind or {found, kind} <= {"find", "read"}
        counts[kind][1] += 1
    return {kind: (right, number) for kind, (right, number) in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.question_kinds", description=__doc__)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go (the package)")
    given = parser.parse_args()
    torch.manual_seed(0)
    store(*fit(sorted(set(make_questions(held_out=False)))), given.out)
    print("| kind | phrasings kept back | and with words that are in no training question |\n|---|---|---|")
    first, second = (test(questions) for questions in (make_questions(held_out=True), make_others()))
    for kind in KINDS:
        shown = (f"{right / number:.3f} of {number}" for right, number in (first[kind], second[kind]))
        print(f"| {kind} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
