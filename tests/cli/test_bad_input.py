"""Bad input is one sentence on stderr and exit code 2. Nothing is printed to stdout and nothing is written."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

import arr_coc
from arr_coc.cli import main
from tests.cli.conftest import without_progress, write_data, write_model, write_photos

UNREAD = "--model /not/read"  # the error comes before a model is loaded
ASK, SHOW, EVAL = f"ask IMAGE What? {UNREAD}", f"show IMAGE What? {UNREAD}", f"eval DATA {UNREAD}"
TRAIN = "train DATA --model MODEL -o out --steps 2 --pictures 2"
FIT = "fit-embeddings PHOTOS -o e.safetensors --encoder tests.embedding.fake:make"

# A command, in which words in capitals name a file of the fixture `places`, and a part of the error message.
CASES = [
    (f"{ASK} --budget lots", "got 'lots'"),
    (f"{ASK} --glance -1", "got '-1'"),
    (f"{ASK} --selector psychic", "got 'psychic'"),
    (f"{ASK} --selector uniform", "selector 'uniform' has no scores to derive \"auto\" from: give a count or a share"),
    (f"{ASK} --why /no/such/folder/why.png", "there is no folder"),
    (f"{ASK} --where where.docx", "use .png or .jpg"),
    (f"{ASK} --tokens 0", "--tokens of at least 1, got 0"),
    (f"{ASK} --gaze middle", "expected --gaze as X,Y in pixels, such as 120,80, got 'middle'"),
    (f"{ASK} --gaze nan,3", "expected gaze at finite pixels, got (nan, 3)"),
    (f"{ASK} --gaze 2,3 --gaze 99999,3", "expected gaze inside the picture of"),
    (f"{ASK} --then ''", "expected a question, got an empty one"),
    (
        "ask IMAGE What? --model MODEL --gaze 2,3 --selector divprune --budget 25%",
        "expected a selector that uses the gaze, got 'divprune'",
    ),
    (f"{SHOW} --gaze=-4,3", "expected gaze inside the picture of"),
    ("video CLIP What? --gaze 1", "expected --gaze as X,Y in pixels, such as 120,80, got '1'"),
    (f"{ASK} --device cuda:99", "cuda:99"),
    ("ask MISSING What?", "there is no file"),
    ("ask IMAGE What? --model /no/where", "got '/no/where'"),
    ("ask IMAGE What? --model MODEL --layer LAYER", "this layer was trained for"),
    (f"{SHOW} --budget many", "got 'many'"),
    (f"{SHOW} -o /no/such/folder/why.png", "there is no folder"),
    (f"{SHOW} --device moon", "moon"),
    ("show MISSING What?", "there is no file"),
    ("channels nowhere.jpg", "there is no file 'nowhere.jpg'"),
    ("channels TEXT", "not an image"),
    ("channels ''", "empty string"),
    ("channels IMAGE --layout full39", "did you mean 'full40'"),
    ("channels IMAGE --layout edges,txt", "did you mean 'text'"),
    ("channels IMAGE --layout edgs", "did you mean 'edges'"),
    ("channels IMAGE --layout ,", "at least one channel"),
    ("channels IMAGE --layout ''", "there is no layout ''"),
    ("channels IMAGE -o no/such/folder/sheet.png", "there is no folder"),
    ("channels IMAGE -o sheet.docx", "use .png or .jpg"),
    ("channels IMAGE -o sheet.psd", "use .png or .jpg"),
    ("channels IMAGE -o IMAGE", "which is read as input"),
    ("ask IMAGE What? --where IMAGE", "which is read as input"),
    ("ask IMAGE What? --why IMAGE", "which is read as input"),
    ("show IMAGE What? -o IMAGE", "which is read as input"),
    (f"{EVAL} --json DATA/samples.jsonl", "exists inside what is read"),
    (f"{EVAL} --plot DATA/0.png", "exists inside what is read"),
    ("fit-embeddings PHOTOS -o FIRSTPHOTO", "which is read as input"),
    (f"{FIT} --questions TEXT -o TEXT", "which is read as input"),
    ("ask IMAGE '' --model /not/read", "expected a question, got an empty one"),
    ("show IMAGE ' ' --model /not/read", "expected a question, got an empty one"),
    (f"ask IMAGE {'x' * 20_001} {UNREAD}", "at most 20,000 characters, got 20,001"),
    ("ask IMAGE 'caf\udce9?' --model /not/read", "valid Unicode, got"),
    ("ask /dev/zero What?", "which is a device"),
    ("ask PIPE What?", "which is a named pipe"),
    ("ask SOCKET What?", "which is a socket"),
    ("ask EMPTY What?", "is a folder, expected an image file"),
    ("channels IMAGE -o .", "is a folder"),
    ("channels IMAGE --max-side 0", "max_side"),
    ("channels IMAGE --text tesseract", "there is no text detector"),
    ("channels -o sheet.png", "a sheet needs an image"),
    ("tour -o TEXT/out", "cannot make the folder"),
    ("demo --files /nowhere/at/all", "expected a folder for --files"),
    ("demo --megapixels -3", "the limit megapixels above 0"),
    ("demo --data /nowhere", "expected a folder with samples.jsonl"),
    ("demo --port 99999", "a port from 1 to 65535"),
    ("demo --device moon", "moon"),
    ("serve --queue 0", "the limit queue above 0"),
    ("serve --budget lots", "got 'lots'"),
    ("serve --selector os:system", "got 'os:system'"),
    ("serve --selector divprune", "selector 'divprune' has no scores to derive"),
    ("serve --allow-folder /nowhere/at/all", "expected a folder for --allow-folder"),
    ("serve --allow-host https://a.example", "name or name:port"),
    ("serve --grace -1", "--grace from 0 to 3600"),
    ("serve --port 99999", "a port from 1 to 65535"),
    ("serve --device moon", "moon"),
    ("serve --model /no/where", "got '/no/where'"),
    ("bench texture --threads 0", "at least 1"),
    ("bench texture --rounds 0", "at least 1"),
    ("bench texture --sizes 4", "from 16 px"),
    ("bench texture --device tpu", "tpu"),
    *(
        (f"bench {subject} {option} 0", f"expected {option} of at least 1")
        for subject in ("ask", "realize")
        for option in ("--rounds", "--side", "--tokens", "--threads")
    ),
    ("bench gpu --size 8", "expected --size of at least"),
    ("bench gpu --batch 0", "expected --batch of at least"),
    ("bench gpu --repeats 1", "expected --repeats of at least"),
    (f"{EVAL} --selectors divprone", "did you mean 'divprune'"),
    (f"{EVAL} --selectors nomodule:Name", "nomodule"),
    (f"{EVAL} --selectors uniform evs", "'0.png' is a still picture"),
    (f"{EVAL} --budgets lots", "got 'lots'"),
    (f"{EVAL} --glance half", "glance"),
    (f"{EVAL} --limit 0", "at least 1"),
    (f"{EVAL} --format vqa", "did you mean 'vqav2'"),
    (f"{EVAL} --kinds odd", "odd"),
    (f"{EVAL} --json /no/such/folder/o.json", "there is no folder"),
    (f"{EVAL} --json /proc/o.json", "cannot write into '/proc'"),
    (f"{EVAL} --report /proc/page", "cannot write into '/proc'"),
    (f"{EVAL} --report TEXT", "is a file, expected a folder"),
    (f"{EVAL} --plot plot.xyz", "format of that ending"),
    (f"{EVAL} --device cuda:99", "cuda:99"),
    (f"{EVAL} --suite robustness", "exactly one of the two"),
    (f"eval --suite robustness {UNREAD} --plot x.png", "not with --suite"),
    ("eval /no/where", "/no/where"),
    (f"{TRAIN} --learn hearsay", "expected to learn from boxes, attention, answers, got hearsay"),
    (f"{TRAIN} --gate garden", "expected a gate among log-gate, straight-through, gumbel, got 'garden'"),
    (f"{TRAIN} --pooling median", "expected --pooling as one of learned, max, mean, sum, got 'median'"),
    (f"{TRAIN} --without smell", "to leave out, got smell"),
    (f"{TRAIN} --steps 0", "expected steps from 1 on, got 0"),
    (f"{TRAIN} --pictures -1", "expected pictures from 1 on, got -1"),
    (f"{TRAIN} --minutes 0", "expected a learning rate and minutes above 0"),
    (f"{TRAIN} --lr nan", "expected a learning rate and minutes above 0"),
    (f"{TRAIN} --lr inf", "expected a learning rate and minutes above 0"),
    (f"{TRAIN} --workers -1", "expected --workers from 0 on, got -1"),
    (f"{TRAIN} --limit 0", "expected --limit from 1 on, got 0"),
    (f"{TRAIN} --dtype int8", "expected --dtype as one of float32, bfloat16, float16, got 'int8'"),
    (f"{TRAIN} --adapt heads:2 --learn answers", "got 'heads:2'"),
    (f"{TRAIN} --adapt lora:8", "expected --adapt with answers as a source"),
    (f"{TRAIN} --adapt lora:8 --learn answers --adapt-steps 0", "expected steps of adapting from 1 on, got 0"),
    (f"{TRAIN} --device toaster", "toaster"),
    (f"{TRAIN} --model /no/where", "expected a model folder or a hub id, got '/no/where'"),
    (f"{TRAIN} --validation /no/where", "expected a folder with pictures and samples.jsonl, got '/no/where'"),
    (f"{TRAIN} --validation NOBOXES", "noboxes', found none to validate on"),
    ("train MISSING --model MODEL -o out", "expected a folder with pictures and samples.jsonl, got"),
    ("train EMPTY --model MODEL -o out", "samples.jsonl"),
    ("train NOBOXES --model MODEL -o out", "evidence boxes in 'noboxes', found none that can be learned from"),
    ("train NOANSWERS --model MODEL -o out --learn answers", "questions with answers in 'noanswers', found none"),
    ("train DATA --model MODEL -o TEXT", "is a file, expected a folder to write into"),
    (f"{FIT} --dims 0", "--dims of at least 1"),
    (f"{FIT} --dims 41 --exactly", "1 to 40 dimensions"),
    (f"{FIT} --dims 46", "45 pictures are too few to fit 46 dimensions"),
    (f"{FIT} --workers 0", "--workers"),
    (f"{FIT} --sample 0", "--sample"),
    (f"{FIT} --text-weight 1.5", "from 0 to 1"),
    (f"{FIT} --questions /no/such.txt", "no/such.txt"),
    (f"{FIT} --encoder tests.embedding.fake:nothing", "cannot make the encoder"),
    (f"{FIT} --encoder tests.embedding.fake:photo", "to make an Encoder, got Image"),
    (f"{FIT} --encoder no_such_module:Name", "No module named"),
    (f"{FIT} --device cuda:99", "cuda:99"),
    (f"{FIT} --report /proc/report", "cannot write into '/proc'"),
    (f"{FIT} -o /proc/e.safetensors", "cannot write into '/proc'"),
    (f"{FIT} -o no/e.safetensors", "there is no folder"),
    (f"{FIT} -o .", "is a folder"),
    ("fit-embeddings MISSING -o e.safetensors", "no file or folder"),
    ("fit-embeddings EMPTY -o e.safetensors", "found none"),
]
VIDEO_CASES = [
    ("video nowhere.mp4 Where?", "there is no file 'nowhere.mp4'"),
    ("video CLIP '' -o out.mp4", "expected a question, got an empty one"),
    ("video PIPE Where?", "which is a named pipe"),
    ("video CLIP Where? -o out.txt", "cannot write 'out.txt'"),
    ("video CLIP Where? -o nowhere/out.mp4", "there is no folder 'nowhere'"),
    ("video CLIP Where? -o CLIP", "which is read as input"),
    ("video CLIP Where? --frames 0", "--frames of at least 1"),
    ("video CLIP Where? --fps -1", "--fps above 0"),
    *((f"video CLIP Where? {option} {rate}", f"{option} above 0")
      for option in ("--fps", "--model-fps") for rate in ("inf", "nan", "0")),
    ("video CLIP Where? --budget lots", "expected budget as"),
    ("video CLIP Where? --embeddings nothing-of-that-name", "nothing-of-that-name"),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, model: str) -> dict[str, str]:
    root = tmp_path_factory.mktemp("places")
    arr_coc.pictures.scene().resize((240, 160)).save(root / "scene.png")
    (root / "letter.jpg").write_text("Dear reader")
    (root / "empty").mkdir()
    data, layer = write_data(root / "data", 4), str(root / "layer")
    other = write_model(root / "other-model", seed=1)
    assert main(["train", data, "--model", other, "-o", layer, "--steps", "1", "--pictures", "1"]) == 0
    return {
        "IMAGE": str(root / "scene.png"),
        "TEXT": str(root / "letter.jpg"),
        "EMPTY": str(root / "empty"),
        "MISSING": str(root / "missing"),
        "DATA": data,
        "NOBOXES": write_data(root / "noboxes", 2, evidence=None),
        "NOANSWERS": write_data(root / "noanswers", 2, answer=""),
        "PHOTOS": write_photos(root / "photos", 45),
        "FIRSTPHOTO": str(root / "photos" / "000.png"),
        "PIPE": _make_pipe(root / "pipe"),
        "SOCKET": _make_socket(root / "socket"),
        "MODEL": model,
        "LAYER": layer,
    }


def _make_pipe(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


def _make_socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return str(path)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    av = pytest.importorskip("av")
    path = str(tmp_path_factory.mktemp("clips") / "clip.mkv")
    with av.open(path, "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        for level in (0, 100, 200):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def check(command: str, message: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command and check that it prints one sentence with `message` and exits with code 2."""
    words = [place + rest for word in shlex.split(command) for place, rest in [_resolve(word, places)]]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert without_progress(captured.err).count("\n") == 1
    assert captured.out == ""


