"""`python -m recipes.universal.train`: train the universal layer on drawn pages, on a CPU or a GPU, in any number of calls.

Targets: the cells that show the answer, the letters in each cell (which teaches reading), and the kind of question. No
vision-language model takes part. The state is saved every few minutes; the next call continues from it.
"""

import argparse
import json
import math
import pickle
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from arr_coc.errors import ArrCocError
from arr_coc.files import replacing
from arr_coc.layer.model import EncodedView, LayerOutput
from arr_coc.layer.novelty import fit_images, image_statistics, pad_questions
from arr_coc.layer.universal import INTENTS, UniversalLayer, question_bytes, universal_config
from arr_coc.training.losses import EvidenceMask, calibration_loss, ranking_loss
from recipes.reader.optimizer import Muon
from recipes.universal.pages import LETTERS, Asked, TrainingPage, to_tensors

IMAGES = 8  # of a step
QUESTIONS = 4  # about an image, in a step
AVERAGE = 0.998  # decay of the moving average of the weights
LETTER_WEIGHT, INTENT_WEIGHT, ABSENT_WEIGHT = 0.5, 0.1, 0.3
KEPT_PAGES = 9000  # in memory; older ones make room
FOUND_SHARE = 0.125  # of the cells: `found` is that all evidence is among them


class LetterHead(nn.Module):
    """Which letters a cell holds, from the cells before the question; used in training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, len(LETTERS))
        nn.init.constant_(self.out.bias, -3.0)  # most cells hold none of most letters

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(cells)).flatten(0, -2)


def misspell(rng: random.Random, text: str) -> str:
    """The question with one letter dropped, doubled or swapped, one time in ten."""
    if len(text) < 6 or rng.random() > 0.1:
        return text
    at = rng.randrange(1, len(text) - 2)
    return rng.choice(
        (
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
        )
    )


@dataclass
class PagePool:
    """Pages in memory. New shards are read as they appear."""

    folder: Path
    pages: list[TrainingPage]
    seen: set[str]

    def refresh(self) -> None:
        for path in sorted(self.folder.glob("pages_*.pickle")):
            if path.name not in self.seen:
                self.seen.add(path.name)
                self.pages += pickle.loads(path.read_bytes())
        del self.pages[: max(0, len(self.pages) - KEPT_PAGES)]


def choose_questions(rng: random.Random, page: TrainingPage, count: int) -> list[Asked]:
    """Some questions of a page; mostly those that can be answered."""
    find = [one for one in page.questions if one.intent == "find"]
    other = [one for one in page.questions if one.intent != "find"]
    some = rng.sample(find, min(len(find), count - 1))
    return some + rng.sample(other, min(len(other), count - len(some)))


def encode_questions(texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_questions([question_bytes(one) for one in texts])


def predict(
    layer: UniversalLayer, page: TrainingPage, texts: Sequence[str]
) -> tuple[EncodedView, torch.Tensor, torch.Tensor, LayerOutput]:
    """The page's cells, the questions' words and their mask, and the prediction for each question."""
    device = layer.mean.device
    channels, pixels = (one.to(device) for one in to_tensors(page))
    words, mask = (one.to(device) for one in encode_questions(texts))
    view, encoded = layer.encode_view(channels, pixels), layer.words(words, mask)
    return view, encoded, mask, layer.score(view[words.new_zeros(len(texts), dtype=torch.long)], encoded, mask)


def losses(
    layer: UniversalLayer, letters: LetterHead, page: TrainingPage, asked: Sequence[Asked], texts: Sequence[str]
) -> tuple[dict[str, torch.Tensor], LayerOutput]:
    """The losses of some questions about one page."""
    device = layer.mean.device
    view, encoded, mask, output = predict(layer, page, texts)
    logits = output.relevance.float()
    found: dict[str, torch.Tensor] = {}
    groups = [[torch.from_numpy(group).long().to(device) for group in one.groups] for one in asked]
    if any(groups):
        evidence = EvidenceMask.from_groups(groups, logits.shape[-1], logits.device)
        found["ranking"] = ranking_loss(logits, evidence)
        found["calibration"] = calibration_loss(logits, evidence)
    absent = [row for row, one in enumerate(asked) if one.intent == "absent"]
    if absent:
        found["absent"] = ABSENT_WEIGHT * F.softplus(logits[absent]).mean()
    doubts = layer.doubt(encoded, mask, output).float()
    intents = torch.tensor([INTENTS.index(one.intent) for one in asked], device=device)
    hit, known = (one.to(device) for one in found_targets(logits, groups))
    found["intent"] = INTENT_WEIGHT * F.cross_entropy(doubts[:, :-1], intents)
    if bool(known.any()):
        found["found"] = INTENT_WEIGHT * F.binary_cross_entropy_with_logits(doubts[known, -1], hit[known])
    wanted = torch.zeros(page.shape[0] * page.shape[1], len(LETTERS))
    wanted[page.letters[:, 0], page.letters[:, 1]] = 1.0
    wanted = wanted.to(device)
    each = F.binary_cross_entropy_with_logits(letters(view.cells).float(), wanted, reduction="none")
    found["letters"] = LETTER_WEIGHT * (each.sum() / max(1.0, len(page.letters) + 0.2 * wanted.shape[0]))
    return found, output


def found_targets(logits: torch.Tensor, groups: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether the best cells hold some group whole, and for which questions that is known: `[Q]` each.

    An absent thing is never found.
    """
    count = max(1, round(FOUND_SHARE * logits.shape[-1]))
    best = logits.detach().topk(count, dim=-1).indices
    hit = [
        max((float(torch.isin(group, row).all()) for group in several), default=0.0)
        for several, row in zip(groups, best, strict=True)
    ]
    return torch.tensor(hit), torch.tensor([bool(several) for several in groups])


