"""The Space: `app.py` as the hub starts it, and a request to it; with a stand-in of `spaces`, which the hub installs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import arr_coc
from recipes.space import __main__ as making

pytest.importorskip("gradio", reason="the page needs the extra `demo`")
APP = Path(making.__file__).parent / "app.py"
NAME = "someone-arr-coc.hf.space"
SPACES = """
import os

def GPU(function=None, duration=60):
    def decorate(function):
        def run(*values):
            with open(os.environ["GPU_LOG"], "a") as log:
                print(function.__name__, duration, file=log)
            yield from function(*values)
        return run
    return decorate if function is None else decorate(function)
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("space") / "gpu.log"


@pytest.fixture(scope="module")
def address(log: Path) -> Iterator[str]:
    """The Space with a ZeroGPU."""
    (log.parent / "spaces.py").write_text(SPACES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(log.parent), *filter(None, sys.path)])
    settings = {"GRADIO_SERVER_PORT": str(port), "SPACE_HOST": NAME, "PYTHONPATH": path, "GPU_LOG": str(log)}
    process = subprocess.Popen(
        [sys.executable, str(APP)], cwd=log.parent, env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    said = next((line for line in lines if "The page is at" in line), "")
    assert said, "the Space ended before it was ready"
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.communicate(timeout=60)


def fetch(address: str, host: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(address, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, {name.lower(): value for name, value in response.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}


@pytest.mark.filterwarnings("default")  # of gradio's client
def test_a_question_is_answered_on_the_gpu(address: str, log: Path) -> None:
    from page_load import PageClient

    client = PageClient(address)
    assert "37.40" in client.call("ask", image="receipt", question="What is the total amount?", budget="12.5%")
    assert set(log.read_text().split()) == {"on_gpu", "60"}
    client.send(arr_coc.pictures.receipt(), log.parent, "mine")
    assert "37.40" in client.call("ask", image="", question="What is the total amount?", budget="12.5%")
    assert "Expected budget" in client.call("ask", image="receipt", question="What?", budget="lots")


def test_it_answers_to_the_name_of_the_space_and_may_be_shown_by_the_hub(address: str) -> None:
    status, headers = fetch(address, NAME)
    assert status == 200
    assert "frame-ancestors https://huggingface.co https://*.hf.space" in headers["content-security-policy"]
    assert "x-frame-options" not in headers
    assert fetch(address, "evil.example")[0] == 421


def test_the_card_names_the_app_and_the_tested_gradio() -> None:
    card = (APP.parent / "README.md").read_text()
    _, front, _ = card.split("---\n", 2)
    fields = dict(re.findall(r"^(\w+): (.*)$", front, re.MULTILINE))
    assert (fields["sdk"], fields["app_file"]) == ("gradio", "app.py")
    constraints = (APP.parents[2] / "constraints.txt").read_text()
    assert f"gradio=={fields['sdk_version']}\n" in constraints


def test_the_folder_has_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without building the wheel, which needs a network."""

    def build(words: list[str], check: bool) -> None:
        assert words[1:4] == ["-m", "pip", "wheel"]
        (tmp_path / f"arr_coc-{arr_coc.__version__}-py3-none-any.whl").touch()

    monkeypatch.setattr(making.subprocess, "run", build)
    names = [path.name for path in making.write(tmp_path)]
    wheel = f"arr_coc-{arr_coc.__version__}-py3-none-any.whl"
    assert sorted(names) == sorted(["README.md", "app.py", wheel, "requirements.txt"])
    assert (tmp_path / "requirements.txt").read_text() == f"./{wheel}[demo,labels]\n"
