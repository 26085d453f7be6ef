"""Published layouts, in miniature."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data
from arr_coc.evaluation.readers import FORMATS, read_data


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def draw(path: Path, size: tuple[int, int] = (80, 60)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


def only(data: Data) -> Any:
    assert data.questions == 1
    return data.pictures[0].samples[0]


def test_vqav2(tmp_path: Path) -> None:
    put(tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json", {"questions": [
        {"image_id": 42, "question": "What colour?", "question_id": 42000},
        {"image_id": 42, "question": "Lost?", "question_id": 42001},
        {"question": "No picture?", "question_id": 42002},
    ]})  # fmt: skip
    answers = [{"answer": "red", "answer_confidence": "yes", "answer_id": i} for i in range(1, 11)]
    put(tmp_path / "v2_mscoco_val2014_annotations.json", {"annotations": [
        {"question_id": q, "image_id": 42, "answer_type": "other", "multiple_choice_answer": "red", "answers": answers}
        for q in (42000, 42002)
    ]})  # fmt: skip
    draw(tmp_path / "val2014" / "COCO_val2014_000000000042.jpg")
    data = read_data(tmp_path, "vqav2")
    sample = only(data)
    assert (sample.question, sample.answers, sample.kind, data.metric) == (
        "What colour?",
        ("red",) * 10,
        "other",
        "vqa",
    )
    assert "question 2: question 42001 has no annotation" in data.problems[0]
    assert "question 3: this is not in the published layout" in data.problems[1]


def test_gqa_with_and_without_scene_graphs(tmp_path: Path) -> None:
    put(tmp_path / "val_balanced_questions.json", {"201307251": {
        "imageId": "2354786", "question": "Is the sky dark?", "answer": "yes", "types": {"structural": "verify"},
        "annotations": {"answer": {}, "question": {"2": "2486325"}, "fullAnswer": {"2": "2486325"}},
    }})  # fmt: skip
    draw(tmp_path / "images" / "2354786.jpg")
    assert only(read_data(tmp_path, "gqa")).evidence == ()
    objects = {"2486325": {"name": "sky", "x": 0, "y": 5, "w": 80, "h": 20}}
    put(tmp_path / "val_sceneGraphs.json", {"2354786": {"width": 80, "height": 60, "objects": objects}})
    sample = only(read_data(tmp_path, "gqa"))
    assert sample.evidence == (((0, 5, 80, 25),),)
    assert (sample.answers, sample.kind) == (("yes",), "verify")


def test_textvqa(tmp_path: Path) -> None:
    one = {"image_id": "0a1b", "question": "What is the brand?", "answers": ["nokia"] * 10, "question_id": 3}
    put(tmp_path / "TextVQA_0.5.1_val.json", {"dataset_type": "val", "data": [one]})
    draw(tmp_path / "train_images" / "0a1b.jpg")
    assert only(read_data(tmp_path, "textvqa")).answers == ("nokia",) * 10


def test_docvqa(tmp_path: Path) -> None:
    one = {"questionId": 1, "question": "What is the date?", "image": "documents/x_1.png", "answers": ["1/8/93"],
           "question_types": ["form"]}  # fmt: skip
    put(tmp_path / "val_v1.0_withQT.json", {"data": [one]})
    draw(tmp_path / "documents" / "x_1.png")
    data = read_data(tmp_path, "docvqa")
    assert (only(data).kind, data.metric) == ("form", "anls")


def test_vizwiz(tmp_path: Path) -> None:
    one = {"image": "VizWiz_val_00000000.jpg", "question": "What is this?", "answerable": 1, "answer_type": "other",
           "answers": [{"answer": "basil", "answer_confidence": "yes"}]}  # fmt: skip
    put(tmp_path / "Annotations" / "val.json", [one])
    draw(tmp_path / "val" / "VizWiz_val_00000000.jpg")
    assert only(read_data(tmp_path, "vizwiz")).answers == ("basil",)


@pytest.mark.parametrize("layout", ["folders", "flat"])
def test_sroie(tmp_path: Path, layout: str) -> None:
    pictures, boxes, keys = ("img", "box", "key") if layout == "folders" else ("task1train", "task1train", "task2train")
    draw(tmp_path / pictures / "X510.jpg", (400, 600))
    lines = (
        "10,10,200,10,200,30,10,30,TAN WOON YANN SDN, BHD\n10,40,200,40,200,60,10,60,NO 2 JALAN BAYU\n"
        "10,70,200,70,200,90,10,90,81750 JOHOR\n10,100,90,100,90,120,10,120,TOTAL 9.00\n300,100,390,100,390,120,300,120,9.00\n"
    )
    (tmp_path / boxes).mkdir(exist_ok=True)
    (tmp_path / boxes / f"X510.{'csv' if layout == 'folders' else 'txt'}").write_text(lines)
    fields = {
        "company": "TAN WOON YANN SDN, BHD",
        "address": "NO 2 JALAN BAYU 81750 JOHOR",
        "total": "9.00",
        "date": "",
    }
    put(tmp_path / keys / f"X510.{'json' if layout == 'folders' else 'txt'}", fields)
    found = {sample.kind: sample for sample in read_data(tmp_path, "sroie").pictures[0].samples}
    assert set(found) == {"company", "address", "total"}
    assert found["company"].evidence == (((10, 10, 200, 30),),)
    assert found["address"].evidence == (((10, 40, 200, 60), (10, 70, 200, 90)),)
    assert found["total"].evidence == (((10, 100, 90, 120),), ((300, 100, 390, 120),))


def test_refcoco(tmp_path: Path) -> None:
    refs = [
        {"ref_id": 1, "ann_id": 7, "image_id": 3, "split": "val", "file_name": "x", "category_id": 1,
         "sentences": [{"raw": "the left cat", "sent": "left cat"}, {"raw": "cat"}]},
        {"ref_id": 2, "ann_id": 7, "image_id": 3, "split": "train", "sentences": [{"raw": "not this"}]},
        {"ref_id": 3, "ann_id": 8, "image_id": 3, "split": "val", "sentences": [{"raw": "boxless"}]},
    ]  # fmt: skip
    (tmp_path / "refcoco").mkdir()
    (tmp_path / "refcoco" / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    put(tmp_path / "refcoco" / "instances.json", {
        "images": [{"id": 3, "file_name": "COCO_train2014_000000000003.jpg"}],
        "annotations": [{"id": 7, "bbox": [10, 20, 30, 20]}],
    })  # fmt: skip
    draw(tmp_path / "train2014" / "COCO_train2014_000000000003.jpg")
    data = read_data(tmp_path, "refcoco")
    assert [sample.question for sample in data.pictures[0].samples] == ["the left cat", "cat"]
    assert data.pictures[0].samples[0].evidence == (((10, 20, 40, 40),),)
    assert data.pictures[0].samples[0].answers == ()
    assert "reference 3" in data.problems[0]


def test_a_pickle_with_imports_is_refused(tmp_path: Path) -> None:
    (tmp_path / "refs(unc).p").write_bytes(pickle.dumps(Path("/")))
    put(tmp_path / "instances.json", {"images": [], "annotations": []})
    with pytest.raises(DataError, match="wants to import pathlib"):
        read_data(tmp_path, "refcoco")


def test_pope(tmp_path: Path) -> None:
    for kind, label in (("adversarial", "no"), ("random", "yes")):
        one = {
            "question_id": 1,
            "image": "COCO_val2014_000000000001.jpg",
            "text": f"Is there a {kind} dog?",
            "label": label,
        }
        put(tmp_path / "output" / "coco" / f"coco_pope_{kind}.json", one)
    draw(tmp_path / "val2014" / "COCO_val2014_000000000001.jpg")
    data = read_data(tmp_path, "pope")
    assert [(s.kind, s.answers) for s in data.pictures[0].samples] == [("adversarial", ("no",)), ("random", ("yes",))]
    assert data.metric == "yes_no"


OPTIONS = ("a dog", "a cat", "a car", "a bus", "a hat")


def film(path: Path, seconds: int = 40) -> None:
    """A clip of one frame a second that becomes brighter."""
    av = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(seconds):
            pixels = np.full((48, 64, 3), 5 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arr-coc" / "frames"


def nextqa(folder: Path, *rows: str) -> None:
    folder.mkdir(exist_ok=True)
    lines = ["video,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4", *rows]
    (folder / "val.csv").write_text("\n".join(lines) + "\n")


def test_nextqa(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "data"
    options = ",".join(OPTIONS)
    nextqa(
        data,
        f'4010069381,369,640,480,"what is seen, at first",1,6,DO,{options}',
        f"4010069381,369,640,480,why did it run,4,7,CW,{options}",
        f"4010069381,369,640,480,why did it run,9,7,CW,{options}",
        f"999,369,640,480,what,0,7,CW,{options}",
    )
    film(data / "NExTVideo" / "1002" / "4010069381.mp4")
    found = read_data(data, "nextqa")
    [picture] = found.pictures
    assert found.metric == "choice"
    assert [sample.kind for sample in picture.samples] == ["DO", "CW"]
    assert picture.samples[0].answers == ("B", "a cat")
    assert picture.samples[0].question.splitlines() == [
        "what is seen, at first", "A. a dog", "B. a cat", "C. a car", "D. a bus", "E. a hat",
        "Answer with the letter of the right option.",
    ]  # fmt: skip
    assert len(picture.frames) == 16
    assert picture.fps == pytest.approx(15 / 39, rel=0.05)
    assert len(found.problems) == 2
    assert "from 0 to 4, got 9" in found.problems[0]
    assert "no clip '999'" in found.problems[1]
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.png")}
    assert len(before) == 16
    read_data(data, "nextqa")
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.png")} == before


def test_egoschema_reads_the_questions_with_public_answers(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "data"
    asked = [
        {"q_uid": uid, "question": "What happens?", **{f"option {n}": option for n, option in enumerate(OPTIONS)}}
        for uid in ("aa-1", "bb-2")
    ]
    put(data / "questions.json", asked)
    put(data / "subset_answers.json", {"bb-2": 3})
    film(data / "videos" / "bb-2.mp4", seconds=5)
    [picture] = read_data(data, "egoschema").pictures
    assert (picture.samples[0].answers, len(picture.frames), picture.fps) == (("D", "a bus"), 5, 1.0)
    put(data / "subset_answers.json", {"other": 3})
    with pytest.raises(DataError, match="found none"):
        read_data(data, "egoschema")


def test_a_clip_may_be_a_folder_of_frames_and_a_damaged_one_is_named(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "data"
    nextqa(data, f"7,3,80,60,what,0,1,DO,{','.join(OPTIONS)}", f"8,3,80,60,what,0,1,DO,{','.join(OPTIONS)}")
    for number in range(3):
        draw(data / "frames" / "7" / f"{number}.jpg")
    (data / "8.mp4").write_bytes(b"no clip")
    found = read_data(data, "nextqa")
    assert [len(picture.frames) for picture in found.pictures] == [3]
    assert "8.mp4" in found.problems[0]
    (data / "val.csv").write_text("video,question\n")
    with pytest.raises(DataError, match=r"a0, a1, .* are missing"):
        read_data(data, "nextqa")


@pytest.mark.parametrize("layout", FORMATS)
def test_another_folder_is_refused(tmp_path: Path, layout: str) -> None:
    with pytest.raises(DataError, match="expected"):
        read_data(tmp_path, layout)
    with pytest.raises(DataError, match="no folder"):
        read_data(tmp_path / "none", layout)
