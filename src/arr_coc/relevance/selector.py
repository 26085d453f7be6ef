"""ARR-COC as a selector: cells by relevance to the question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from arr_coc.errors import SelectorError
from arr_coc.layer.inference import LayerPredictor
from arr_coc.layer.universal import UNKNOWN_SCRIPT, knows_script
from arr_coc.relevance.attending import auto_count
from arr_coc.relevance.coupling import IMAGE_UNFAMILIAR, PROBED_MIN, UNIVERSAL
from arr_coc.relevance.frame_budget import share_budget
from arr_coc.relevance.knowing import NO_PAGE, page_likeness
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.relevance.strategy import FOLLOW_QUESTION
from arr_coc.selectors.base import Choice, SelectionInput, Selector

ENCODER_DEPTH = 1.0  # of the vision encoder, for salience="encoder"
SMALL = "small"
LAYER = "layer"  # source of the coupling: the model's own layer
AUTO_GLANCE = 0.6  # share of the cells encoded under glance="auto"
KEEP_ALL = (
    "everything: nothing cheap relates cells to this question, so all encoded cells are read; a budget prunes anyway"
)
MIN_TRUST = 0.1  # smallest factor on relevance when images share a budget and nothing matches the question


class ArrCoc(Selector):
    """Knowing, balancing, attending: `arr_coc.relevance.realizing` is the whole story on one screen.

    Keyword arguments are those of `RelevanceSettings`. `continues`: where the language model is probed, `ask` and `generate`
    continue the prefill from there instead of starting again (`arr_coc.vlm.continuation`). "small": they do so where few cells are
    encoded, since the probe reads all of those. On a video, content repeated across frames is kept once
    (`arr_coc.relevance.frame_budget`).

    Needs: pixels. For the question: a trained layer, the language model itself, or an image-text encoder.
    """

    name = "arr-coc"
    glances = True
    reads_gaze = True

    def __init__(self, *, continues: bool | str = False, **settings: Any) -> None:
        if continues not in (True, False, SMALL):
            raise SelectorError(f"expected continues as True, False or {SMALL!r}, got {continues!r}")
        self.continues, self.continues_up_to = continues is True, PROBED_MIN if continues == SMALL else 0
        if settings.get("cascade") == "on":
            raise SelectorError("the cascade is for arr_coc.realize with embeddings in native mode: leave it out here")
        self.settings = RelevanceSettings(**settings)
        if self.settings.salience == "encoder":
            self.attention_at = (ENCODER_DEPTH,)

    def select(self, selection: SelectionInput) -> Choice:
        """Under `auto`, a probe of the language model would cost more than it saves: without a sure source, keep all."""
        is_cheap = self._is_cheap(selection)
        chosen = realized(selection, replace(self.settings, probe=False) if is_cheap else self.settings)
        if is_cheap and not is_sure(chosen) and not selection.is_gazed:
            return replace(chosen, keep=selection.candidates, strategy=KEEP_ALL, rule="everything")
        if selection.kind != "video" or selection.source is None:
            return chosen
        return share_budget(selection, chosen, self.settings.moments)

    def prepare(self, selections: Sequence[SelectionInput]) -> Sequence[SelectionInput]:
        """On a GPU, one pass over the textures and the layer for all pictures."""
        settings, first = self.settings, selections[0]
        if settings.coupling not in ("auto", "layer", "universal") or first.source is None or first.kind != "image":
            return selections
        if not pays_together(first.textures[0].device):
            return selections
        from arr_coc.relevance import together

        usable = [
            replace(
                one,
                layer=one.layer
                if settings.learned and settings.own_layer and settings.coupling != "universal"
                else None,
                universal=one.universal if settings.learned and settings.coupling != "layer" else None,
            )
            for one in selections
        ]
        # Under `auto` most pictures are never judged: whether a layer knows such an image is found out first.
        shown = [self._familiar_layers(one) if _is_auto(one) else one for one in usable]
        wanted = [number for number, one in enumerate(shown) if not _is_auto(one) or self._has_layer(one)]
        for number, one in zip(wanted, together.prepare([shown[number] for number in wanted]), strict=True):
            layers = {name: getattr(one, name) for name in ("layer", "universal") if getattr(one, name) is not None}
            usable[number] = replace(usable[number], **layers)
        return usable

    def before_encoding(self, selection: SelectionInput) -> Choice:
        """Under `auto`: three fifths of the cells where the layer recognises the question, otherwise all of them.

        The number of cells that `auto` keeps is decided here, too, so that it does not depend on what is encoded.
        """
        if not _is_auto(selection):
            return self.select(selection)
        selection = self._familiar_layers(selection)
        everything = Choice(selection.candidates, strategy=KEEP_ALL, rule="everything")
        has_layer = self._has_layer(selection)
        if has_layer and selection.kind == "image":  # not measured on videos
            chosen = self.select(replace(selection, k=math.ceil(AUTO_GLANCE * selection.grid.n)))
            assert chosen.relevance is not None
            if (chosen.coupled_by in (LAYER, UNIVERSAL) and is_sure(chosen)) or selection.is_gazed:
                return replace(chosen, auto=auto_count(chosen.relevance[chosen.keep]))
            everything = replace(everything, relevance=chosen.relevance, scores=chosen.scores, tensions=chosen.tensions)
            has_layer = False
        if not knows_script(selection.question.text):
            everything = replace(everything, strategy=f"{KEEP_ALL}; {UNKNOWN_SCRIPT}")
        if self._is_plain and not has_layer and selection.scorer is None and not selection.is_gazed:
            return replace(everything, auto=len(selection.candidates))  # nor could the gaze be sure
        return everything

    def _is_cheap(self, selection: SelectionInput) -> bool:
        """Whether only what costs little may decide: the caller left everything to `auto`, and a model stands ready."""
        return _is_auto(selection) and self._is_plain and selection.probe is not None

    def _has_layer(self, selection: SelectionInput) -> bool:
        """Whether a layer may decide: the model's own, or the universal one."""
        settings = self.settings
        own = selection.layer is not None and settings.own_layer and settings.coupling in ("auto", "layer")
        universal = selection.universal is not None and settings.coupling in ("auto", "universal")
        return settings.learned and (own or universal)

    def _familiar_layers(self, selection: SelectionInput) -> SelectionInput:
        """The selection without the layers that do not know such questions or images. A prediction would cost more."""
        if selection.kind != "image" or not self._is_plain or self.settings.explain or not self._has_layer(selection):
            return selection
        own, universal = (
            None if isinstance(one, LayerPredictor) and one.is_unfamiliar(selection, IMAGE_UNFAMILIAR) else one
            for one in (selection.layer, selection.universal)
        )
        if universal is not None and page_likeness(selection) < NO_PAGE:
            universal = None
        return replace(selection, layer=own, universal=universal)

    @property
    def _is_plain(self) -> bool:
        """Whether no setting asks for scores of a certain kind."""
        return self.settings.coupling == "auto" and not self.settings.weights and self.settings.exploit is None

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Each candidate's relevance `[M]`, reduced in an image where nothing matches the question."""
        chosen = self.select(selection)
        assert chosen.relevance is not None
        return chosen.relevance[selection.candidates] * max(MIN_TRUST, chosen.tensions["trust"])


