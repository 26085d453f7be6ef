"""A wrapped model as a folder, and on the hub: weights, processor, the layer in its subfolder, and a model card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCardData

from arr_coc import reader
from arr_coc.adapters.loading import save_processor
from arr_coc.errors import ModelError, raise_as
from arr_coc.files import replacing_files
from arr_coc.hub import CARD, TAGS, card, is_repo_id, measured, push_folder, write_card
from arr_coc.layer.model import CONFIG, SUBFOLDER, WEIGHTS
from arr_coc.vlm import confidence

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

PROCESSOR_FILES = (".json", ".jinja", ".model", ".txt")
# By the model, by the layers of older versions, and by the calibration.
WRITTEN_FILES = ("config.json", "generation_config.json", CONFIG, confidence.FILE)
MODEL_FILES = (
    "model*.safetensors*"  # weights, in one file or several: loaders would read those of another number of files
)
FRONT_MATTER = "---\n"  # a card that starts with it has its metadata


def save(vlm: VLM, folder: Path) -> None:
    """Write a stock model folder, with the layer in a subfolder. Weights keep the precision that they have in memory."""
    if vlm.model is not vlm.adapter.model:
        raise ModelError(
            f"expected a plain model to save, got a {type(vlm.model).__name__}: merge or unwrap it, and wrap the model inside"
        )
    if vlm.processor is None:
        raise ModelError("expected a processor to save with the model: it was wrapped without one")
    if vlm.own_layer is None and (folder / SUBFOLDER / WEIGHTS).exists():
        raise ModelError(f"{str(folder)!r} holds the layer of another model: expected a new folder")
    with raise_as(ModelError, f"cannot write {str(folder)!r}"), replacing_files(folder, MODEL_FILES) as temporary:
        vlm.model.save_pretrained(temporary)
        if vlm.source is None:
            save_processor(vlm.processor, temporary)
        else:
            copy_processor(vlm.source, temporary)
        if vlm.calibration is not None:
            vlm.calibration.save(temporary)
        if (layer := vlm.own_layer) is not None:
            layer.save_pretrained(temporary / SUBFOLDER)
    if vlm.calibration is None:
        (folder / confidence.FILE).unlink(missing_ok=True)  # of the model that was here before


def copy_processor(source: Path, folder: Path) -> None:
    """Copy the processor's files of a model folder: as they are, with the settings of parts that are not used here."""
    for file in sorted(source.iterdir()):
        settings = file.suffix in PROCESSOR_FILES and file.name not in WRITTEN_FILES
        if settings and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)


def push(vlm: VLM, repo_id: str, report: str | Path | None, **options: Any) -> str:
    """Push the folder that `save` writes, with a card; see `VLM.push_to_hub`."""
    figures = measured(report)

    def write(folder: Path) -> None:
        save(vlm, folder)
        write_card(folder, _card(vlm, repo_id, figures, report is not None))

    return push_folder(write, repo_id, ModelError, **options)


def _card(vlm: VLM, repo_id: str, figures: str, measured_now: bool) -> str:
    """The card of the model's own folder with these figures after it, or a new one."""
    own = None if vlm.source is None else vlm.source / CARD
    text = own.read_text(encoding="utf-8") if own is not None and own.is_file() else ""
    if text.startswith(FRONT_MATTER):
        return f"{text.rstrip()}\n\n## Measured\n\n{figures}\n" if measured_now else text
    origin = str(vlm.model.config.name_or_path)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        tags=list(TAGS),
        license="apache-2.0" if vlm.source == reader.WEIGHTS else None,
        base_model=origin if is_repo_id(origin) else None,
    )
    if text and not measured_now:
        figures = "The figures are in the text above."
    return card(data, text or _text(vlm), repo_id, "model", figures)


def _text(vlm: VLM) -> str:
    count = sum(parameter.numel() for parameter in vlm.model.parameters())
    layer = (
        "without a trained layer"
        if vlm.layer is None
        else f"with a trained layer of {vlm.layer.parameter_count:,} parameters in `{SUBFOLDER}/`"
    )
    return (
        f"# A vision-language model with ARR-COC\n\n`{type(vlm.model).__name__}` ({vlm.adapter.family}), {count:,} parameters, "
        f"{layer}. transformers loads this repository by itself; ARR-COC encodes and reads only the visual tokens that a "
        "question needs."
    )
