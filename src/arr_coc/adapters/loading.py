"""Loading a model and its processor, without torchvision, and the small parts of transformers that callers need."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from arr_coc.adapters.families import check_transformers, family, processor_name
from arr_coc.adapters.video_processor import QwenVideoProcessor, SquareVideoProcessor
from arr_coc.errors import ModelError, raise_as
from arr_coc.hub import HubOptions, fetch, reach

CONFIG = "config.json"  # of every model folder
VIDEO_SETTINGS = "video_preprocessor_config.json"


def find_model(name: str | Path, options: HubOptions) -> tuple[Path, HubOptions]:
    """Check that a name is a folder, or a model that the hub or its local cache has; one request decides.

    Returns:
        Its folder, which may be in the local cache, and the options for reading all of its files: with `local_files_only`
        where the hub does not answer.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder, options
    if folder.exists() or len(folder.parts) > 2 or str(name).startswith((".", "/", "~")):
        raise ModelError(f"expected a model folder or a hub id, got {str(name)!r}, which is not a folder")
    with raise_as(ModelError, f"cannot load {str(name)!r}"):
        reached = reach(str(name), CONFIG, ModelError, options)
    config = fetch(str(name), CONFIG, ModelError, reached)
    if config is None:
        raise ModelError(f"cannot load {str(name)!r}: its repository on the hub has no {CONFIG}, which every model has")
    return config.parent, reached


def load_model(name: str | Path, trust_remote_code: bool = False, hub: HubOptions | None = None, **options: Any) -> Any:
    """Load the model of a folder or hub id; its family must be a supported one.

    `hub`: how to read it, from `find_model`. Code that the folder brings runs only with `trust_remote_code`.
    """
    check_transformers()
    from transformers import AutoModelForImageTextToText

    hub = hub or {}
    with raise_as(ModelError, f"cannot load {str(name)!r}"):
        family(read_config(name, trust_remote_code, hub).model_type)
        return AutoModelForImageTextToText.from_pretrained(
            name, trust_remote_code=trust_remote_code, **(options | hub)
        ).eval()


def read_config(name: str | Path, trust_remote_code: bool = False, hub: HubOptions | None = None) -> Any:
    """The configuration of a model folder or hub id. A type that only the folder's own code knows is refused."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **(hub or {}))


def empty_model(name: str | Path) -> Any:
    """The model of a folder or hub id without weights: its parameters are on the device "meta"."""
    check_transformers()
    import torch
    from transformers import AutoModelForImageTextToText

    with raise_as(ModelError, f"cannot load {str(name)!r}"):
        config = read_config(name)
        family(config.model_type)
        with torch.device("meta"):
            return AutoModelForImageTextToText.from_config(config, trust_remote_code=False).eval()


def keep_quiet() -> None:
    """Turn off the progress bars and hints of transformers, for programs that print their own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def load_processor(
    name: str | Path, model_type: str | None = None, trust_remote_code: bool = False, hub: HubOptions | None = None
) -> Any:
    """Load the processor of a model folder or hub id: images by Pillow, video frames by `video_processor.py`."""
    import transformers

    hub = hub or {}
    with raise_as(ModelError, f"cannot load the processor of {str(name)!r}"):
        kind = model_type or read_config(name, trust_remote_code, hub).model_type
        base = getattr(transformers, processor_name(kind))
        if getattr(base, "is_dummy", False):
            raise ModelError(
                f"expected torchvision, which {base.__name__} needs, got none: install it, or wrap the model without a "
                "processor and call prepare(inputs=...)"
            )
        made = without_video(base).from_pretrained(  # type: ignore[attr-defined]
            name, backend="pil", trust_remote_code=trust_remote_code, **hub
        )
    if kind.startswith("qwen"):
        made.video_processor = QwenVideoProcessor.from_settings(kind, made.image_processor, _video_settings(name, hub))
    elif kind == "llava_onevision":
        made.video_processor = SquareVideoProcessor.from_settings(made.image_processor, _video_settings(name, hub))
    return made


def save_processor(processor: Any, folder: Path) -> None:
    """Write a processor's files. Video settings of this package's own processors go where `load_processor` finds them."""
    video = getattr(processor, "video_processor", None)
    if isinstance(video, QwenVideoProcessor | SquareVideoProcessor):
        processor = copy.copy(processor)  # transformers cannot write these
        del processor.video_processor
        (folder / VIDEO_SETTINGS).write_text(json.dumps(asdict(video), indent=2) + "\n")
    processor.save_pretrained(folder)


def without_video(base: type) -> type:
    """Derive a processor class that does not require its video processor, which needs torchvision."""

    class Processor(base):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return [part for part in super().get_attributes() if part != "video_processor"]

    if base.__name__ == "SmolVLMProcessor":  # the only one whose __init__ requires a video processor

        class Lenient(Processor):
            video_processor = SimpleNamespace(num_frames=None, fps=None)  # its chat template reads these two

            def __init__(
                self, image_processor: Any = None, tokenizer: Any = None, video_processor: Any = None,
                image_seq_len: int = 169, chat_template: str | None = None, **given: Any,
            ) -> None:  # fmt: skip
                super().__init__(image_processor, tokenizer, video_processor, image_seq_len, chat_template, **given)

        Lenient.__name__ = Lenient.__qualname__ = base.__name__
        return Lenient
    Processor.__name__ = Processor.__qualname__ = base.__name__
    return Processor


def model_folder(name: str | Path, hub: HubOptions | None = None) -> Path:
    """The folder that a model's files are read from: its own, or the hub's local cache."""
    from transformers.utils.hub import cached_file

    return Path(str(cached_file(str(name), CONFIG, **(hub or {})))).parent


def _video_settings(name: str | Path, hub: HubOptions) -> dict[str, Any]:
    """A model folder's video settings; empty where it has none."""
    from transformers.utils.hub import cached_file

    for file, key in ((VIDEO_SETTINGS, None), ("processor_config.json", "video_processor")):
        found = cached_file(str(name), file, _raise_exceptions_for_missing_entries=False, **hub)
        if found is not None:
            content = json.loads(Path(found).read_text())
            settings = content if key is None else content.get(key)
            if settings:
                return dict(settings)
    return {}