def _resolve(word: str, places: dict[str, str]) -> tuple[str, str]:
    head, slash, tail = word.partition("/")
    return (places[head], slash + tail) if head in places else (word, "")


@pytest.fixture
def empty_folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder and, below it, the cache folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))  # its font cache is not our output
    return tmp_path


@pytest.mark.parametrize(("command", "message"), CASES, ids=[command for command, _ in CASES])
def test_bad_input_is_one_sentence(
    command: str, message: str, places: dict[str, str], empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()  # of the fixtures
    before = {path for place in places.values() for path in Path(place).rglob("*")}
    check(command, message, places, capsys)
    assert list(empty_folder.rglob("*")) == []
    assert {path for place in places.values() for path in Path(place).rglob("*")} == before


@pytest.mark.parametrize(("command", "message"), VIDEO_CASES, ids=[command for command, _ in VIDEO_CASES])
def test_bad_input_of_video_is_one_sentence(
    command: str,
    message: str,
    clip: str,
    empty_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = Path(clip).read_bytes()
    places = {"CLIP": clip, "PIPE": _make_pipe(tmp_path_factory.mktemp("pipe") / "pipe")}
    check(command, message, places, capsys)
    assert list(empty_folder.iterdir()) == []
    assert Path(clip).read_bytes() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_bench_gpu_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    check("bench gpu", "CUDA device", {}, capsys)


def test_a_port_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        check(f"demo --port {taken.getsockname()[1]}", "cannot listen on 127.0.0.1", {}, capsys)


@pytest.mark.parametrize(
    "command",
    [
        "chanels",
        "ask",
        "bench speed",
        "channels --max-side many",
        "train DATA --steps many",
        "eval DATA --fresh --resume",
    ],
)
def test_argparse_errors_have_exit_code_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(command.split())
    assert done.value.code == 2
    assert capsys.readouterr().out == ""


def test_an_existing_sheet_is_kept_when_the_image_is_bad(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    sheet.write_bytes(b"precious")
    assert main(["channels", str(tmp_path / "nowhere.png"), "-o", str(sheet)]) == 2
    assert sheet.read_bytes() == b"precious"
