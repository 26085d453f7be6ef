"""Questions about documents: their phrasings, and the questions that any page with text allows.

Half of the time a question has its `PLAIN` form. Else it is one of `QUESTIONS`, or one of `THINGS` in one of `FRAMES`.
`HELD_OUT` phrasings are never used in training. They test whether the reader understands a question or only recognises it.
"""

import random
from functools import lru_cache

from arr_coc.training.documents.page import Document, PageQuestion

NOT_FOUND = "not in the picture"
LONGEST_READING = 60  # characters of a line that is asked for


def _split(phrasings: str) -> tuple[str, ...]:
    return tuple(phrasings.split(" | "))


PLAIN: dict[str, str] = {
    "total": "What is the total amount?",
    "date": "What is the date on the receipt?",
    "company": "What is the name of the company?",
    "address": "What is the address?",
    "price": "What is the price of {item}?",
    "after": 'What comes after "{prefix}"?',
    "place": "What is written at row {row}, column {column}?",
    "field": "What is the {key}?",
    "table": "What is the {column} of {row}?",
    "notice": "What does the {which} text say?",
    "colour": 'What colour is "{words}"?',
    "sign": "What does the sign say?",
    "heading": "What is the heading?",
}

FRAMES = _split(
    "What is the {thing}? | What's the {thing}? | {thing}? | {thing} | the {thing}? | Give me the {thing}. | "
    "Give the {thing}. | Can you tell me the {thing}? | Could you read the {thing}? | Please give the {thing}. | "
    "Please read the {thing}. | Read the {thing}. | Read out the {thing}. | I need the {thing}. | "
    "I want to know the {thing}. | I am looking for the {thing}. | What does it say for the {thing}? | "
    "Which {thing} is printed? | Which {thing} is given? | What {thing} is shown? | Show me the {thing}. | "
    "Look up the {thing}. | Extract the {thing}. | Name the {thing}. | Write down the {thing}. | "
    "Do you see the {thing}? | Where is the {thing}, and what does it say? | What is the {thing} here? | "
    "What is the {thing} on this page? | What was the {thing}? | Say the {thing} | {thing}, please"
)

THINGS: dict[str, tuple[str, ...]] = {
    "total": _split(
        "total | total amount | grand total | sum | total sum | amount due | amount paid | amount to pay | "
        "amount payable | final amount | final total | total price | total cost | total to pay | bill total | "
        "total of the bill | total on the receipt | whole amount | price in all"
    ),
    "date": _split(
        "date | date of the receipt | receipt date | date of purchase | purchase date | date of the sale | day | "
        "day of the purchase | issue date | date of issue | invoice date | date on it | transaction date | "
        "printed date"
    ),
    "company": _split(
        "company | company name | name of the company | shop | shop name | name of the shop | store | "
        "store name | name of the store | seller | seller's name | vendor | vendor name | merchant | "
        "name of the merchant | business | name of the business | name of the firm | issuer"
    ),
    "address": _split(
        "address | full address | shop's address | store address | address of the shop | address of the store | "
        "address of the company | company's address | seller's address | postal address | location | "
        "location of the shop | printed address | street address"
    ),
    "heading": _split("heading | title | headline | heading of the page | text at the top | largest text"),
}

