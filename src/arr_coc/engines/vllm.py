"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL in vLLM, encoding and reading only the chosen cells of each picture.

    vllm serve MODEL --mm-processor-kwargs '{"arr_coc": {"budget": "12.5%"}}'

- Processor (where requests are read): chooses cells, cuts the pixels, writes one placeholder for each kept cell, and makes
  the choice a part of the picture's hash. vLLM's caches of processed pictures, encoder outputs and prefixes go by that hash.
- Model (in the engine): encodes the patches of the kept cells with their own positions and windows, and gives every token
  the position that it has in the dense prompt.

Without the option `arr_coc` of the server, all classes behave as vLLM's own. Videos and embeddings from clients are not cut.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from vllm.model_executor.layers.attention import MMEncoderAttention
from vllm.model_executor.models import qwen2_5_vl, qwen2_vl, qwen3_vl
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig, PlaceholderRange
from vllm.multimodal.parse import ImageProcessorItems
from vllm.multimodal.processing import InputProcessingContext, PromptReplacement

from arr_coc.adapters.encoder import PatchIndex, boundaries, index_patches, sort_by_window
from arr_coc.engines.glance import Glance, last_question
from arr_coc.engines.options import KEY, GlanceOptions, ServerOptions
from arr_coc.errors import ArrCocError
from arr_coc.types.grid import Grid

CELLS = "arr_coc_cells"  # the field of a picture that holds its kept cells
EVERYTHING = {KEY: {"budget": "all"}}


def server_options(model_config: Any) -> ServerOptions | None:
    """The server's option `arr_coc`; None: there is none, and vLLM stays as it is."""
    multimodal = model_config.get_multimodal_config()
    given = multimodal.mm_processor_kwargs or {}
    if KEY not in given:
        return None
    if multimodal.mm_encoder_tp_mode == "data":
        raise ArrCocError(
            "expected --mm-encoder-tp-mode weights together with arr_coc, got data: it splits pictures by their whole grids"
        )
    if multimodal.is_multimodal_pruning_enabled():
        raise ArrCocError("expected no video pruning of vLLM together with arr_coc: leave --video-pruning-rate out")
    return ServerOptions.parse(given[KEY])


class _Info:
    """The stock classes see the server's options without `arr_coc`, which is none of transformers' business."""

    def __init__(self, ctx: Any) -> None:
        self.arr_coc = server_options(ctx.model_config)
        if self.arr_coc is not None:
            config = copy.copy(ctx.model_config)
            config.multimodal_config = copy.copy(config.multimodal_config)
            given = config.multimodal_config.mm_processor_kwargs
            config.multimodal_config.mm_processor_kwargs = {k: v for k, v in given.items() if k != KEY}
            ctx = InputProcessingContext(config, ctx.tokenizer)
        super().__init__(ctx)  # type: ignore[call-arg]


