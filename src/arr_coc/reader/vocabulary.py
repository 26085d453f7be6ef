"""The reader's alphabet: one token per printable ASCII character, and a few special ones.

A character's token id is its ASCII code, so a target built from text needs no look-up table. The ids below 32, which no
printable character uses, carry the special tokens. Characters outside ASCII are first reduced to their closest ASCII
form (`é` to `e`); what cannot be reduced becomes the unknown token.
"""

import unicodedata
from collections.abc import Sequence

SPECIAL_TOKENS: dict[str, int] = {
    "<|pad|>": 0,
    "<|end|>": 1,
    "<|user|>": 2,
    "<|assistant|>": 3,
    "<|vision_start|>": 4,
    "<|vision_end|>": 5,
    "<|image_pad|>": 6,
    "<|video_pad|>": 7,
    "<|unknown|>": 8,
    "<|system|>": 9,
}
NEWLINE = ord("\n")
FIRST_CHARACTER, LAST_CHARACTER = 32, 126
VOCABULARY_SIZE = 128

PAD = SPECIAL_TOKENS["<|pad|>"]
END = SPECIAL_TOKENS["<|end|>"]
USER = SPECIAL_TOKENS["<|user|>"]
ASSISTANT = SPECIAL_TOKENS["<|assistant|>"]
VISION_START = SPECIAL_TOKENS["<|vision_start|>"]
VISION_END = SPECIAL_TOKENS["<|vision_end|>"]
IMAGE = SPECIAL_TOKENS["<|image_pad|>"]
VIDEO = SPECIAL_TOKENS["<|video_pad|>"]
UNKNOWN = SPECIAL_TOKENS["<|unknown|>"]

# The shipped chat template puts pictures first whatever the order of the message's parts, because the reader was only
# ever asked about a picture that it has already seen.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}<|assistant|>"
    "{%- elif message['role'] == 'user' -%}<|user|>"
    "{%- else -%}<|system|>{%- endif -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}"
    "{%- for part in message['content'] if part['type'] in ('image', 'image_url') -%}"
    "<|vision_start|><|image_pad|><|vision_end|>{%- endfor -%}"
    "{%- for part in message['content'] if part['type'] == 'video' -%}"
    "<|vision_start|><|video_pad|><|vision_end|>{%- endfor -%}"
    "{%- for part in message['content'] if part['type'] == 'text' -%}{{ part['text'] }}{%- endfor -%}"
    "{%- endif -%}"
    "{%- if message['role'] == 'assistant' -%}<|end|>{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def vocabulary() -> dict[str, int]:
    """Every token and its id, all ids from 0 to `VOCABULARY_SIZE - 1` taken."""
    tokens = dict(SPECIAL_TOKENS)
    tokens["\n"] = NEWLINE
    tokens |= {chr(code): code for code in range(FIRST_CHARACTER, LAST_CHARACTER + 1)}
    free = set(range(VOCABULARY_SIZE)) - set(tokens.values())
    return tokens | {f"<|unused_{code}|>": code for code in sorted(free)}


def to_ascii(text: str) -> str:
    """Reduce accents and compatibility forms, as the shipped tokenizer's normalizer does."""
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def encode(text: str) -> list[int]:
    """Token ids of plain text without special tokens."""
    return [
        code if FIRST_CHARACTER <= code <= LAST_CHARACTER or code == NEWLINE else UNKNOWN
        for code in map(ord, to_ascii(text))
    ]


def decode(ids: Sequence[int]) -> str:
    """Text of token ids up to the first end token, special tokens left out."""
    characters = []
    for code in ids:
        if code == END:
            break
        if FIRST_CHARACTER <= code <= LAST_CHARACTER or code == NEWLINE:
            characters.append(chr(code))
    return "".join(characters)