QUESTIONS: dict[str, tuple[str, ...]] = {
    "total": _split(
        "How much is the total? | How much was paid? | How much was paid in total? | What does it come to? | "
        "What has to be paid? | What did it cost in all? | How much is it? | How much is it altogether? | "
        "How much did I pay? | How much did they pay? | How much did the customer pay? | How much must I pay? | "
        "How much should be paid? | How much needs to be paid? | How much do they have to pay? | "
        "How much does the customer have to pay? | How much was spent? | How much money was spent here? | "
        "How much is the bill? | How high is the bill? | How much is owed? | What do I owe? | "
        "How much did everything cost? | How much does all of it cost? | How much do I owe in total? | "
        "How much did it cost? | What did the customer pay in the end? | What is the sum of everything? | "
        "How much is due? | How much will I be charged?"
    ),
    "date": _split(
        "When was it issued? | On which day was this issued? | What date is printed on it? | "
        "When was it bought? | Which day was it? | When was this purchase made? | "
        "When was the receipt printed? | On what date was this bought? | When was this? | "
        "When did the customer buy this? | When did this happen? | What day is on the receipt? | "
        "Which date is on the receipt? | When was it paid? | What date does the invoice have? | "
        "From which day is this? | How is it dated?"
    ),
    "company": _split(
        "Who issued it? | Which company is it from? | Which shop is this? | Who sold this? | "
        "What is the shop called? | What is the store called? | Which business issued this? | "
        "Which company issued the receipt? | From which shop is this receipt? | Who is the vendor? | "
        "Who is the merchant? | Who is the issuer? | In which shop was it bought? | What is this shop's name? | "
        "Who printed this receipt? | Where did the customer shop? | Who was paid? | Whose receipt is this? | "
        "What company is this? | How is the shop called?"
    ),
    "address": _split(
        "Where is the store? | Where is the shop? | Where is it located? | Which address is printed on it? | "
        "Where was it bought? | Where is the company located? | Where can the shop be found? | "
        "In which street is the shop? | What address does the shop have? | Which address is on the receipt? | "
        "Where does the seller sit? | Where is this place? | How do I find the shop? | "
        "What is the shop's full address?"
    ),
    "price": _split(
        "price of {item}? | How much is {item}? | What does {item} cost? | Tell me what {item} costs. | "
        "{item}: price? | How much does {item} cost? | How much was {item}? | Give me the price of {item}. | "
        "What did {item} cost? | What is the amount for {item}? | What was paid for {item}? | {item}? | "
        "How much did they pay for {item}? | Price for {item}"
    ),
    "after": _split(
        "Read on after {prefix} | after {prefix}? | Continue: {prefix} | What is written after {prefix}? | "
        'What stands behind {prefix}? | Go on from {prefix} | Complete the line "{prefix}" | '
        "How does {prefix} go on? | What comes next to {prefix}? | What is printed right after {prefix}? | "
        "Which text comes behind {prefix}? | Which words follow on {prefix}? | "
        "Read the rest of the line that starts with {prefix} | Finish {prefix} | "
        "What else does the line with {prefix} say?"
    ),
    "place": _split(
        "Read row {row} column {column} | read {row},{column} | What is at row {row}, column {column}? | "
        "Read the text at row {row}, column {column}. | What does it say in row {row}, column {column}? | "
        "row {row}, column {column}? | Text at column {column}, row {row}? | "
        "Which words are at row {row}, column {column}? | What stands in row {row} and column {column}?"
    ),
    "field": _split(
        "{key}? | {key} | What does it say for {key}? | Give the {key} | Give me the {key}. | "
        "Which {key} is given? | Read the {key}. | Tell me the {key}. | What is written for {key}? | "
        "Look up the {key}. | I need the {key}. | What {key} is shown? | Can you read the {key}? | "
        "Extract the {key}. | What stands behind {key}? | What's the {key}?"
    ),
    "table": _split(
        "{column} of {row}? | What is {row}'s {column}? | {row}: {column}? | Which {column} does {row} have? | "
        "Tell me the {column} of {row}. | What is the {column} for {row}? | {column} for {row}? | "
        "Give me the {column} of {row}. | Look up {row} in column {column}. | What {column} does {row} have? | "
        "For {row}, what is the {column}? | {row}, {column}"
    ),
    "notice": _split(
        "Read the {which} text | What is written in {which}? | {which} text? | "
        "Tell me what is written in {which}. | What does it say in {which}? | What do the {which} letters say? | "
        "Which words are {which}? | Give me the text in {which}. | Read what is {which}. | {which}? | "
        "What is the {which} text?"
    ),
    "colour": _split(
        "Which colour is {words}? | In which colour is {words} written? | What color is {words}? | colour of {words}?"
    ),
    "sign": _split(
        "What is written on it? | Read the text | What does it say? | Read the sign. | What is written here? | "
        "What is on the sign? | What does the notice say? | text?"
    ),
    "heading": _split("What does the largest text say? | How is it titled? | What is it called?"),
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    "total": ("How much do I have to pay?", "Please tell me the total.", "What amount is due?", "Tell me the sum."),
    "date": ("Which date does the receipt show?", "When did this take place?", "Tell me the purchase date."),
    "company": ("Who is the seller?", "What is the company called?", "Tell me the name of the shop."),
    "address": ("At which address is the shop?", "Please give me the address.", "Tell me the store's address."),
    "price": ("Tell me the price of {item}.", "What is charged for {item}?"),
    "after": ("What follows {prefix}?",),
    "place": ("Which text is at row {row} and column {column}?",),
    "field": ("Find the {key}.", "Let me know the {key}."),
    "table": ("Tell me the {column} for {row}.",),
    "notice": ("Tell me what the {which} text says.",),
    "colour": ("Tell me the colour of {words}.",),
    "sign": ("Tell me what the sign says.",),
    "heading": ("Tell me the heading.",),
}


