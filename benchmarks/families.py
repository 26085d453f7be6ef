"""Write the table of docs/families.md: what each family can do, and its largest difference from the stock model.

python benchmarks/families.py

Every number is the largest over tiny random models in float32, batches with several pictures, and both attention
implementations: the language model's output at the kept tokens, and the encoder's where a family glances. Keeping every
token must be equal bit for bit, or the script fails. `tests/adapters` runs the same comparisons, and checks the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from arr_coc.adapters.base import Adapter  # noqa: E402
from arr_coc.adapters.families import FAMILIES, adapter  # noqa: E402

first, more, oracle, more_oracle = (  # the tiny models and the oracles of the tests
    import_module(f"tests.adapters.{name}") for name in ("families", "more_families", "oracle", "more_oracle")
)
PAGE = ROOT / "docs" / "families.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
VARIANTS = ("_window",)  # the same family with another language model
HEAD = (
    "| family | `model_type` | gaze | glance | video | semantics | largest difference | newest transformers tried |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


@dataclass
class Row:
    """One family's line of the table."""

    known: type[Adapter]
    semantics: str = ""
    difference: float = 0.0
    tried: list[str] = field(default_factory=list)

    def line(self) -> str:
        known = self.known
        types = ", ".join(f"`{kind}`" for kind in known.model_types) or "`llava`, with a Pixtral tower"
        video = "yes" if "video" in known.kinds else "no"
        glance = "yes" if known.glances else "no"
        cells = [
            known.family,
            types,
            "yes",
            glance,
            video,
            self.semantics,
            f"{self.difference:.0e}",
            transformers.__version__,
        ]
        return f"| {' | '.join(cells)} |\n"


@torch.no_grad()
def measure() -> list[Row]:
    """Run every tiny model of the tests."""
    rows = {known: Row(known) for known in FAMILIES}
    for name, known in first.FAMILIES.items():
        for attention in ("sdpa", "eager"):
            stock, inputs = first.shared_model(name, attention), first.prompt(name, "ragged")
            reader = adapter(stock)
            whole, _ = oracle.sparse(reader, inputs)
            assert torch.equal(stock(**whole).logits, stock(**oracle.dense(reader, inputs)).logits), name
            keeps = oracle.choose(reader.visuals(inputs))
            ours, source = oracle.sparse(reader, inputs, keeps)
            truth = oracle.at_source(stock(**oracle.masked(reader, inputs, keeps)).logits, source)
            errors = [float((oracle.real(stock(**ours).logits, source) - truth).abs().max())]
            if known.glances:
                seen = reader.encode(inputs, reader.visuals(inputs), keeps, ())
                stocks = oracle.encoder_truth(name, reader, inputs, keeps)
                errors += [
                    float((one.tokens - tokens).abs().max()) for one, (tokens, _) in zip(seen, stocks, strict=True)
                ]
            _add(rows[type(reader)], name, reader, max(errors))
    for name in more.LISTED:
        for attention in ("sdpa", "eager"):
            case = more_oracle.case(name, attention)
            whole = more_oracle.keyword_arguments(case)
            assert torch.equal(more_oracle.last_logits(case, whole), case.logits), name
            keeps = more_oracle.choose(case)
            errors = [more_oracle.language_error(case, keeps)]
            if more.MORE[name].glances:
                errors.append(more_oracle.encoder_error(case, keeps)[0])
            if not name.endswith(VARIANTS):
                _add(rows[type(case.adapter)], name, case.adapter, max(errors))
    return list(rows.values())


def _add(row: Row, name: str, reader: Adapter, difference: float) -> None:
    row.semantics = reader.semantics
    row.difference = max(row.difference, difference)
    row.tried.append(name)


def table(rows: list[Row]) -> str:
    missing = [row.known.family for row in rows if not row.tried]
    assert not missing, f"no tiny model was run for {', '.join(missing)}"
    return HEAD + "".join(row.line() for row in rows)


def page(made: str) -> str:
    """The page with its table replaced."""
    text = PAGE.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}{made}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(table(measure())))
