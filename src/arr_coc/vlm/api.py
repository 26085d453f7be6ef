"""`arr_coc.wrap`, `arr_coc.load` and `arr_coc.realize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from arr_coc import reader
from arr_coc.adapters.loading import find_model, load_model, load_processor
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import Encoder
from arr_coc.errors import AllocationError, ArrCocError, ModelError
from arr_coc.hub import HubOptions, fetch, split_options
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.inference import LayerPredictor
from arr_coc.layer.model import find_layer
from arr_coc.relevance import cascade as cascades
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.selectors.cues import EmbeddingScorer
from arr_coc.selectors.registry import call_prepare
from arr_coc.texture import TextureArray
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Budget, limit
from arr_coc.types.gaze import Gaze, foveal_map
from arr_coc.types.grid import Grid
from arr_coc.types.image import ImageLike
from arr_coc.types.question import check_question
from arr_coc.vlm.confidence import FILE as CALIBRATION
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM

CELL = 28  # pixels of a cell if no grid is given


def wrap(
    model: Any,
    processor: Any = None,
    *,
    batch_windows: bool = False,
    embeddings: Embeddings | str | None = None,
    layer: ArrCocLayer | str | Path | None = "auto",
) -> VLM:
    """Wrap a transformers model and its processor. The model is not modified.

    Args:
        model: A model of a supported family; a `PeftModel`, a compiled model, or one spread by `device_map`, too.
        processor: Its processor. Without one, only `prepare(inputs=...)` works.
        batch_windows: Encode whole images with all attention windows in one call, too. Equal to the stock encoder up to
            rounding, and much faster on a GPU for encoders with windows (Qwen2.5-VL).
        embeddings: Image-text embeddings (or an encoder's name, "labels") for selectors that compare image and question.
        layer: A layer trained for this model by `arr-coc train`, its folder, or its hub id ("user/repository"). "auto": the
            universal layer, which ships and depends on no model. None: no layer at all.
    """
    return VLM(model, processor, batch_windows=batch_windows, embeddings=embeddings, layer=layer)


def load(
    name: str | Path,
    *,
    batch_windows: bool = False,
    embeddings: Embeddings | str | None = None,
    layer: ArrCocLayer | str | Path | None = "auto",
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    **from_pretrained: Any,
) -> VLM:
    """Load a model folder or hub id and wrap it. `"reader"` is the small model that ships with the package.

    One request of at most five seconds decides whether the hub has the model. Where the hub does not answer, a model in the
    local cache is used, with a warning.

    Args:
        name: A folder, a hub id, or "reader".
        layer: "auto" uses a trained layer in the model's folder or repository if there is one, and the universal layer where
            there is none; "universal" always uses that one; None uses none; or a layer's folder or hub id
            ("user/repository").
        dtype: Precision of the weights, as in transformers' `from_pretrained`.
        device_map: Where to load the model, as in `from_pretrained`.
        attn_implementation: "sdpa", "eager" or "flash_attention_2", as in `from_pretrained`.
        trust_remote_code: Run Python code that the folder brings (`auto_map`). Off, so that a folder is only data.
        **from_pretrained: Further keyword arguments of transformers' `from_pretrained`. `revision`, `token`, `cache_dir`,
            `local_files_only` and `force_download` hold for the model, its processor and its layer.

    The other arguments are those of `wrap`.
    """
    options = {"dtype": dtype, "device_map": device_map, "attn_implementation": attn_implementation}
    chosen = {key: value for key, value in options.items() if value is not None} | from_pretrained
    if str(name) == reader.NAME:
        name = reader.WEIGHTS
        chosen = {"dtype": "float32"} | chosen  # stored in half precision, which is slow on CPUs
    source, hub = find_model(name, split_options(chosen))
    if not Path(name).is_dir():
        fetch(str(name), CALIBRATION, ModelError, hub)  # into `source`, where the hub has one
    model = load_model(name, trust_remote_code, hub, **chosen)
    processor = load_processor(name, model.config.model_type, trust_remote_code, hub)
    if layer == "auto":
        layer = find_layer(name, **hub) or "auto"
    elif isinstance(layer, str) and layer != "universal":
        own = {key: value for key, value in hub.items() if key != "revision"}  # that is the model's
        layer = ArrCocLayer.from_pretrained(layer, **HubOptions(**own))  # type: ignore[typeddict-item]
    return VLM(model, processor, batch_windows=batch_windows, embeddings=embeddings, layer=layer, source=source)


def realize(
    texture: TextureArray | ImageLike,
    question: str = "",
    grid: tuple[int, int] | Grid | None = None,
    budget: Budget = "auto",
    using: VLM | Embeddings | Encoder | str | Path | None = None,
    *,
    look: Look | None = None,
    glance: Budget = "auto",
    previous: Allocation | None = None,
    gaze: Gaze | None = None,
    coupling: str = "auto",
    balance: str = "weigh",
    salience: str = "texture",
    learned: bool = True,
    diverse: bool = True,
    moments: str = "auto",
    cascade: str = "off",
    exploit: float | None = None,
    weights: Mapping[str, float] | None = None,
) -> Allocation:
    """Which cells of an image matter for a question.

    Args:
        texture: A texture array, or an image of any kind.
        question: The question. It may be left out where a gaze is given.
        grid: Rows and columns of cells. A model has its own grid.
        budget: A count, a share ("12.5%"), "mass 90%" (the fewest cells that hold that share of the relevance), "auto"
            or "all".
        using: A wrapped model, embeddings, or an encoder's name. None: the universal layer.
        look: The model's look at the image (`vlm.look(image)`), so that it encodes once for many questions.
        glance: How many cells the model's vision encoder encodes at all, as in `ask`.
        previous: An allocation for the same image to refine.
        gaze: Where a person looks: (x, y) in pixels of the image, or a list of such points. The falloff of the fovea
            decides how much of the budget goes where.
        coupling: Source of the coupling: "auto", "layer", "universal", "probe", "embeddings", "tokens" or "none".
        balance: "weigh", or "oppose" (fixed formulas).
        salience: What stands out: "texture", "archetypes" (what resembles prototypes of what questions are about), or
            "encoder" (what the model's vision encoder, or an image-text encoder, attends to).
        learned: Use trained layers: the model's own, if there is one, and the universal one.
        diverse: Pick near-duplicates last.
        moments: For videos: "auto", "surest" or "together".
        cascade: Encode only the windows where the question's best clusters are: "off", "on", or "auto" on large grids.
        exploit: Set the tension between exploring (0) and exploiting (1) by hand.
        weights: Set weights of the scores by hand: {"information", "salience", "coupling", "text"}.
    """
    if gaze is None or question != "" or isinstance(using, VLM):
        check_question(question)
    settings: dict[str, Any] = {
        "coupling": coupling, "balance": balance, "salience": salience, "learned": learned, "diverse": diverse, "moments": moments,
        "cascade": cascade, "exploit": exploit, "weights": weights or {}, "explain": True,
    }  # fmt: skip
    checked = RelevanceSettings(**settings)
    array = texture if isinstance(texture, TextureArray) else TextureArray.from_image(texture)
    if previous is not None:
        array = array.supply(previous_relevance=previous_relevance_map(previous))
    if gaze is not None:
        array = array.supply(gaze=foveal_map(gaze, array.original_size[::-1]))
    if using is None or isinstance(using, Embeddings | Encoder | str | Path):
        embeddings = using if using is None or isinstance(using, Embeddings) else Embeddings(using)
        return _realize_texture(array, question, grid, budget, embeddings, checked)
    if not isinstance(using, VLM):
        raise ArrCocError(
            f"expected using= as a wrapped model, embeddings or an encoder's name, got {type(using).__name__}"
        )
    if cascade == "on":
        raise ArrCocError("expected embeddings as using= for cascade='on', got a model: it encodes the whole picture")
    if look is None and not isinstance(texture, TextureArray):
        look = using.look(texture, straighten="off")  # the original, not the texture's scaled copy
    return _realize_model(array, question, grid, budget, using, look, glance, ArrCoc(**settings))


def previous_relevance_map(previous: Allocation) -> torch.Tensor:
    """An allocation's relevance as a map `[h, w]`; its kept cells as 0 and 1 if it has none."""
    views = previous.grid.views
    if len(views) != 1 or views[0].t != 1:
        raise AllocationError("expected a previous allocation on one grid of a still picture, got tiles or a video")
    kept = torch.zeros(previous.n).index_fill_(0, previous.keep, 1.0)
    values = previous.relevance if previous.relevance is not None else kept
    return values.view(views[0].h, views[0].w)


def _realize_texture(
    texture: TextureArray,
    question: str,
    grid: tuple[int, int] | Grid | None,
    budget: Budget,
    embeddings: Embeddings | None,
    settings: RelevanceSettings,
) -> Allocation:
    """Without a model: from the texture, and embeddings if there are any."""
    cells = _grid(texture, grid)
    bound = limit(budget, cells.n)
    if settings.cascade == "on" and (why := cascades.unsupported_reason(embeddings, texture, cells)):
        raise ArrCocError(f"expected {why}, for cascade='on'")
    use_cascade = settings.cascade == "on" or (
        settings.cascade == "auto" and cascades.is_worthwhile(embeddings, texture, cells)
    )
    scorer: EmbeddingScorer | cascades.CascadeScorer | None = None
    if embeddings is not None:
        scorer = cascades.CascadeScorer(embeddings) if use_cascade else EmbeddingScorer(embeddings)
    selection = SelectionInput(
        grid=cells,
        k=bound.k,
        candidates=torch.arange(cells.n),
        question=Question(question, torch.zeros(0, dtype=torch.long)),
        source=ImageSource(embeddings=embeddings, texture=texture),
        scorer=scorer,
        universal=LayerPredictor(None, texture.device),
        mass=bound.mass,
    )
    selector = ArrCoc()
    selector.settings = settings
    (selection,) = call_prepare(selector, [selection])  # on a GPU: channels of one size as a graph, and one transfer
    choice = realized(selection, settings)
    notes = [bound.note] if bound.note else []
    if isinstance(scorer, cascades.CascadeScorer):
        notes += map(str, scorer.coverage)
    if not choice.coupled_by and question.strip():
        notes.append("the question was not used: pass a model or embeddings as using=")
    height, width = texture.original_size
    return Allocation(
        grid=cells,
        keep=choice.keep,
        encoded=torch.arange(cells.n),
        selector=ArrCoc.name,
        size=(width, height),
        relevance=choice.relevance,
        scores=choice.scores,
        tensions=choice.tensions,
        strategy=choice.strategy,
        confidence=choice.confidence,
        notes=tuple(notes),
    )


def _realize_model(
    texture: TextureArray,
    question: str,
    grid: tuple[int, int] | Grid | None,
    budget: Budget,
    vlm: VLM,
    look: Look | None,
    glance: Budget,
    selector: ArrCoc,
) -> Allocation:
    """With a wrapped model, on its own grid."""
    notes: tuple[str, ...] = ()
    if look is None:
        look, notes = _look_at_texture(vlm, texture)
    shown = look.sources("image")
    if look.rows != 1 or len(shown) != 1 or look.sources("video"):
        raise ArrCocError(f"expected a look at one picture, got {len(shown)} and {len(look.sources('video'))} videos")
    height, width = texture.original_size
    if shown[0].size is not None and shown[0].size != (width, height):
        other = " x ".join(map(str, shown[0].size))
        raise ArrCocError(
            f"this texture is of a picture of {width} x {height} px, and the look at one of {other} px: expected one picture"
        )
    source = ImageSource(shown[0].picture, shown[0].size, shown[0].embeddings, texture)
    own = replace(look, images=((source,),))
    made = vlm.prepare(look=own, text=question, budget=budget, glance=glance, selector=selector).allocations[0]
    wanted = None if grid is None else _grid(texture, grid)
    if wanted is not None and [(wanted.h, wanted.w)] != [(view.h, view.w) for view in made.grid.views]:
        raise ArrCocError(f"expected the model's own grid of {made.grid} cells, got {wanted}: leave grid out")
    return replace(made, notes=(*made.notes, *notes))


def _look_at_texture(vlm: VLM, texture: TextureArray) -> tuple[Look, tuple[str, ...]]:
    """A look at the texture's own pixels, at the original's size."""
    if texture.size == texture.original_size:
        return vlm.look(texture.pixels, straighten="off"), ()
    pixels = F.interpolate(
        texture.pixels[None], texture.original_size, mode="bicubic", align_corners=False, antialias=True
    )
    note = (
        f"encoded from the texture's {texture.size[1]} x {texture.size[0]} px, scaled to the original's size: "
        "pass look=vlm.look(image) to encode the original"
    )
    return vlm.look(pixels[0].clamp(0, 1), straighten="off"), (note,)


def _grid(texture: TextureArray, grid: tuple[int, int] | Grid | None) -> Grid:
    if isinstance(grid, Grid):
        return grid
    if grid is None:
        height, width = texture.original_size
        return Grid(1, max(1, round(height / CELL)), max(1, round(width / CELL)))
    try:
        rows, columns = (int(side) for side in grid)
    except (TypeError, ValueError):
        raise ArrCocError(f"expected a grid as (rows, columns), got {grid!r}") from None
    if rows < 1 or columns < 1:
        raise ArrCocError(f"expected a grid of at least one cell, got {rows} x {columns}")
    return Grid(1, rows, columns)
