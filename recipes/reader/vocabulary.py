"""The reader's vocabulary: one token per printable ASCII character, and a few special tokens.

A character's token id is its ASCII code; ids below 32 are the special tokens. Other characters are first reduced to
their closest ASCII form (`é` to `e`); what cannot be reduced becomes the unknown token.
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

PAD, END, USER, ASSISTANT, VISION_START, VISION_END, IMAGE, VIDEO, UNKNOWN, _SYSTEM = SPECIAL_TOKENS.values()

# Pictures come first, whatever the order of the message's parts: the reader was trained that way.
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
    """Every token and its id; all ids from 0 to `VOCABULARY_SIZE - 1` are used."""
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
    """The text of token ids up to the first end token, without special tokens."""
    characters = []
    for code in ids:
        if code == END:
            break
        if FIRST_CHARACTER <= code <= LAST_CHARACTER or code == NEWLINE:
            characters.append(chr(code))
    return "".join(characters)
