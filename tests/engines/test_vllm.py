"""The plugin in vLLM itself, compared with transformers. `make test-vllm` runs this in an environment of its own."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

import arr_coc
from arr_coc import reader
from tests.engines import tiny_models
from tests.engines.tiny_models import picture

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}  # one process, nothing to compile

QUESTION = "What is the total amount?"
WHOLE = {"budget": "all"}
CLOSE = 1e-5  # of log-probabilities, in float32
RESIZED = 5e-3  # the same for pictures that are resized: vLLM's image processor does it with another library
# Two engines read their prompts in chunks that end inside a picture.
ENGINES = {"qwen2_vl": 512, "qwen2_5_vl": 40, "qwen3_vl": 512, "qwen3_vl in chunks": 40}


def start(folder: Path, arr_coc: dict[str, Any] | None, **options: Any) -> Any:
    from vllm import LLM

    settings = {
        "dtype": "float32", "max_model_len": 1024, "enforce_eager": True, "limit_mm_per_prompt": {"image": 3, "video": 0},
        "max_num_seqs": 8, "gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 2**28, "block_size": 32,
    }  # fmt: skip
    server = {} if arr_coc is None else {"mm_processor_kwargs": {"arr_coc": arr_coc}}
    return LLM(str(folder), **settings | server | options)


def stop(engine: Any) -> None:
    """End an engine whose caller has no reference to it any more."""
    from vllm.distributed import cleanup_dist_env_and_memory

    del engine
    gc.collect()
    cleanup_dist_env_and_memory()


class Pair:
    """The same model in vLLM and in transformers."""

    def __init__(self, folder: Path, arr_coc_options: dict[str, Any] | None, **options: Any) -> None:
        self.folder = folder
        self.engine = start(folder, arr_coc_options, **options)
        self.vlm = arr_coc.load(folder, dtype="float32")

    def prepared(self, images: list[Image.Image], question: str, cells: list[list[int]] | None) -> Any:
        dense = self.vlm.prepare(images, question)
        if cells is None:
            return dense
        given = [
            replace(one, keep=torch.tensor(kept), encoded=torch.tensor(kept))
            for one, kept in zip(dense.allocations, cells, strict=True)
        ]
        return self.vlm.prepare(images, question, allocation=given)

    def expected(
        self, images: list[Image.Image], cells: list[list[int]] | None, question: str = QUESTION
    ) -> torch.Tensor:
        """Log-probabilities `[V]` of the first token in transformers."""
        with torch.no_grad():
            logits = self.vlm.model(**self.prepared(images, question, cells)).logits
        return logits[0, -1].float().log_softmax(-1)

    def prompt(self, images: list[Image.Image], question: str = QUESTION, **options: Any) -> dict[str, Any]:
        """A request for vLLM; `options` are its own for `arr_coc`."""
        text = self.vlm.prepare(images, question).texts[0] if images else f"<|user|>{question}<|assistant|>"
        shown = {"multi_modal_data": {"image": images}} if images else {}
        return {"prompt": text, **shown, **({"mm_processor_kwargs": {"arr_coc": options}} if options else {})}

    def run(self, prompts: list[dict[str, Any]], tokens: int = 1) -> list[Any]:
        from vllm import SamplingParams

        return self.engine.generate(
            prompts, SamplingParams(temperature=0, max_tokens=tokens, logprobs=20), use_tqdm=False
        )

    def encoded(self) -> list[int]:
        """A list that grows by the number of patches of each run of the encoder."""
        runner = self.engine.llm_engine.model_executor.driver_worker.worker.model_runner
        found: list[int] = []
        runner.model.visual.register_forward_pre_hook(lambda _, args: found.append(len(args[0])))
        return found


def difference(output: Any, expected: torch.Tensor) -> float:
    """The largest difference of the log-probabilities that vLLM returned."""
    found = {number: entry.logprob for number, entry in output.outputs[0].logprobs[0].items()}
    assert len(found) >= 20
    return max(abs(value - float(expected[number])) for number, value in found.items())


@pytest.fixture(scope="module", params=list(ENGINES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    family = request.param.split()[0]
    folder = tiny_models.write(family, tmp_path_factory.mktemp(family))
    made = Pair(folder, WHOLE, max_num_batched_tokens=ENGINES[request.param])
    yield made
    stop(made.__dict__.pop("engine"))


ONE = [picture(128, 96)]
SEVERAL = [picture(80, 120, 1), picture(120, 56, 2), picture(64, 64, 3)]
CASES = {
    "all cells": (ONE, None),
    "some cells": (ONE, [list(range(3, 190, 5))]),
    "one cell": (ONE, [[100]]),
    "one window": (ONE, [[0, 1, 16, 17]]),
    "several pictures": (SEVERAL, [list(range(0, 150, 2)), [7, 8, 50, 104], list(range(64))]),
    "the same picture twice": ([ONE[0], ONE[0]], [[5, 6, 7], list(range(0, 192, 3))]),
    "text alone": ([], None),
}


@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_are_those_of_transformers(pair: Pair, case: str) -> None:
    images, cells = CASES[case]
    (output,) = pair.run([pair.prompt(images, **({} if cells is None else {"cells": cells}))])
    assert difference(output, pair.expected(images, cells)) < CLOSE
    grids = [one.n for one in pair.prepared(images, QUESTION, cells).allocations]
    wanted = sum(grids) if cells is None else sum(map(len, cells))
    assert output.prompt_token_ids.count(pair.vlm.model.config.image_token_id) == wanted


def test_other_cells_give_other_probabilities(pair: Pair) -> None:
    """The comparison can fail: a shifted choice is noticed."""
    (output,) = pair.run([pair.prompt(ONE, cells=[list(range(4, 190, 5))])])
    assert difference(output, pair.expected(ONE, [list(range(3, 190, 5))])) > 100 * CLOSE


def test_a_batch_of_different_budgets(pair: Pair) -> None:
    prompts = [pair.prompt(*CASES[case][:1], **({"cells": CASES[case][1]} if CASES[case][1] else {})) for case in CASES]
    for case, output in zip(CASES, pair.run(prompts), strict=True):
        assert difference(output, pair.expected(*CASES[case])) < CLOSE, case


def test_generated_tokens_continue_at_the_dense_prompts_positions(pair: Pair) -> None:
    cells = [list(range(1, 192, 7))]
    (output,) = pair.run([pair.prompt(ONE, cells=cells)], tokens=8)
    prepared = pair.prepared(ONE, QUESTION, cells)
    with torch.no_grad():
        ids = pair.vlm.model.generate(**prepared, max_new_tokens=8, do_sample=False)[0, prepared.length :]
    assert list(output.outputs[0].token_ids) == ids.tolist()


def test_the_prefix_cache_keeps_choices_apart(pair: Pair) -> None:
    """Equal prompts whose choices differ have the same token ids, so only the hash tells them apart."""
    first, second = list(range(0, 180, 3)), list(range(1, 181, 3))
    image = [picture(128, 96, 9)]
    outputs = [pair.run([pair.prompt(image, cells=[cells])])[0] for cells in (first, second, first)]
    assert outputs[0].prompt_token_ids == outputs[1].prompt_token_ids
    for output, cells in zip(outputs, (first, second, first), strict=True):
        assert difference(output, pair.expected(image, [cells])) < CLOSE
    assert outputs[1].num_cached_tokens < outputs[2].num_cached_tokens
    assert outputs[2].num_cached_tokens >= 32


def test_the_choice_is_the_packages_own(pair: Pair) -> None:
    for budget in ("25%", 10, "mass 50%"):
        expected = pair.vlm.prepare(ONE, QUESTION, glance=budget).allocations[0].keep.tolist()
        (output,) = pair.run([pair.prompt(ONE, budget=budget)])
        assert difference(output, pair.expected(ONE, [expected])) < CLOSE


def test_a_second_question_encodes_its_own_cells_and_the_same_one_none(pair: Pair) -> None:
    """The universal layer reads the question, so the choice differs; the caches serve a question that was asked before."""
    image, patches = [picture(128, 96, 11)], pair.encoded()
    for question in (QUESTION, "Who sold this, and when?", QUESTION):
        pair.run([pair.prompt(image, question, budget="25%")])
    assert patches == [48 * 4] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "0%"}, "expected a budget of at least one cell, got '0%'"),
        ({"budget": "half"}, "expected budget as a count"),
        ({"selector": "nonsense"}, "expected a selector among"),
        ({"selector": "os:system"}, "expected a selector among"),
        ({"layer": "/etc"}, "expected the options of a request among .* got 'layer'"),
        ({"cells": [[0], [1]]}, "expected cells for each of the 1 pictures, got 2 lists"),
        ({"cells": [[9999]]}, "between 0 and 191"),
        ({"cells": [[]]}, "expected cells as one list of cell numbers"),
        ({"selector": "resize", "budget": "25%"}, "makes pictures smaller"),
        ({"selector": "fastv", "budget": "25%"}, "expected a selector that chooses before encoding, got 'fastv'"),
    ],
)
def test_bad_options_are_refused_and_the_engine_goes_on(pair: Pair, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pair.run([pair.prompt(ONE, **options)])
    (output,) = pair.run([pair.prompt(ONE)])
    assert difference(output, pair.expected(ONE, None)) < CLOSE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("qwen2_5_vl", tmp_path_factory.mktemp("tiny"))


def test_without_the_option_vllm_is_as_it_was(folder: Path) -> None:
    stock = Pair(folder, None)
    (output,) = stock.run([stock.prompt(ONE)])
    assert difference(output, stock.expected(ONE, None)) < CLOSE
    with pytest.raises(ValueError, match="expected a server with the option arr_coc"):
        stock.run([stock.prompt(ONE, budget="25%")])
    stop(stock.__dict__.pop("engine"))


def test_videos_are_left_alone(tmp_path: Path) -> None:
    """Pictures before and after a video: equal to vLLM's own in every step, and only the pictures are cut."""
    from vllm import SamplingParams

    tiny_models.write("qwen3_vl", tmp_path)  # timestamps between its frames
    frames = np.stack([np.asarray(picture(64, 48, seed)) for seed in range(4)])
    metadata = {
        "fps": 2.0,
        "duration": 2.0,
        "total_num_frames": 4,
        "frames_indices": [0, 1, 2, 3],
        "video_backend": "opencv",
    }
    parts = "".join(f"{letter}<|vision_start|><|{kind}_pad|><|vision_end|>" for letter, kind in zip("abc", ["image", "video", "image"], strict=True))  # fmt: skip
    shown = {"image": [picture(128, 96), picture(64, 80, 5)], "video": [(frames, metadata)]}
    prompt = {"prompt": f"<|user|>{parts}{QUESTION}<|assistant|>", "multi_modal_data": shown}

    def ask(options: dict[str, Any] | None) -> Any:
        engines = [start(tmp_path, options, limit_mm_per_prompt={"image": 2, "video": 1})]
        sampling = SamplingParams(temperature=0, max_tokens=3, logprobs=20)
        (output,) = engines[0].generate([prompt], sampling, use_tqdm=False)
        stop(engines.pop())
        return output

    stock, whole, cut = ask(None), ask(WHOLE), ask({"budget": "25%"})
    for before, after in zip(stock.outputs[0].logprobs, whole.outputs[0].logprobs, strict=True):
        assert {n: one.logprob for n, one in before.items()} == {n: one.logprob for n, one in after.items()}
    assert len(stock.prompt_token_ids) - len(cut.prompt_token_ids) == (192 + 80) * 3 / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mm_encoder_tp_mode": "data"}, "expected --mm-encoder-tp-mode weights"),
        ({"compilation_config": {"cudagraph_mm_encoder": True}}, "expected cudagraph_mm_encoder off"),
        ({"video_pruning_rate": 0.5}, "expected no video pruning"),
    ],
)
def test_what_goes_by_whole_grids_is_refused_at_the_start(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(folder, {"budget": "25%"}, **options)
    gc.collect()


@pytest.mark.parametrize("options", [{"budget": "none"}, {"budget": 8, "question": "?"}, {"layer": 3}, "12.5%"])
def test_bad_options_of_the_server(folder: Path, options: Any) -> None:
    with pytest.raises(ValueError, match="expected "):
        start(folder, options)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_two_ranks_of_tensor_parallelism(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }.items():
        monkeypatch.setenv(name, value)
    both = Pair(folder, WHOLE, tensor_parallel_size=2)
    try:
        for images, cells in (CASES["some cells"], CASES["several pictures"]):
            (output,) = both.run([both.prompt(images, cells=cells)])
            assert difference(output, both.expected(images, cells)) < CLOSE
    finally:
        stop(both.__dict__.pop("engine"))


ANSWERS = {
    "What is the total amount?": "37.40",
    "What is the date?": "12/03/2026",
    "What is the name of the company?": "HARBOUR MILL BAKERY",
    "How much is the Oat croissant?": "3.45",
}


@pytest.fixture(scope="module")
def shipped() -> Iterator[Pair]:
    made = Pair(reader.WEIGHTS, {"budget": "50%"}, max_model_len=1536)
    yield made
    stop(made.__dict__.pop("engine"))


@pytest.mark.parametrize("budget", ["50%", "12.5%"])
def test_the_reader_chooses_and_reads_as_in_transformers(shipped: Pair, budget: str) -> None:
    """The layer of the reader's folder chooses, with word embeddings that are read from the model's file."""
    image, questions = [arr_coc.pictures.receipt()], list(ANSWERS)[:3]
    outputs = shipped.run([shipped.prompt(image, question, budget=budget) for question in questions], 24)
    answers = shipped.vlm.ask(shipped.vlm.look(image), questions, glance=budget, max_new_tokens=24)
    for question, output, answer in zip(questions, outputs, answers, strict=True):
        kept = answer.allocations[0].encoded.tolist()
        assert difference(output, shipped.expected(image, [kept], question)) < RESIZED
        assert output.outputs[0].text == answer.text


def test_the_readers_answers(shipped: Pair) -> None:
    image = [arr_coc.pictures.receipt()]
    outputs = shipped.run([shipped.prompt(image, question, budget="all") for question in ANSWERS], 24)
    assert [output.outputs[0].text for output in outputs] == list(ANSWERS.values())
    (half,) = shipped.run([shipped.prompt(image)], 24)  # the server's budget
    assert half.outputs[0].text == "37.40"
    assert len(half.prompt_token_ids) < 0.6 * len(outputs[0].prompt_token_ids)


def test_a_second_question_about_all_cells_costs_no_encoding(shipped: Pair) -> None:
    image, patches = [picture(300, 300)], shipped.encoded()
    for question in ("What is the date?", "What is the total amount?"):
        shipped.run([shipped.prompt(image, question, budget="all")])
    assert len(patches) == 1


def test_a_second_question_with_a_layer_encodes_its_own_cells(shipped: Pair) -> None:
    image, patches = [arr_coc.pictures.scene()], shipped.encoded()
    for question in ("What is the date?", "What is the total amount?", "What is the date?"):
        shipped.run([shipped.prompt(image, question, budget="12.5%")])
    cells = math.ceil(shipped.vlm.prepare(image, "?").allocations[0].n / 8)
    assert patches == [4 * cells, 4 * cells]  # the third is the first again