def make_optimisers(layer: nn.Module, head: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for the rest at half the rate."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in [*layer.named_parameters(), *head.named_parameters()]:
        in_block = name.startswith(("seeing.", "asking.", "questions.", "words.into", "words.back"))
        some = matrices if in_block and parameter.ndim == 2 else others if parameter.ndim > 1 else plain
        some.append(parameter)
    groups: list[dict[str, Any]] = [{"params": others, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}]
    return [
        Muon(matrices, lr=rate, weight_decay=0.02),
        torch.optim.AdamW([group | {"rate_share": 0.5} for group in groups], lr=rate, betas=(0.9, 0.98)),
    ]


class Training:
    """The layer, its optimiser and its moving average."""

    def __init__(self, state: Path, rate: float, sizes: dict[str, Any], device: str = "cpu") -> None:
        self.state_path, self.rate, self.device = state, rate, torch.device(device)
        self.layer = UniversalLayer(universal_config(**sizes)).to(self.device)
        self.letters = LetterHead(self.layer.config.width).to(self.device)
        self.average = UniversalLayer(self.layer.config).to(self.device)
        self.step, self.seconds = 0, 0.0
        self.optimisers = make_optimisers(self.layer, self.letters, rate)
        if state.exists():
            saved = torch.load(state, map_location="cpu", weights_only=True)
            width = saved["layer"]["norm.weight"].numel()
            if width != self.layer.config.width:
                raise ArrCocError(
                    f"{str(state)!r} has width {width}, expected {self.layer.config.width}: use another folder"
                )
            self.layer.load_state_dict(saved["layer"])
            self.letters.load_state_dict(saved["letters"])
            self.average.load_state_dict(saved["average"])
            for optimiser, values in zip(self.optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(values)
            self.step, self.seconds = saved["step"], saved["seconds"]
        else:
            self.average.load_state_dict(self.layer.state_dict())

    def save(self) -> None:
        with replacing(self.state_path) as temporary:
            torch.save(
                {
                    "layer": self.layer.state_dict(), "letters": self.letters.state_dict(),
                    "average": self.average.state_dict(), "optimisers": [one.state_dict() for one in self.optimisers],
                    "step": self.step, "seconds": self.seconds,
                },
                temporary,
            )  # fmt: skip

    def fit_channels(self, pages: Sequence[TrainingPage]) -> None:
        """Mean and spread of the channels, from the first pages."""
        values = torch.cat([torch.from_numpy(page.channels).float().flatten(1) for page in pages[:512]], dim=1)
        values = values.to(self.device)
        for one in (self.layer, self.average):
            one.mean.copy_(values.mean(1).view(-1, 1, 1))
            one.spread.copy_(values.std(1).clamp(min=1e-3).view(-1, 1, 1))

    def start_from(self, folder: Path) -> None:
        """The weights of a trained layer, its channel statistics included. The letter head starts from scratch."""
        weights = UniversalLayer.from_pretrained(folder).state_dict()
        for one in (self.layer, self.average):
            one.load_state_dict(weights)

    def fit_novelty(self, pages: Sequence[TrainingPage]) -> None:
        """What training images look like, so that the layer is not trusted on images of another kind."""
        names = self.average.config.channels
        mean, inverse = fit_images(
            [image_statistics(torch.from_numpy(page.channels).float()[None], names) for page in pages]
        )
        self.average.usual.copy_(mean)
        self.average.unusual.copy_(inverse)

    def take_step(
        self, rng: random.Random, pages: Sequence[TrainingPage], progress: float, half: bool
    ) -> dict[str, float]:
        """One step at `progress` (0 to 1) of the schedule; `half`: in bfloat16 where that is safe."""
        warm = min(1.0, (self.step + 1) / 100)
        rate = self.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in (group for optimiser in self.optimisers for group in optimiser.param_groups):
            group["lr"] = rate * group.get("rate_share", 1.0)
        totals: dict[str, float] = {}
        for page in rng.sample(pages, IMAGES):
            asked = choose_questions(rng, page, QUESTIONS)
            texts = [misspell(rng, one.text) for one in asked]
            on_cpu = self.device.type == "cpu"
            with (
                torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext(),
                sdpa_kernel(SDPBackend.MATH) if on_cpu else nullcontext(),
            ):
                found, _ = losses(self.layer, self.letters, page, asked, texts)
                loss = torch.stack(list(found.values())).sum() / IMAGES
            loss.backward()
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value.item() / IMAGES
        nn.utils.clip_grad_norm_([*self.layer.parameters(), *self.letters.parameters()], 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        decay = min(AVERAGE, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.layer.parameters(), strict=True):
                mean.lerp_(now, 1 - decay)
        return totals


@torch.no_grad()
def validate(
    layer: UniversalLayer, pages: Sequence[TrainingPage], shares: Sequence[float] = (0.25, 0.125, 0.0625)
) -> dict[str, Any]:
    """Recall of evidence within shares of the cells, by kind of question; and accuracy of the intents."""
    layer.eval()
    rows: dict[str, list[list[float]]] = {}
    intents: list[float] = []
    for page in pages:
        _, encoded, mask, output = predict(layer, page, [one.text for one in page.questions])
        said = layer.doubt(encoded, mask, output)[:, :-1].argmax(-1).tolist()
        for row, (one, logits) in enumerate(zip(page.questions, output.relevance.cpu(), strict=True)):
            intents.append(float(INTENTS[said[row]] == one.intent))
            if one.groups:
                order = logits.argsort(descending=True)
                kept = [order[: max(1, round(share * len(order)))] for share in shares]
                recalls = [
                    max(float(torch.isin(torch.from_numpy(g).long(), some).float().mean()) for g in one.groups)
                    for some in kept
                ]
                rows.setdefault(one.kind, []).append(recalls)
    layer.train()
    table = {
        kind: [round(sum(column) / len(several), 3) for column in zip(*several, strict=True)]
        for kind, several in rows.items()
    }
    everything = [one for several in rows.values() for one in several]
    table["all"] = [round(sum(column) / len(everything), 3) for column in zip(*everything, strict=True)]
    return {"recall": table, "intent": round(sum(intents) / len(intents), 3)}


def run(training: Training, pool: PagePool, held: PagePool, out: Path, given: argparse.Namespace) -> None:
    """Train until this call's minutes or the steps of the schedule are over; then validate and write the layer."""
    half = training.device.type == "cuda" or torch.backends.mkldnn.is_available()
    schedule = 60 * (given.schedule or given.minutes)
    start, before, logged, saved = time.monotonic(), training.seconds, time.monotonic(), time.monotonic()
    sums: dict[str, list[float]] = {}
    with (out / "log.jsonl").open("a") as log:

        def write(row: dict[str, Any]) -> None:
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(json.dumps(row), flush=True)

        while (now := time.monotonic()) - start < 60 * given.minutes and training.step < (given.steps or math.inf):
            training.seconds = before + now - start
            done = training.step / given.steps if given.steps else training.seconds / schedule
            # A batch depends on the seed, the step and the pages that are there.
            rng = random.Random(f"{given.seed}/{training.step}")
            for name, value in training.take_step(rng, pool.pages, min(1.0, done), half).items():
                sums.setdefault(name, []).append(value)
            if now - logged > 30:
                pool.refresh()
                means = {name: round(sum(some) / len(some), 4) for name, some in sums.items()}
                write({"step": training.step, "seconds": round(training.seconds), "pages": len(pool.pages), **means})
                sums, logged = {}, now
            if now - saved > 300:
                training.save()
                write({"step": training.step, **validate(training.average, held.pages[:48])})
                saved = now
        training.save()
        write({"step": training.step, **validate(training.average, held.pages)})
    training.fit_novelty(pool.pages)
    training.average.save_pretrained(out / "layer")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.universal.train", description=__doc__)
    parser.add_argument("--pages", type=Path, required=True, help="folder of shards (recipes.universal.draw)")
    parser.add_argument("--validation", type=Path, help="folder of shards that are never trained on")
    parser.add_argument("--out", type=Path, required=True, help="folder of the state, the log and the layer")
    parser.add_argument("--minutes", type=float, default=60, help="of this call (60)")
    parser.add_argument("--schedule", type=float, help="minutes of the whole schedule, over all calls (this call's)")
    parser.add_argument("--steps", type=int, help="schedule by steps, over all calls, in place of minutes")
    parser.add_argument("--least", type=int, default=256, help="pages to wait for before training starts (256)")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument(
        "--start", type=Path, help="folder of a trained universal layer to continue from, without its optimiser"
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.least < IMAGES:
        parser.error(f"expected --least from {IMAGES} on, the images of a step, got {given.least}")
    for folder in (given.pages, given.validation):
        if folder is not None and not folder.is_dir():
            parser.error(f"expected a folder of shards that recipes.universal.draw wrote, got {folder}")
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    pool = PagePool(given.pages, [], set())
    pool.refresh()
    while len(pool.pages) < given.least:
        print(f"waiting for pages: {len(pool.pages)} of {given.least}", flush=True)
        time.sleep(5)
        pool.refresh()
    held = PagePool(given.validation or given.pages, [], set())
    held.refresh()
    try:
        training = Training(given.out / "state.pt", given.rate, {"width": given.width}, given.device)
        if training.step == 0:
            training.fit_channels(pool.pages)
            if given.start is not None:
                training.start_from(given.start)
    except ArrCocError as error:
        parser.error(str(error))
    run(training, pool, held, given.out, given)


if __name__ == "__main__":
    main()