class _Processor:
    """A processor that keeps some cells of each picture. The options travel as `hf_kwargs[KEY]`, a `GlanceOptions`."""

    info: Any

    def __init__(self, info: Any, dummy_inputs: Any) -> None:
        super().__init__(info, dummy_inputs)  # type: ignore[call-arg]
        self._glance: Glance | None = None
        if info.arr_coc is not None:
            tokenizer = info.get_tokenizer()
            self._glance = Glance(
                info.arr_coc, info.model_id, lambda text: tokenizer.encode(text, add_special_tokens=False)
            )

    def get_dummy_inputs(self, *given: Any, **named: Any) -> Any:
        """Memory is measured with whole pictures: a request may ask for them."""
        made = super().get_dummy_inputs(*given, **named)  # type: ignore[misc]
        return made if self._glance is None else replace(made, hf_processor_mm_kwargs=EVERYTHING)

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        given = inputs.hf_processor_mm_kwargs
        if self._glance is None:
            if KEY in given:
                raise ArrCocError(
                    f"expected a server with the option {KEY}, got it in a request only: start the server with "
                    f'--mm-processor-kwargs \'{{"{KEY}": {{"budget": "all"}}}}\''
                )
            return super().apply(inputs, timing_ctx)  # type: ignore[misc]
        options = self._glance.options.defaults.merge(given.get(KEY, {}))
        if not self._glance.reads_question(options):
            options = replace(options, question="")
        elif options.question is None:
            prompt = self.info.get_tokenizer().decode(inputs.prompt, skip_special_tokens=False)
            options = replace(options, question=last_question(prompt))
        pictures = len(inputs.mm_data_items.get("image", ()))
        if options.cells is not None and len(options.cells) != pictures:
            raise ArrCocError(f"expected cells for each of the {pictures} pictures, got {len(options.cells)} lists")
        return super().apply(replace(inputs, hf_processor_mm_kwargs={**given, KEY: options}), timing_ctx)  # type: ignore[misc]

    def _get_mm_hashes(self, inputs: Any) -> Any:
        options, others = _split(inputs.hf_processor_mm_kwargs)
        hashes = super()._get_mm_hashes(replace(inputs, hf_processor_mm_kwargs=others))  # type: ignore[misc]
        if options is None or "image" not in hashes:
            return hashes
        assert self._glance is not None
        algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
        shared = {"by": self._glance.identity}
        own = [
            MultiModalHasher.hash_kwargs(algorithm, picture=picture, arr_coc=options.key(number) | shared)
            for number, picture in enumerate(hashes["image"])
        ]
        return {**hashes, "image": own}

    def _get_cache_missing_processor_kwargs(self, inputs: Any, mm_is_cached: Any) -> Any:
        options, others = _split(inputs.hf_processor_mm_kwargs)
        kwargs = super()._get_cache_missing_processor_kwargs(  # type: ignore[misc]
            replace(inputs, hf_processor_mm_kwargs=others), mm_is_cached
        )
        if options is None:
            return kwargs
        if options.cells is not None:
            cached = mm_is_cached.get("image", ())
            options = replace(
                options, cells=tuple(one for one, known in zip(options.cells, cached, strict=True) if not known)
            )
        return {**kwargs, KEY: options}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Any) -> Any:
        options, others = _split(hf_kwargs)
        data = super()._apply_hf_processor_main(mm_items, others)  # type: ignore[misc]
        if options is None or "pixel_values" not in data:
            return data
        assert self._glance is not None
        pictures = mm_items.get_items("image", ImageProcessorItems).get_processor_data()["images"]
        merge = self._merge
        grids = [Grid(t, h // merge, w // merge) for t, h, w in data["image_grid_thw"].tolist()]
        cells = self._glance.choose(pictures, grids, options.question or "", options)
        data["pixel_values"] = data["pixel_values"][index_patches(grids, cells, merge).rows]
        data[CELLS] = cells
        return data

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Any:
        fields = super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)  # type: ignore[misc]
        if CELLS not in hf_inputs:
            return fields
        patches = torch.tensor([len(cells) * self._merge**2 for cells in hf_inputs[CELLS]])
        return {
            **fields,
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
            CELLS: MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Any:
        others = _split(hf_processor_mm_kwargs)[1]
        updates = super()._get_prompt_updates(mm_items, others, out_mm_kwargs)  # type: ignore[misc]
        return [_keep_cells(update, out_mm_kwargs) if update.modality == "image" else update for update in updates]

    @property
    def _merge(self) -> int:
        return int(self.info.get_hf_config().vision_config.spatial_merge_size)


def _split(kwargs: Mapping[str, Any]) -> tuple[GlanceOptions | None, dict[str, Any]]:
    """A request's options for the glance, and all others."""
    return kwargs.get(KEY), {name: value for name, value in kwargs.items() if name != KEY}


def _keep_cells(update: Any, out_mm_kwargs: Any) -> Any:
    """A replacement of a picture's placeholder by one token for each kept cell."""

    def replacement(number: int) -> Any:
        item, dense = out_mm_kwargs["image"][number], update.replacement(number)
        return dense[: len(item[CELLS].data)] if CELLS in item else dense

    return PromptReplacement(modality="image", target=update.target, replacement=replacement)


@dataclass(frozen=True, eq=False)
class KeptPatches:
    """The pictures of a batch: the patches of their kept cells `[P, C]`, whole grids in patches, and the cells `[K]` of each."""

    pixel_values: torch.Tensor
    thw: list[list[int]]
    cells: list[torch.Tensor]


class _Model:
    """A model that encodes and positions the kept cells of its pictures."""

    visual: Any
    config: Any

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        if server_options(vllm_config.model_config) is not None and vllm_config.compilation_config.cudagraph_mm_encoder:
            raise ArrCocError(
                "expected cudagraph_mm_encoder off together with arr_coc, got it on: "
                "the graphs are made for whole grids"
            )
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]

    def _parse_and_validate_image_input(self, **kwargs: Any) -> Any:
        cells = kwargs.pop(CELLS, None)
        if cells is None:
            return super()._parse_and_validate_image_input(**kwargs)  # type: ignore[misc]
        thw = kwargs["image_grid_thw"].tolist()
        whole = [t * h * w // self.visual.spatial_merge_size**2 for t, h, w in thw]
        if [len(kept) for kept in cells] == whole:
            return super()._parse_and_validate_image_input(**kwargs)  # type: ignore[misc]
        return KeptPatches(kwargs["pixel_values"], thw, [kept.cpu() for kept in cells])

    def _process_image_input(self, image_input: Any) -> Any:
        if not isinstance(image_input, KeptPatches):
            return super()._process_image_input(image_input)  # type: ignore[misc]
        merge = self.visual.spatial_merge_size
        grids = [Grid(t, h // merge, w // merge) for t, h, w in image_input.thw]
        patches = index_patches(grids, image_input.cells, merge)
        metadata = self._encoder_metadata(image_input, grids, patches)
        tokens = self.visual(image_input.pixel_values, None, encoder_metadata=metadata)
        return tokens.split([len(cells) for cells in image_input.cells])

    def _encoder_metadata(self, kept: KeptPatches, grids: Sequence[Grid], patches: PatchIndex) -> dict[str, Any]:
        """What the encoder computes from whole grids, for these patches."""
        raise NotImplementedError

    def _rotary(self, places: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines `[P, d]` of patches at rows and columns `[P, 2]`."""
        tables = self.visual.rotary_pos_emb.get_cos_sin(int(sizes.max()))
        cos, sin = (table[places.to(table.device)].flatten(1).to(self.visual.device) for table in tables)
        return cos, sin

    def _segments(self, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Boundaries, the longest and (for some attention backends) all lengths of the segments `[S]` of attention."""
        backend, device = self.visual.attn_backend, self.visual.device
        ends = boundaries(lengths, torch.device("cpu")).numpy()
        longest = torch.tensor(MMEncoderAttention.compute_max_seqlen(backend, ends), dtype=torch.int32)
        every = MMEncoderAttention.maybe_compute_seq_lens(backend, ends, device)
        ends = MMEncoderAttention.maybe_recompute_cu_seqlens(
            backend, ends, self.visual.hidden_size, self.visual.tp_size, device,
            fp8_padded_hidden_size=self.visual.fp8_padded_hidden_size,
        )  # fmt: skip
        return ends, longest, every

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        """The positions `[3, T]` that the tokens have in the dense prompt, and the offset of those to come."""
        ordered = sorted(mm_features, key=lambda feature: feature.mm_position.offset)
        if not any(_is_cut(feature) for feature in ordered):
            return super().get_mrope_input_positions(input_tokens, mm_features)  # type: ignore[misc]
        tokens, features, places = dense_prompt(input_tokens, ordered, self.config.vision_config.spatial_merge_size)
        positions, offset = super().get_mrope_input_positions(tokens, features)  # type: ignore[misc]
        return positions[:, places], offset + len(tokens) - len(input_tokens)


def _is_cut(feature: Any) -> bool:
    return feature.data is not None and CELLS in feature.data


def dense_prompt(
    input_tokens: Sequence[int], features: Sequence[Any], merge: int
) -> tuple[list[int], list[Any], torch.Tensor]:
    """The prompt with the tokens of all cells, its features, and where the given tokens `[T]` are in it.

    `features`: by rising offset.
    """
    starts = [feature.mm_position.offset for feature in features]
    tokens, places = list(input_tokens[: starts[0]]), [torch.arange(starts[0])]
    dense: list[Any] = []
    for feature, (start, stop) in zip(features, pairwise([*starts, len(input_tokens)]), strict=True):
        here, end = len(tokens), start + feature.mm_position.length
        if _is_cut(feature):
            size = int(feature.data["image_grid_thw"].data.prod()) // merge**2
            position, cells = PlaceholderRange(offset=here, length=size), feature.data[CELLS].data
            tokens += [input_tokens[start]] * size
        else:
            position, cells = replace(feature.mm_position, offset=here), torch.arange(end - start)
            tokens += input_tokens[start:end]
        dense.append(replace(feature, mm_position=position))
        places += [here + cells, torch.arange(stop - end) + len(tokens)]
        tokens += input_tokens[end:stop]
    return tokens, dense, torch.cat(places)


class _Qwen2Info(_Info, qwen2_vl.Qwen2VLProcessingInfo):
    pass


class _Qwen25Info(_Info, qwen2_5_vl.Qwen2_5_VLProcessingInfo):
    pass


class _Qwen3Info(_Info, qwen3_vl.Qwen3VLProcessingInfo):
    pass


class _Qwen2Processor(_Processor, qwen2_vl.Qwen2VLMultiModalProcessor):
    pass


class _Qwen25Processor(_Processor, qwen2_5_vl.Qwen2_5_VLMultiModalProcessor):
    pass


class _Qwen3Processor(_Processor, qwen3_vl.Qwen3VLMultiModalProcessor):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    _Qwen2Processor, info=_Qwen2Info, dummy_inputs=qwen2_vl.Qwen2VLDummyInputsBuilder
)
class Qwen2VL(_Model, qwen2_vl.Qwen2VLForConditionalGeneration):
    def _encoder_metadata(self, kept: KeptPatches, grids: Sequence[Grid], patches: PatchIndex) -> dict[str, Any]:
        cos, sin = self._rotary(patches.places, patches.sizes)
        ends = boundaries(patches.frames, self.visual.device)
        longest = self.visual.compute_attn_mask_seqlen(ends)
        return {"rotary_pos_emb_cos": cos, "rotary_pos_emb_sin": sin, "cu_seqlens": ends, "max_seqlen": longest}


@MULTIMODAL_REGISTRY.register_processor(
    _Qwen25Processor, info=_Qwen25Info, dummy_inputs=qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder
)
class Qwen25VL(_Model, qwen2_5_vl.Qwen2_5_VLForConditionalGeneration):
    def _encoder_metadata(self, kept: KeptPatches, grids: Sequence[Grid], patches: PatchIndex) -> dict[str, Any]:
        visual, unit = self.visual, self.visual.spatial_merge_unit
        side = visual.window_size // visual.spatial_merge_size // visual.patch_size  # of a window, in cells
        order, counts = sort_by_window(grids, kept.cells, side)
        cos, sin = self._rotary(patches.places.view(-1, unit, 2)[order].view(-1, 2), patches.sizes)
        frames, longest_frame, all_frames = self._segments(patches.frames)
        windows, longest_window, all_windows = self._segments(counts * unit)
        return {
            "rotary_pos_emb_cos": cos,
            "rotary_pos_emb_sin": sin,
            "window_index": order.to(visual.device),
            "reverse_indices": order.argsort().to(visual.device),
            "cu_seqlens": frames,
            "cu_window_seqlens": windows,
            "max_seqlen_full": longest_frame,
            "max_seqlen_window": longest_window,
            "sequence_lengths_full": all_frames,
            "sequence_lengths_window": all_windows,
        }


@MULTIMODAL_REGISTRY.register_processor(
    _Qwen3Processor, info=_Qwen3Info, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder
)
class Qwen3VL(_Model, qwen3_vl.Qwen3VLForConditionalGeneration):
    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)

    def _encoder_metadata(self, kept: KeptPatches, grids: Sequence[Grid], patches: PatchIndex) -> dict[str, Any]:
        cos, sin = self._rotary(patches.places, patches.sizes)
        ends, longest, every = self._segments(patches.frames)
        learned = self.visual.fast_pos_embed_interpolate(kept.thw)  # of whole grids: cheap next to the encoder
        return {
            "pos_embeds": learned[patches.rows.to(learned.device)],
            "rotary_pos_emb_cos": cos,
            "rotary_pos_emb_sin": sin,
            "cu_seqlens": ends,
            "max_seqlen": longest,
            "sequence_lengths": every,
        }
