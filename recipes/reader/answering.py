"""Answers to many questions about many pictures at once, for validation during training.

Pictures are encoded once, whatever the number of questions; keys and values of the picture and of the text are kept, so
a character costs one short step.
"""

import torch
import torch.nn.functional as F

from arr_coc.reader import vocabulary
from recipes.reader.forward import ReaderForward, Rotation, finish, prefix_positions, project, text_positions
from recipes.reader.missing import all_cells

_KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]  # layer by layer
_ROWS = 256  # questions answered side by side


class _Memory:
    """Keys and values of every layer: those of the picture, then those of the text so far."""

    def __init__(self, prefix: _KeysAndValues, pictures: torch.Tensor, room: int):
        self.used = prefix[0][0].shape[2]
        self.keys, self.values = [], []
        for keys, values in prefix:
            self.keys.append(F.pad(keys[pictures], (0, 0, 0, room)))
            self.values.append(F.pad(values[pictures], (0, 0, 0, room)))

    def extend(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the text's new keys and values behind `used`; returns all of the layer's so far."""
        end = self.used + keys.shape[2]
        self.keys[layer][:, :, self.used : end] = keys
        self.values[layer][:, :, self.used : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


def _read_picture(
    forward: ReaderForward, patches: torch.Tensor, cells: torch.Tensor, grid: tuple[int, int]
) -> _KeysAndValues:
    """Keys and values of the pictures, layer by layer."""
    x = forward.prefix(forward.encode(patches, cells, grid[0]))
    rotation = forward.rotation(prefix_positions(cells, grid))
    memory = []
    for layer in forward.language.layers:
        q, k, v = project(layer, x, rotation)
        memory.append((k, v))
        x = finish(layer, x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    return memory


def _step(
    forward: ReaderForward, memory: _Memory, tokens: torch.Tensor, rotation: Rotation, mask: torch.Tensor
) -> torch.Tensor:
    """Logits `[R, V]` behind the last of `tokens` [R, L]."""
    x = forward.language.embed_tokens(tokens)
    for number, layer in enumerate(forward.language.layers):
        q, k, v = project(layer, x, rotation)
        k, v = memory.extend(number, k, v)
        x = finish(layer, x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    memory.used += tokens.shape[1]
    return forward.model.lm_head(forward.language.norm(x[:, -1]))


@torch.no_grad()
def answer(
    forward: ReaderForward,
    patches: torch.Tensor,
    questions: list[list[str]],
    grid: tuple[int, int],
    cells: torch.Tensor | None = None,
    longest: int = 130,
) -> list[list[str]]:
    """Answers to `questions[i]` about picture i of `patches` [B, M, 4, 588], all of one `grid`.

    `cells` [B, M] says where the patches stand when some are missing; without it they are the whole picture.
    """
    device = patches.device
    cells = all_cells(len(patches), grid[0] * grid[1], device) if cells is None else cells
    prefix = _read_picture(forward, patches, cells, grid)
    asked = [(number, text) for number, texts in enumerate(questions) for text in texts]
    answers: list[str] = []
    for start in range(0, len(asked), _ROWS):
        rows = asked[start : start + _ROWS]
        answers += _answer_rows(
            forward, prefix, torch.tensor([n for n, _ in rows], device=device), [t for _, t in rows], grid, longest
        )
    found = iter(answers)
    return [[next(found) for _ in texts] for texts in questions]


def _answer_rows(
    forward: ReaderForward,
    prefix: _KeysAndValues,
    pictures: torch.Tensor,
    texts: list[str],
    grid: tuple[int, int],
    longest: int,
) -> list[str]:
    device = pictures.device
    prompts = [[*vocabulary.encode(text), vocabulary.ASSISTANT] for text in texts]
    width = max(map(len, prompts))
    padding = torch.tensor(
        [width - len(prompt) for prompt in prompts], device=device
    )  # on the left, so that answers start together
    tokens = torch.tensor([[vocabulary.PAD] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    memory = _Memory(prefix, pictures, width + longest)
    count, columns = memory.used, torch.arange(width + longest, device=device)
    real = torch.cat(
        [torch.ones(len(texts), count, dtype=torch.bool, device=device), columns >= padding[:, None]], 1
    )  # [R, P + width + longest]
    place = (columns[:width] - padding[:, None]).clamp(min=0)
    earlier = torch.ones(width, count + width, dtype=torch.bool, device=device).tril(count)
    logits = _step(
        forward,
        memory,
        tokens,
        forward.rotation(text_positions(place, grid)),
        (earlier & real[:, None, : count + width])[:, None],
    )
    written, done = [], torch.zeros(len(texts), dtype=torch.bool, device=device)
    for number in range(longest):
        latest = torch.where(done, vocabulary.PAD, logits.argmax(-1))
        written.append(latest)
        done |= latest == vocabulary.END
        if number % 8 == 7 and done.all():  # asking the device every time would make it wait
            break
        place = (width + number - padding)[:, None]
        mask = real[:, None, None, : memory.used + 1]
        logits = _step(forward, memory, latest[:, None], forward.rotation(text_positions(place, grid)), mask)
    return [vocabulary.decode(row) for row in torch.stack(written, 1).tolist()]
