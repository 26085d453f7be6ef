"""Pictures and text to model inputs, by the model's own processor, in two steps.

Pictures go through the image processor once. Each question after that needs only the chat template and the tokenizer.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.adapters.base import Adapter
from arr_coc.devices import to_device
from arr_coc.errors import ModelError, PromptError, first_line

Message = Mapping[str, Any]
TOKEN_COUNTS = "image_token_counts"  # among the tensors of `VisionInputs`: the image tokens of each picture


@dataclass(frozen=True, eq=False)
class VisionInputs:
    """The processed pictures of a batch, and the text that replaces the placeholder of each."""

    tensors: dict[str, Any]  # pixel values, grids
    texts: dict[str, list[str]] = field(default_factory=dict)  # kind -> replacement of each placeholder, in order


@dataclass(frozen=True, eq=False)
class ResizedPictures:
    """Pictures as a Qwen processor resized them, in 8 bits, in the place of its `pixel_values`.

    `read` makes the patches that are asked for, bit for bit those of the processor: where a quarter of the patches is encoded,
    three quarters are never normalised, and only a quarter travels to the device, a byte each value.
    """

    pictures: tuple[torch.Tensor, ...]  # uint8 [3, H, W] each
    table: torch.Tensor  # [3 * 256] what the processor makes of each value of each colour
    patch: int  # px
    merge: int  # patches along a side of a group
    frames: int  # how often each patch is repeated, as the frames of a still picture

    def read(self, rows: torch.Tensor | None, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The patches `rows` `[P]` (None: all) in the processor's order: `[P, 3 * frames * patch^2]`."""
        parts, start = [], 0
        for picture in self.pictures:
            high, wide = (side // self.patch for side in picture.shape[1:])
            grid = picture.view(3, high, self.patch, wide, self.patch).permute(1, 3, 0, 2, 4)  # [high, wide, 3, p, p]
            mine = torch.arange(high * wide)
            if rows is not None:
                mine = rows[(rows >= start) & (rows < start + high * wide)] - start
            group, inner = mine // self.merge**2, mine % self.merge**2
            down = group // (wide // self.merge) * self.merge + inner // self.merge
            across = group % (wide // self.merge) * self.merge + inner % self.merge
            parts.append(grid[down, across])
            start += high * wide
        values = to_device(torch.cat(parts), device).int()
        values += torch.arange(0, 768, 256, dtype=torch.int32, device=device)[:, None, None]
        normal = to_device(self.table, device).to(dtype).index_select(0, values.flatten()).view(-1, 3, 1, self.patch**2)
        return normal.expand(-1, -1, self.frames, -1).reshape(len(values), -1)


def read_patches(
    pixels: torch.Tensor | ResizedPictures, rows: torch.Tensor | None, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Patches `rows` `[P]` (None: all) of a processor's pixel values, on a device: only these travel there."""
    if isinstance(pixels, ResizedPictures):
        return pixels.read(rows, device, dtype)
    return to_device((pixels if rows is None else pixels[rows.to(pixels.device)]).to(dtype), device)


def _resizing(image_processor: Any, resized: list[torch.Tensor]) -> Any:
    """A copy of a Qwen image processor that only resizes: pictures go to `resized`, and no patches are made."""
    stock = type(image_processor)

    class Resizing(stock):  # type: ignore[misc,valid-type]
        def _preprocess(self, images: Any, do_resize: bool, size: Any, resample: Any, **options: Any) -> Any:
            from transformers import BatchFeature

            patch, merge, grids = options["patch_size"], options["merge_size"], []
            for image in images:
                made = self.resize(image, size=size, resample=resample, factor=patch * merge) if do_resize else image
                if made.dtype != np.uint8:
                    raise TypeError(f"expected 8-bit pictures, got {made.dtype}")
                resized.append(torch.from_numpy(np.ascontiguousarray(made)))
                grids.append([1, made.shape[1] // patch, made.shape[2] // patch])
            data = {"pixel_values": np.zeros((0, 1), np.float32), "image_grid_thw": np.array(grids, dtype=np.int64)}
            return BatchFeature(data=data, tensor_type=options["return_tensors"])

    other = copy.copy(image_processor)
    other.__class__ = Resizing
    return other


def _normalised(image_processor: Any) -> torch.Tensor:
    """What an image processor makes of each 8-bit value of each colour: `[3 * 256]`."""
    values = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), (3, 16, 16))
    if image_processor.do_rescale:
        values = image_processor.rescale(values, image_processor.rescale_factor)
    if image_processor.do_normalize:
        values = image_processor.normalize(values, image_processor.image_mean, image_processor.image_std)
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).flatten()


class PromptProcessor:
    """A model's processor: image processor, chat template and tokenizer."""

    def __init__(self, processor: Any, kinds: Sequence[str] = ("image", "video"), by_row: bool = False) -> None:
        """`kinds`: the kinds of visuals that the model takes. `by_row`: the processor takes each row's images as a list."""
        self.processor = processor
        self.by_row = by_row
        self.tokenizer: Any = getattr(processor, "tokenizer", None)
        if self.tokenizer is None or not callable(processor):
            raise PromptError(f"expected the model's processor, got {type(processor).__name__}")
        self.placeholders = {
            kind: token for kind in kinds if (token := getattr(processor, f"{kind}_token", None)) is not None
        }
        self.units = dict(self.placeholders)  # kind -> a placeholder with the tokens that must be around it
        self.fillers: dict[str, str] = {}  # kind -> the token that a picture's placeholder is replaced by
        self.ending = ""  # what the processor itself adds to every prompt
        self.late_patches = False  # whether the adapter reads patches from resized pictures

    def check(self, adapter: Adapter) -> None:
        """Raise where this is the processor of another model."""
        classes = [kind for kind in type(self.processor).__mro__ if kind.__module__.startswith("transformers.models.")]
        if classes and adapter.processor and adapter.processor not in {kind.__name__ for kind in classes}:
            raise ModelError(f"expected the {adapter.processor} of this model, got {classes[0].__name__}")
        self.ending = adapter.prompt_ending(self.tokenizer)
        kind_of = type(getattr(self.processor, "image_processor", None)).__name__
        self.late_patches = adapter.late_patches and kind_of == "Qwen2VLImageProcessorPil"
        for kind, token in self.placeholders.items():
            if adapter.framed:
                start, end = (getattr(self.processor, f"{kind}_{side}_token") for side in ("start", "end"))
                self.units[kind] = f"{start}{token}{end}"
            self.fillers[kind] = str(self.tokenizer.convert_ids_to_tokens(adapter.token_id(kind)))
            if adapter.other_placeholder:
                continue
            theirs, ours = self.tokenizer.convert_tokens_to_ids(token), adapter.token_id(kind)
            if theirs != ours:
                raise ModelError(
                    f"expected a processor whose {kind} token is number {ours}, got one whose {token!r} is {theirs}"
                )

    def process(self, images: Sequence[Sequence[Any]], videos: Sequence[Sequence[Any]], fps: float) -> VisionInputs:
        """Run every row's images and videos (frames, `fps` a second) through the processor."""
        flat = {"images": [i for row in images for i in row], "videos": [v for row in videos for v in row]}
        if not any(flat.values()):
            return VisionInputs({})
        for kind in ("image", "video"):
            if flat[f"{kind}s"] and kind not in self.placeholders:
                hint = ": pass the frames as images" if kind == "video" else ""
                raise PromptError(f"expected no {kind}s for {type(self.processor).__name__}, got some{hint}")
        if flat["videos"] and not callable(getattr(self.processor, "video_processor", None)):
            raise PromptError(
                f"expected a processor with a video processor for videos, got a {type(self.processor).__name__} without: "
                "load it with arr_coc.load(...), or pass the frames as images"
            )
        shown = [(i, v) for i, v in zip(images, videos, strict=True) if i or v]  # rows without pictures are text only
        rows = [self.units.get("image", "") * len(i) + self.units.get("video", "") * len(v) for i, v in shown]
        given: dict[str, Any] = {name: value for name, value in flat.items() if value}
        if flat["images"] and self.by_row:
            given["images"] = [list(row) for row, _ in shown]
        if flat["videos"]:
            given["do_sample_frames"] = False
            given["video_metadata"] = [
                {"total_num_frames": len(v), "fps": fps, "frames_indices": list(range(len(v)))} for v in flat["videos"]
            ]
        resized: list[torch.Tensor] = []
        late = (
            self.late_patches and bool(flat["images"]) and all(isinstance(one, Image.Image) for one in flat["images"])
        )
        processor = self.processor
        if late:
            processor = copy.copy(processor)
            processor.image_processor = _resizing(processor.image_processor, resized)
        try:
            made = processor(
                text=rows, **given, padding=True, return_tensors="pt", return_text_replacement_offsets=True
            )
        except Exception as error:  # processors raise errors of many types
            raise PromptError(f"the processor refused the pictures: {first_line(error)}") from error
        texts: dict[str, list[str]] = {"image": [], "video": []}
        for offsets in made.pop("text_replacement_offsets"):
            for entry in offsets:
                texts[entry["type"]].append(entry["replacement"])
        if late:
            mine = self.processor.image_processor
            sizes = mine.patch_size, mine.merge_size, mine.temporal_patch_size
            made["pixel_values"] = ResizedPictures(tuple(resized), _normalised(mine), *sizes)
        text_keys = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}
        made.pop("video_metadata", None)
        if texts["image"]:
            token = self.fillers.get("image", self.placeholders["image"])
            made[TOKEN_COUNTS] = torch.tensor([text.count(token) for text in texts["image"]])
        return VisionInputs({key: value for key, value in made.items() if key not in text_keys}, texts)

    def render(self, messages: Sequence[Message]) -> str:
        """Apply the chat template to a conversation; the prompt ends where the next answer begins."""
        if getattr(self.processor, "chat_template", None) is None:
            raise PromptError(
                "this processor has no chat template: pass a whole prompt with the picture tokens "
                f"({', '.join(self.placeholders.values())}) in it, and raw=True"
            )
        try:
            return str(self.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
        except Exception as error:  # templates raise errors of many types
            raise PromptError(f"the model's chat template failed: {first_line(error)}") from error

    def tokenize(self, texts: Sequence[str], vision: VisionInputs) -> dict[str, torch.Tensor]:
        """Prompts to ids and mask `[B, T]`, padded on the left, with every placeholder replaced by its picture's tokens."""
        fillings = {kind: list(vision.texts.get(kind, ())) for kind in self.placeholders}
        pattern = re.compile(
            "|".join(f"(?P<{kind}>{re.escape(token)})" for kind, token in self.placeholders.items()) or "(?!)"
        )
        wanted = {kind: sum(text.count(token) for text in texts) for kind, token in self.placeholders.items()}
        for kind, count in wanted.items():
            if count != len(fillings[kind]):
                raise PromptError(
                    f"the prompt has places for {count} {kind}s ({self.placeholders[kind]}), but {len(fillings[kind])} came"
                )
        filled = [
            pattern.sub(lambda match: fillings[match.lastgroup or ""].pop(0), text) + self.ending for text in texts
        ]
        starts = self.tokenizer.bos_token is not None and filled[0].startswith(self.tokenizer.bos_token)
        made = self.tokenizer(
            filled,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            add_special_tokens=not starts,
            verbose=False,  # no warning about the length: what is read is shorter
        )
        return {key: made[key] for key in ("input_ids", "attention_mask")}

    def sample(self) -> dict[str, Any]:
        """A processor's output for one small picture and a question, for checks."""
        from PIL import Image

        noise = torch.randint(256, (96, 128, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        vision = self.process([[Image.fromarray(noise.numpy())]], [[]], 1.0)
        return self.tokenize([f"{self.units['image']}What is this?"], vision) | vision.tensors

    def ids(self, text: str) -> torch.Tensor:
        """The token ids of a text without special tokens around it: `[T]`."""
        return self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][0].long()

    def decode(self, ids: torch.Tensor) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)).strip()


def user_message(text: str, images: int, videos: int) -> dict[str, Any]:
    """One turn of the user: pictures first, then the text."""
    parts: list[dict[str, Any]] = [{"type": "image"}] * images + [{"type": "video"}] * videos
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def assistant_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}