def pays_together(device: torch.device) -> bool:
    """Whether several pictures are worked out in one pass: not on a CPU, which padding slows down (`benchmarks/choosing.py`)."""
    return device.type != "cpu"


def explained(selector: str) -> str | ArrCoc:
    """The selector of a name. The default one scores the cells for a picture of them, even where `auto` reads all."""
    return ArrCoc(explain=True) if selector == ArrCoc.name else selector


def is_sure(choice: Choice) -> bool:
    """Whether a layer or embeddings relate the cells to the question."""
    return choice.coupled_by in (LAYER, UNIVERSAL, "embeddings") and choice.rule in FOLLOW_QUESTION


def _is_auto(selection: SelectionInput) -> bool:
    return selection.k is None and selection.mass is None


class Universal(ArrCoc):
    """ARR-COC with the universal layer, even if the model has a layer of its own."""

    name = "arr-coc-universal"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"own_layer": False} | settings)

    def select(self, selection: SelectionInput) -> Choice:
        self._check(selection)
        return super().select(selection)

    def before_encoding(self, selection: SelectionInput) -> Choice:
        self._check(selection)
        return super().before_encoding(selection)

    def _check(self, selection: SelectionInput) -> None:
        """Raise where there is no universal layer to choose with: other sources would decide, or nothing would."""
        if selection.universal is None and selection.source is not None:
            raise SelectorError(
                f"selector {self.name!r} needs the universal layer, and this model was wrapped with layer=None: leave layer out"
            )


class Untrained(ArrCoc):
    """ARR-COC without any trained layer, even if the model has one."""

    name = "arr-coc-untrained"

    def __init__(self, *, continues: bool | str = False, **settings: Any) -> None:
        super().__init__(continues=continues, **{"learned": False} | settings)
