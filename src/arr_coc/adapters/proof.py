"""The proof that an adapter reproduces its model, on one picture: keeping all is the stock model, bit for bit.

And keeping some is what `Adapter.semantics` says: the dropped tokens masked at every layer, or removed before the first.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.adapters.packing import assemble, model_kwargs
from arr_coc.adapters.processor import TOKEN_COUNTS
from arr_coc.errors import ArrCocError, ModelError, first_line

if TYPE_CHECKING:
    from arr_coc.adapters.base import Adapter, Inputs

STEPS = 3  # tokens that are generated
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # of the largest logit, for some of the cells
HALF_TOLERANCE = 0.05


def prove(adapter: Adapter, inputs: Inputs) -> None:
    """Raise `ModelError` where the adapter and the stock model differ on `inputs`, a processor's output with a picture."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of generation options that the caller did not choose
            why = _difference(adapter, inputs)
    except ArrCocError as error:
        raise ModelError(f"{adapter.family} is refused: {error}") from error
    except Exception as error:  # whatever a model of an unknown kind raises
        raise ModelError(
            f"{adapter.family} is refused, because it failed on a small picture: {first_line(error)}"
        ) from error
    if why:
        raise ModelError(f"{adapter.family} is refused: {why}")


def _difference(adapter: Adapter, inputs: Inputs) -> str:
    """What differs from the stock model; empty where nothing does."""
    stock = {name: value.to(adapter.device) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    stock.pop(TOKEN_COUNTS, None)
    for name, value in stock.items():
        if value.is_floating_point():
            stock[name] = value.to(adapter.model.dtype)
    expected = _logits(adapter.model, stock)
    visuals = adapter.visuals(inputs)
    if not visuals:
        return "the prompt of the check has no picture"
    encoded = adapter.encode(inputs, visuals, None, ())
    whole, features = assemble(adapter, inputs, visuals, encoded, [seen.cells for seen in encoded])
    ours = _logits(adapter.model, model_kwargs(adapter, whole, features))
    if not torch.equal(ours, expected):
        difference = float((ours.float() - expected.float()).abs().max())
        return f"keeping every token differs from the stock model by {difference:.2g}, where equality was expected"
    keeps = [seen.cells[::2].contiguous() for seen in encoded]
    packed, kept = assemble(adapter, inputs, visuals, encoded, keeps)
    some = adapter.model(**model_kwargs(adapter, packed, kept)).logits[:, -1].float()
    tolerance = TOLERANCE.get(adapter.model.dtype, HALF_TOLERANCE) * float(expected[0].abs().max())
    if float((some - expected[0].float()).abs().max()) < tolerance:
        return "its answer does not depend on the picture, so that nothing can be checked"
    if adapter.semantics == "masked":
        heard = inputs["attention_mask"].clone()
        for visual, keep in zip(visuals, keeps, strict=True):
            heard[visual.row, visual.places] = visual.tokens_kept(keep).to(heard.dtype)
        given = model_kwargs(adapter, whole, features) | {"attention_mask": heard.to(adapter.device)}
        difference = float((some - adapter.model(**given).logits[:, -1].float()).abs().max())
        if difference > tolerance:
            return f"keeping half of the tokens differs from masking the others by {difference:.2g}"
    return ""


def _logits(model: Any, given: dict[str, Any]) -> torch.Tensor:
    """The logits of the first tokens of a greedy answer: `[STEPS, B, V]`."""
    made = model.generate(
        **given, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, num_beams=1, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    return torch.stack(made.logits)
