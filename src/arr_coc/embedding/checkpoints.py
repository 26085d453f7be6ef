"""CLIP, SigLIP and SigLIP 2 checkpoints, from a folder or the hub, as encoders.

Notable:
- torchvision is not needed: pictures are scaled and normalised here, by the checkpoint's own mean and deviation;
- a checkpoint that lacks weights is refused, where transformers would fill them with noise and a warning;
- questions become captions ("a photo of stop sign"), because that is what these models have read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding.encoder import fingerprint
from arr_coc.embedding.question import subject
from arr_coc.embedding.towers import TOWERS, Tower
from arr_coc.embedding.windows import Windowed
from arr_coc.errors import EncoderError, first_line

CAPTION = "a photo of {}"
EXPECTED = "expected 'labels', 'open_clip:FOLDER', 'vlm:NAME', or the folder or hub id of a CLIP, SigLIP or SigLIP 2 checkpoint"


class Contrastive(Windowed):
    """A tower and its tokenizer."""

    def __init__(
        self, tower: Tower, tokenizer: Any, mean: list[float], deviation: list[float], device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        """`mean` and `deviation` of each colour, by which pixels in [0, 1] are normalised."""
        self.name, self.width, self.cell, self.side = tower.kind, tower.width, tower.cell, tower.side
        self.device, self.dtype = device, dtype
        self.tower, self.tokenizer = tower, tokenizer
        settings = (tower.kind, tower.path, tower.side, mean, deviation, CAPTION, *_behaviour(tower.model.config))
        self._identity = f"{tower.kind}-{fingerprint(tower.model.state_dict(), settings)}"
        tower.model.eval().to(device, dtype)
        self._mean, self._deviation = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (mean, deviation))
        self._longest = int(tower.model.config.text_config.max_position_embeddings)

    @property
    def identity(self) -> str:
        return self._identity

    def look(self, pictures: torch.Tensor) -> torch.Tensor:
        rows, columns = pictures.shape[2] // self.cell, pictures.shape[3] // self.cell
        places = self.tower.look(((pictures - self._mean) / self._deviation).to(self.dtype))
        return places.transpose(1, 2).unflatten(2, (rows, columns))

    def embed(self, questions: list[str]) -> torch.Tensor:
        words = self.tokenizer(
            [CAPTION.format(subject(question)) for question in questions],
            padding=self.tower.padding, truncation=True, max_length=self._longest, return_tensors="pt",
        )  # fmt: skip
        given = {name: words[name].to(self.device) for name in ("input_ids", "attention_mask") if name in words}
        return self.tower.text(given)


def open_checkpoint(name: str, device: torch.device, dtype: torch.dtype) -> Contrastive:
    """The encoder of a folder or hub id."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    folder = Path(name).expanduser()
    there = bool(name) and folder.is_dir()
    if not there and (folder.exists() or len(folder.parts) != 2 or name.startswith((".", "/", "~"))):
        raise EncoderError(f"there is no encoder {name!r}: {EXPECTED}")
    place = folder if there else name
    try:
        kind = AutoConfig.from_pretrained(place).model_type
        if kind not in TOWERS:
            raise EncoderError(f"{name!r} is a model of the type {kind!r}, which is no encoder here: {EXPECTED}")
        model, report = AutoModel.from_pretrained(place, dtype="auto", output_loading_info=True)
        if report["missing_keys"]:
            raise EncoderError(
                f"the checkpoint {name!r} lacks {len(report['missing_keys'])} of its weights, "
                f"e.g. {min(report['missing_keys'])}: get it anew"
            )
        tokenizer = AutoTokenizer.from_pretrained(place)
        mean, deviation = _normalisation(place)
    except EncoderError:
        raise
    except Exception as error:  # broken files, missing packages and missing networks are reported in many ways
        raise EncoderError(f"cannot load the encoder {name!r}: {first_line(error)}") from error
    return Contrastive(TOWERS[kind](model), tokenizer, mean, deviation, device, dtype)


def _behaviour(config: Any) -> list[object]:
    """What a model's weights do not say about how they are used."""
    return [
        getattr(part, name)
        for part in (config.vision_config, config.text_config)
        for name in ("hidden_act", "layer_norm_eps", "num_attention_heads")
    ]


def _normalisation(place: str | Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of the colours, from the checkpoint's `preprocessor_config.json`."""
    from transformers import ImageProcessingMixin

    settings, _ = ImageProcessingMixin.get_image_processor_dict(str(place))
    return list(settings["image_mean"]), list(settings["image_std"])
