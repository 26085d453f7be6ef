"""The whole pipeline in small: rendering, training, resuming, measuring, writing the folder."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.reader import folder
from arr_coc.reader.model import TINY
from arr_coc.training.documents.fonts import FontShelf
from arr_coc.training.loop import Settings, Trainer, train
from arr_coc.training.recipe import TINY_STEP_KINDS
from arr_coc.training.source import Library
from arr_coc.training.validation import rendered_sheets


def test_loss_goes_down_and_the_checkpoint_resumes(fonts: FontShelf, tmp_path: Path, capsys: pytest.CaptureFixture):
    library = Library(fonts)
    settings = Settings(
        seconds=14, schedule_seconds=60, lr=3e-3, warmup_steps=10, reserve=2, workers=0, device="cpu", compiled=False
    )
    trainer = Trainer(settings, TINY)
    sheets = rendered_sheets(library, 1)[-1:]
    run = train(trainer, library, sheets, tmp_path / "checkpoint.pt", tmp_path / "log.jsonl", TINY_STEP_KINDS)
    assert run.step > 10
    again = Trainer(settings, TINY)
    again.run.load(tmp_path / "checkpoint.pt", "cpu")
    assert again.run.step == run.step
    assert again.run.seconds == pytest.approx(run.seconds)
    torch.testing.assert_close(again.run.model.state_dict(), run.model.state_dict())
    path = folder.write(run.average, tmp_path / "reader")
    loaded = Qwen2VLForConditionalGeneration.from_pretrained(path)
    assert loaded.dtype == torch.float16
    assert "measured" in (tmp_path / "log.jsonl").read_text()
