"""Loading the reader's processor without torchvision.

`AutoProcessor` also wants Qwen2-VL's video processor, which needs torchvision. Pictures do not: the image processor has
a Pillow backend, and the processor takes it alone.
"""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class PictureProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor for pictures and text, without its video part."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template, **kwargs)


def load_processor(folder: str | Path) -> PictureProcessor:
    """The processor of a model folder: pictures and questions in, model inputs out."""
    folder = Path(folder)
    if not (folder / "preprocessor_config.json").is_file():
        raise FileNotFoundError(f"expected a model folder with preprocessor_config.json, got {folder}")
    return PictureProcessor(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        chat_template=(folder / "chat_template.jinja").read_text(),
    )
