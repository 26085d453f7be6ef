"""Sentences as vectors: all-MiniLM-L6-v2, a small BERT whose word vectors are averaged, 384 dimensions."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from arr_coc.embedding.encoder import fingerprint, unit
from arr_coc.errors import EncoderError, first_line

LONGEST = 256  # tokens that the model was made for
BATCH = 64


class Sentences:
    """A sentence encoder from a folder with `config.json`, `model.safetensors` and `tokenizer.json`."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel

        try:
            config = BertConfig.from_json_file(folder / "config.json")
            stored = load_file(folder / "model.safetensors")
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.model = BertModel(config, add_pooling_layer=False).eval()
            wanted = self.model.state_dict().keys()
            self.model.load_state_dict({name: tensor for name, tensor in stored.items() if name in wanted})
        except Exception as error:  # broken files are reported in many ways
            raise EncoderError(f"expected a sentence encoder in {str(folder)!r}: {first_line(error)}") from error
        self.stored = fingerprint(stored)  # the weights as they came
        self.width = int(config.hidden_size)
        self.model.to(device)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Texts to vectors of length 1: float32 `[T, 384]`."""
        ids = [encoded.ids for encoded in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))  # little padding
        out = torch.empty(len(ids), self.width, device=self.model.device)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            longest = len(ids[part[-1]])
            rows = torch.stack([F.pad(torch.tensor(ids[n]), (0, longest - len(ids[n]))) for n in part])
            lengths = torch.tensor([len(ids[n]) for n in part])
            mask = (torch.arange(longest)[None] < lengths[:, None]).to(out.device)
            hidden = self.model(input_ids=rows.to(out.device), attention_mask=mask.long()).last_hidden_state
            weights = mask[..., None].float()
            out[part] = unit((hidden * weights).sum(1) / weights.sum(1), dim=1)
        return out