def normalize_phrasing(phrasing: str) -> str:
    """The phrasing without case, punctuation and "please"."""
    letters = "".join(c for c in phrasing.lower() if c.isalnum() or c in " {}_'")
    return " ".join(word for word in letters.split() if word != "please")


@lru_cache(maxsize=1)
def held_out_phrasings() -> frozenset[str]:
    """The held-out phrasings, normalized. No training question may normalize to one of them."""
    return frozenset(normalize_phrasing(phrasing) for phrasings in HELD_OUT.values() for phrasing in phrasings)


def _informal(rng: random.Random, phrasing: str) -> str:
    """The phrasing in lower case, without its last punctuation mark, in capitals, or with "Please"."""
    style = rng.random()
    if style < 0.3:
        return phrasing.lower()
    if style < 0.6:
        return phrasing.rstrip("?.")
    if style < 0.75:
        return phrasing.rstrip("?.").lower()
    if style < 0.9:
        return f"Please: {phrasing}"
    return phrasing.upper() if "{" not in phrasing else phrasing


def _random_phrasing(rng: random.Random, kind: str) -> str:
    """Any training phrasing; half of the time a thing in a frame, for kinds that have `THINGS`."""
    if kind in THINGS and rng.random() < 0.5:
        frame = rng.choice(FRAMES).replace("{thing}", rng.choice(THINGS[kind]))
        phrasing = frame[0].upper() + frame[1:] if rng.random() < 0.5 else frame
    else:
        phrasing = rng.choice(QUESTIONS[kind])
    return _informal(rng, phrasing) if rng.random() < 0.2 else phrasing


def phrase(rng: random.Random, kind: str, held_out: bool = False, **slots: object) -> str:
    """A question of `kind`, with its slots (`item`, `key`, ...) filled."""
    if held_out:
        return rng.choice(HELD_OUT[kind]).format(**slots)
    phrasing = PLAIN[kind]
    if rng.random() < 0.5:
        phrasing = _random_phrasing(rng, kind)
        while normalize_phrasing(phrasing) in held_out_phrasings():
            phrasing = _random_phrasing(rng, kind)
    return phrasing.format(**slots)


def ask(
    rng: random.Random, kind: str, answer: str, evidence: tuple[int, ...] = (), held_out: bool = False, **slots: object
) -> PageQuestion:
    """A question of `kind` with its answer; its slots are kept, so that it can be phrased differently."""
    filled = tuple((name, str(value)) for name, value in slots.items())
    return PageQuestion(kind, phrase(rng, kind, held_out, **slots), answer, evidence, slots=filled)


def _after(rng: random.Random, texts: list[str], held_out: bool) -> PageQuestion | None:
    index = rng.randrange(len(texts))
    text = texts[index]
    if not 8 <= len(text) <= LONGEST_READING or not any(map(str.isalnum, text)):
        return None
    cut = rng.randint(3, min(10, len(text) - 3))
    prefix, rest = text[:cut].strip(), text[cut:].strip()
    if len(prefix) < 3 or not rest or sum(prefix in other for other in texts) > 1:
        return None
    return PageQuestion("after", phrase(rng, "after", held_out, prefix=prefix), rest, (index,))


def _place(rng: random.Random, texts: list[str], starts: list[tuple[int, int]], held_out: bool) -> PageQuestion | None:
    index = rng.randrange(len(texts))
    if (
        not any(map(str.isalnum, texts[index][:LONGEST_READING]))
        or len(texts[index]) > LONGEST_READING
        or starts.count(starts[index]) > 1
        or min(starts[index]) < 0
    ):
        return None
    row, column = starts[index]
    return PageQuestion("place", phrase(rng, "place", held_out, row=row, column=column), texts[index], (index,))


def reading_questions(
    rng: random.Random, document: Document, starts: list[tuple[int, int]], count: int, held_out: bool = False
) -> list[PageQuestion]:
    """Up to `count` questions: what follows a prefix, or what is written at a place.

    `starts` are the cells `(row, column)` in which the lines begin.
    """
    if not document.lines:
        return []
    texts = [line.text.upper() if document.capitals else line.text for line in document.lines]
    questions = []
    for _ in range(count):
        question = _after(rng, texts, held_out) if rng.random() < 0.35 else _place(rng, texts, starts, held_out)
        if question is not None:
            questions.append(question)
    return questions
