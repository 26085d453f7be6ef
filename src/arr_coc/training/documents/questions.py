"""How questions are put: phrasings to train with, and phrasings kept for measuring.

Half of the time a question is put in its plainest form, the first of its list. The held-out phrasings are never used in
training; they show whether the reader understands a question or only recognises it.
"""

import random

NOT_FOUND = "not found"

TRAINING: dict[str, tuple[str, ...]] = {
    "total": (
        "What is the total amount?",
        "What is the total?",
        "How much is the total?",
        "total?",
        "Total amount",
        "How much was paid in total?",
        "What does it come to?",
        "How much was paid?",
        "What has to be paid?",
        "amount to pay?",
        "What did it cost in all?",
        "What is the sum?",
        "How much is it?",
        "Tell me the total amount.",
        "What is the grand total?",
    ),
    "date": (
        "What is the date on the receipt?",
        "What is the date?",
        "date?",
        "When was it issued?",
        "On which day was this issued?",
        "What date is printed on it?",
        "Date of the receipt",
        "When was it bought?",
        "Which day was it?",
        "Tell me the date.",
    ),
    "company": (
        "What is the name of the company?",
        "company?",
        "Who issued it?",
        "Which company is it from?",
        "What is the name of the store?",
        "Name of the shop",
        "Which shop is this?",
        "Who sold this?",
        "seller?",
        "vendor name",
        "What is the shop called?",
        "Which business issued this?",
        "Tell me the company.",
    ),
    "address": (
        "What is the address?",
        "address?",
        "Where is the store?",
        "What is the address of the company?",
        "Where is it located?",
        "Address of the shop",
        "Which address is printed on it?",
        "Tell me the address.",
        "Where was it bought?",
    ),
    "price": (
        "What is the price of {item}?",
        "price of {item}?",
        "How much is {item}?",
        "What does {item} cost?",
        "Tell me what {item} costs.",
        "{item}: price?",
    ),
    "after": ('What comes after "{prefix}"?', "Read on after {prefix}", "after {prefix}?", "Continue: {prefix}"),
    "place": (
        "What is written at row {row}, column {column}?",
        "Read row {row} column {column}",
        "read {row},{column}",
    ),
    "field": (
        "What is the {key}?",
        "{key}?",
        "What does it say for {key}?",
        "Give the {key}",
        "Which {key} is given?",
        "Read the {key}.",
        "Please tell me the {key}",
    ),
    "table": (
        "What is the {column} of {row}?",
        "{column} of {row}?",
        "What is {row}'s {column}?",
        "{row}: {column}?",
        "Which {column} does {row} have?",
        "Tell me the {column} of {row}.",
    ),
    "notice": (
        "What does the {which} text say?",
        "Read the {which} text",
        "What is written in {which}?",
        "{which} text?",
        "Tell me what is written in {which}.",
    ),
    "sign": ("What does the sign say?", "What is written on it?", "Read the text", "What does it say?"),
    "heading": ("What is the heading?", "heading?", "What is the title?", "What does the largest text say?"),
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    "total": ("How much do I have to pay?", "Please tell me the total."),
    "date": ("Which date does the receipt show?", "When did this take place?"),
    "company": ("Who is the seller?", "What is the company called?"),
    "address": ("At which address is the shop?", "Please give me the address."),
    "price": ("Tell me the price of {item}.", "What is charged for {item}?"),
    "after": ("What follows {prefix}?",),
    "place": ("Which text is at row {row} and column {column}?",),
    "field": ("Tell me the {key}.", "Find the {key}."),
    "table": ("Tell me the {column} for {row}.",),
    "notice": ("Tell me what the {which} text says.",),
    "sign": ("Tell me what the sign says.",),
    "heading": ("Tell me the heading.",),
}


def ask(rng: random.Random, kind: str, held_out: bool = False, **slots: object) -> str:
    """A question of `kind`, with its slots (`item`, `key`, ...) filled."""
    phrasings = HELD_OUT[kind] if held_out else TRAINING[kind]
    phrasing = phrasings[0] if rng.random() < 0.5 else rng.choice(phrasings)
    return phrasing.format(**slots)
