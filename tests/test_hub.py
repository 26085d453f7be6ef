"""Layers and models on a hub, against a stand-in that speaks its HTTP interface: pushed, read back, and every way to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, ModelHubMixin, constants

import arr_coc
from arr_coc import ArrCocLayer, reader
from arr_coc.errors import DataError, LayerError, ModelError
from arr_coc.hub import is_repo_id, measured
from tests import hub_server
from tests.hub_server import READ_TOKEN, TOKEN, Hub

REPORT = {
    "model": "reader", "data": "receipts", "metric": "exact", "images": ["a.png", "b.png"], "questions": 6,
    "records": [
        {"selector": "all", "budget": "all", "accuracy": 0.875, "evidence_recall": None},
        {"selector": "arr-coc", "budget": "12.5%", "accuracy": 0.75, "evidence_recall": 0.99},
    ],
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # huggingface_hub's upload


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    """One address for all tests: transformers keeps the first that it sees."""
    with hub_server.serving() as served:
        yield served


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """A hub that huggingface_hub talks to, with an empty cache and no token."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in speaks the LFS protocol
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    server.clear()
    point(monkeypatch, server.address)
    return server


def point(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Let huggingface_hub use another address, as HF_ENDPOINT does before the first import."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture(scope="module")
def layer() -> ArrCocLayer:
    return ArrCocLayer.from_pretrained(reader.WEIGHTS)


@pytest.fixture(scope="module")
def vlm() -> Any:
    return arr_coc.load("reader", dtype="float16")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text(json.dumps(REPORT))
    return tmp_path / "report"


def equal(first: ArrCocLayer, second: ArrCocLayer) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return (
        first.config == second.config and one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    )


def test_a_layer_is_pushed_in_one_commit_and_read_back(hub: Hub, layer: ArrCocLayer, report: Path) -> None:
    address = layer.push_to_hub("me/layer", token=TOKEN, report=report, commit_message="first")
    assert isinstance(layer, ModelHubMixin)
    assert address.startswith(f"{hub.address}/me/layer/commit/")
    assert hub.commits == [("me/layer", "main", "first")]
    assert set(hub.repos["me/layer"]) >= {"layer.safetensors", "layer.json", "README.md"}
    assert "config.json" not in hub.repos["me/layer"]  # it would look like a model
    found = ArrCocLayer.from_pretrained("me/layer")
    assert equal(found, layer)
    assert not found.training


def test_its_card_shows_the_figures_of_a_report(hub: Hub, layer: ArrCocLayer, report: Path) -> None:
    layer.push_to_hub("me/layer", token=TOKEN, report=report)
    card = ModelCard(hub.repos["me/layer"]["README.md"].decode())
    assert card.data.library_name == "arr-coc"
    assert "| arr-coc | 12.5% | 0.750 | 0.990 |" in card.text
    assert "6 questions about 2 pictures of `receipts`" in card.text
    assert 'layer="me/layer"' in card.text
    assert layer.config.model in card.text


def test_without_a_report_the_card_says_that_there_are_no_figures(hub: Hub, layer: ArrCocLayer) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    assert "No figures were published" in hub.repos["me/layer"]["README.md"].decode()


def test_folders_have_the_files_that_they_always_had(layer: ArrCocLayer, tmp_path: Path) -> None:
    layer.save_pretrained(tmp_path / "layer")
    assert sorted(path.name for path in (tmp_path / "layer").iterdir()) == ["layer.json", "layer.safetensors"]
    assert equal(ArrCocLayer.from_pretrained(str(tmp_path / "layer")), layer)


def test_a_folder_comes_before_the_hub(
    hub: Hub, layer: ArrCocLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.save_pretrained(tmp_path / "me" / "layer")
    monkeypatch.chdir(tmp_path)
    assert equal(ArrCocLayer.from_pretrained("me/layer"), layer)
    assert hub.requests == []


def test_a_model_is_pushed_with_its_layer_and_answers_when_read_back(hub: Hub, vlm: Any) -> None:
    vlm.push_to_hub("me/reader", token=TOKEN)
    files = hub.repos["me/reader"]
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "preprocessor_config.json",
        "chat_template.jinja",
    } <= set(files)
    assert "layer/layer.safetensors" in files
    assert not any(
        name.endswith("layer.safetensors") and "/" not in name for name in files
    )  # engines load all at the top
    card = ModelCard(files["README.md"].decode())
    assert card.data.pipeline_tag == "image-text-to-text"
    assert card.data.license == "apache-2.0"
    assert "70 scanned receipts" in card.text  # the figures of the folder's own card
    found = arr_coc.load("me/reader", dtype="float32")
    assert found.layer is not None
    assert equal(found.layer, vlm.layer)
    assert found.ask(arr_coc.pictures.receipt(), "What is the total amount?", budget="25%").text == "37.40"


def test_what_was_read_from_the_hub_can_be_pushed_again(hub: Hub, vlm: Any, report: Path) -> None:
    vlm.push_to_hub("me/reader", token=TOKEN)
    arr_coc.load("me/reader").push_to_hub("me/copy", token=TOKEN, report=report)
    missing = set(hub.repos["me/reader"]) - set(hub.repos["me/copy"])
    assert not missing
    card = ModelCard(hub.repos["me/copy"]["README.md"].decode())
    assert card.data.base_model == "me/reader"
    assert "| all | all | 0.875 |  |" in card.text


def test_load_takes_a_layer_of_the_hub(hub: Hub, layer: ArrCocLayer) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    assert equal(arr_coc.load("reader", layer="me/layer").layer, layer)  # type: ignore[arg-type]
    model = arr_coc.load("reader", layer=None)
    assert equal(arr_coc.wrap(model.model, model.processor, layer="me/layer").layer, layer)  # type: ignore[arg-type]


def test_a_model_without_a_layer_has_none(hub: Hub, vlm: Any) -> None:
    vlm.push_to_hub("me/bare", token=TOKEN)
    for name in [name for name in hub.repos["me/bare"] if name.startswith("layer/")]:
        del hub.repos["me/bare"][name]
    assert arr_coc.load("me/bare").layer is None
    with pytest.raises(LayerError, match="repository on the hub holds no learned layer"):
        ArrCocLayer.from_pretrained("me/bare")


def test_a_private_repository_needs_a_token(hub: Hub, layer: ArrCocLayer) -> None:
    layer.push_to_hub("me/secret", token=TOKEN, private=True)
    with pytest.raises(LayerError, match=r"'me/secret'.*no such repository for you.*hf auth login"):
        ArrCocLayer.from_pretrained("me/secret")
    assert equal(ArrCocLayer.from_pretrained("me/secret", token=READ_TOKEN), layer)


@pytest.mark.parametrize(
    ("token", "why"),
    [(None, "token"), ("hf_wrong", "does not accept the token"), (READ_TOKEN, "a token that may write there")],
)
def test_pushing_needs_a_token_that_may_write(hub: Hub, layer: ArrCocLayer, vlm: Any, token: Any, why: str) -> None:
    with pytest.raises(LayerError, match=f"cannot push to 'me/layer'.*{why}"):
        layer.push_to_hub("me/layer", token=token)
    with pytest.raises(ModelError, match=f"cannot push to 'me/model'.*{why}"):
        vlm.push_to_hub("me/model", token=token)
    assert hub.repos == {}


@pytest.mark.parametrize("name", ["me/nothing", "nothing"])
def test_a_model_that_is_nowhere_is_refused_after_one_request(hub: Hub, name: str) -> None:
    with pytest.raises(
        ModelError, match=rf"'{name}': there is no such folder, and {hub.address} has no such repository"
    ):
        arr_coc.load(name)
    assert len(hub.requests) == 1


def test_a_layer_that_is_nowhere_is_refused_after_one_request(hub: Hub) -> None:
    with pytest.raises(LayerError, match=r"'runs/layer': there is no such folder, and .* has no such repository"):
        ArrCocLayer.from_pretrained("runs/layer")
    assert len(hub.requests) == 1


def test_a_repository_without_a_model_is_refused(hub: Hub, layer: ArrCocLayer) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    with pytest.raises(ModelError, match=r"'me/layer': its repository on the hub has no config\.json"):
        arr_coc.load("me/layer")


def test_a_revision_that_is_not_there(hub: Hub, layer: ArrCocLayer) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    assert equal(ArrCocLayer.from_pretrained("me/layer", revision=hub.revision("me/layer")), layer)
    with pytest.raises(LayerError, match="no such revision"):
        ArrCocLayer.from_pretrained("me/layer", revision="v9")


def test_a_download_that_ends_early_is_an_error_and_not_a_layer(
    hub: Hub, layer: ArrCocLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    hub.truncated.add("layer.safetensors")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the attempts of huggingface_hub
    with pytest.raises(LayerError, match=r"cannot load 'layer.safetensors' of 'me/layer'"):
        ArrCocLayer.from_pretrained("me/layer")
    hub.truncated.clear()
    assert equal(ArrCocLayer.from_pretrained("me/layer"), layer)  # nothing wrong was kept in the cache


def test_a_damaged_file_on_the_hub_is_refused(hub: Hub, layer: ArrCocLayer, vlm: Any) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    hub.repos["me/layer"]["layer.safetensors"] = hub.repos["me/layer"]["layer.safetensors"][:-1000]
    with pytest.raises(LayerError, match="is damaged"):
        ArrCocLayer.from_pretrained("me/layer")
    vlm.push_to_hub("me/reader", token=TOKEN)
    hub.repos["me/reader"]["model.safetensors"] = hub.repos["me/reader"]["model.safetensors"][:-1000]
    with pytest.raises(ModelError, match="cannot load 'me/reader'"):
        arr_coc.load("me/reader")


def test_offline_reads_the_cache_and_nothing_else(
    hub: Hub, layer: ArrCocLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.push_to_hub("me/layer", token=TOKEN)
    ArrCocLayer.from_pretrained("me/layer")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    seen = len(hub.requests)
    assert equal(ArrCocLayer.from_pretrained("me/layer"), layer)
    with pytest.raises(LayerError, match="not in the local cache, and HF_HUB_OFFLINE is set"):
        ArrCocLayer.from_pretrained("me/other")
    assert len(hub.requests) == seen


@pytest.mark.parametrize("fault", ["refused", "failing", "slow"])
def test_where_the_hub_does_not_answer_the_cache_is_used_with_a_warning(
    hub: Hub, vlm: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    vlm.push_to_hub("me/reader", token=TOKEN)
    arr_coc.load("me/reader")
    if fault == "refused":
        point(monkeypatch, "http://127.0.0.1:9")
    elif fault == "failing":
        hub.failing = 503
    else:
        hub.delay = 1.0
        monkeypatch.setattr("arr_coc.hub.SECONDS", 0.3)
    begun = time.monotonic()
    with pytest.warns(UserWarning, match="'me/reader' is read from the local cache"):
        found = arr_coc.load("me/reader")
    assert found.layer is not None
    with pytest.raises(
        ModelError, match=r"'me/other': there is no such folder, it is not in the local cache, and http"
    ):
        arr_coc.load("me/other")
    assert time.monotonic() - begun < 10


def test_an_empty_or_wrong_report_is_refused_before_anything_is_pushed(
    hub: Hub, layer: ArrCocLayer, vlm: Any, tmp_path: Path
) -> None:
    for pushed in (layer, vlm):
        with pytest.raises(DataError, match="expected a folder of arr-coc eval --report, got"):
            pushed.push_to_hub("me/new", token=TOKEN, report=tmp_path / "none")
    (tmp_path / "report.json").write_text('{"records": [{}]}')
    with pytest.raises(DataError, match="expected the figures of arr-coc eval --report"):
        measured(tmp_path)
    assert hub.repos == {}


def test_saving_a_wrapped_model(vlm: Any, tmp_path: Path) -> None:
    vlm.save_pretrained(tmp_path / "model")
    assert arr_coc.load(tmp_path / "model").layer is not None
    wrapped = arr_coc.wrap(vlm.model, vlm.processor)
    wrapped.save_pretrained(tmp_path / "wrapped")
    found = arr_coc.load(tmp_path / "wrapped", dtype="float32")
    assert found.ask(arr_coc.pictures.receipt(), "What is the date?", budget="all").text == "12/03/2026"
    with pytest.raises(ModelError, match="the layer of another model"):
        wrapped.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="without one"):
        arr_coc.wrap(vlm.model).save_pretrained(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("me/layer", True),
        ("layer", False),
        ("a/b/c", False),
        ("./layer", False),
        ("me/ü", False),
        ("", False),
        (None, False),
    ],
)
def test_which_names_are_looked_up(name: Any, is_one: bool) -> None:
    assert is_repo_id(name) is is_one


def test_a_wrong_model_on_the_command_line_takes_seconds(hub: Hub, tmp_path: Path) -> None:
    arr_coc.pictures.receipt().save(tmp_path / "receipt.png")
    command = [sys.executable, "-m", "arr_coc.cli", "ask", str(tmp_path / "receipt.png"), "What is the date?"]
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "--model", "me/typo"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert "arr-coc: cannot load 'me/typo': there is no such folder" in done.stderr
    assert "Retrying" not in done.stderr
    assert time.monotonic() - begun < 20  # of which nearly all is importing torch on a busy machine
