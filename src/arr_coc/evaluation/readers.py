"""Readers of published data sets, each in its published file layout. Nothing is downloaded.

| format | files below the folder |
|---|---|
| samples | samples.jsonl and pictures (see `data`) |
| vqav2 | v2_OpenEnded_mscoco_val2014_questions.json, v2_mscoco_val2014_annotations.json, val2014/COCO_val2014_*.jpg |
| gqa | val_balanced_questions.json (or testdev, train), optionally val_sceneGraphs.json, images/*.jpg |
| textvqa | TextVQA_0.5.1_val.json, train_images/*.jpg |
| docvqa | val_v1.0.json (or val_v1.0_withQT.json), documents/*.png |
| vizwiz | Annotations/val.json, val/VizWiz_val_*.jpg |
| sroie | img/*.jpg, box/*.csv (x1,y1,...,x4,y4,text), key/*.json or entities/*.txt; or the challenge's task1 and task2 archives |
| refcoco | refcoco/refs(unc).p, refcoco/instances.json, COCO_train2014_*.jpg; also RefCOCO+ and RefCOCOg |
| fixations | fixations.jsonl and pictures, or MIT1003's files; no questions (see `fixations`) |
| pope | coco_pope_random.json, _popular, _adversarial (JSON lines), val2014/COCO_val2014_*.jpg |
| nextqa | val.csv (or test, train) of the multiple-choice set, clips by number: NExTVideo/**/4010069381.mp4 |
| egoschema | questions.json, subset_answers.json, videos/Q_UID.mp4 |

Clips are video files, or folders of frames of the same name. Frames of files are sampled once into a cache folder (`clips`).
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError, first_line
from arr_coc.evaluation import clips
from arr_coc.evaluation.data import Data, InvalidSample, RawSample, collect, read_json_lines, read_samples
from arr_coc.files import read_bytes

SPLITS = ("val", "test", "train")  # where several are there, the first of these is read
MAX_DEPTH = 4  # nested folders that are searched for pictures
SROIE_QUESTIONS = {
    "company": "What is the name of the company?",
    "date": "What is the date on the receipt?",
    "address": "What is the address of the company?",
    "total": "What is the total amount?",
}
LETTERS = "ABCDE"
CHOOSE = "Answer with the letter of the right option."
TextLine = tuple[list[float], str]  # box and text
Reader = Callable[[Path, int | None], Data]


def read_data(folder: str | Path, format: str = "samples", limit: int | None = None) -> Data:
    """The questions in a folder; `limit`: at most so many pictures."""
    if format == "fixations":
        raise DataError("fixations hold no questions: call arr_coc.evaluation.fixations.compare, or arr-coc eval")
    if format not in FORMATS:
        near = difflib.get_close_matches(str(format).lower(), FORMATS, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"expected a format among {', '.join(FORMATS)}, got {format!r}{hint}")
    path = Path(folder)
    if not path.exists():
        raise DataError(f"there is no folder {str(path)!r}")
    if not path.is_dir():
        raise DataError(f"expected a folder, got the file {str(path)!r}")
    return FORMATS[format](path.resolve(), limit)


def read_vqav2(folder: Path, limit: int | None = None) -> Data:
    path = _find_file(folder, ("v2_OpenEnded_*_questions.json", "OpenEnded_*_questions.json"), "VQAv2")
    split = re.sub(r"^(v2_)?OpenEnded_|_questions\.json$", "", path.name)  # mscoco_val2014
    answers_path = _find_file(folder, (f"*{split}_annotations.json",), "VQAv2")
    annotations = {one.get("question_id"): one for one in _load_list(answers_path, "annotations")}
    prefix = f"COCO_{split.removeprefix('mscoco_')}"

    def convert(question: dict[str, Any]) -> dict[str, Any]:
        annotation = annotations.get(question["question_id"])
        if annotation is None:
            raise InvalidSample(f"question {question['question_id']} has no annotation")
        name = f"{prefix}_{int(question['image_id']):012d}.jpg"
        return _vqa_fields(name, annotation | question, annotation.get("answer_type"))

    return _collect("VQAv2", folder, _load_list(path, "questions"), convert, limit, "vqa")


def _vqa_reader(
    name: str, patterns: tuple[str, ...], image: Callable[[Any], str], kind: Callable[[Any], Any], metric: str = "vqa"
) -> Reader:
    """A reader of one JSON file with a list of questions, or with that list under "data"."""

    def read(folder: Path, limit: int | None = None) -> Data:
        questions = _load_list(_find_file(folder, patterns, name), "data", bare=True)
        return _collect(name, folder, questions, lambda one: _vqa_fields(image(one), one, kind(one)), limit, metric)

    return read


def _vqa_fields(image: str, one: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """`answers` are texts, or objects with a text and the annotator's confidence."""
    answers = [answer["answer"] if isinstance(answer, dict) else answer for answer in one.get("answers") or []]
    return {"image": image, "question": one["question"], "answers": answers, "kind": kind or "question"}


def read_gqa(folder: Path, limit: int | None = None) -> Data:
    """The objects that question and answer name are the evidence, all of them needed."""
    path = _find_file(folder, ("*_balanced_questions.json", "*_all_questions.json"), "GQA")
    questions = _load_json(path)
    if not isinstance(questions, dict):
        raise DataError(f"expected questions by their number in {str(path)!r}")
    scenes: dict[str, Any] = {}
    for scene_path in folder.rglob(f"{path.name.split('_')[0]}_sceneGraphs.json"):
        scenes = _load_json(scene_path)

    def convert(one: dict[str, Any]) -> dict[str, Any]:
        image = str(one["imageId"])
        objects = scenes.get(image, {}).get("objects", {})
        named = one.get("annotations") or {}
        ids = {name for part in ("question", "answer", "fullAnswer") for name in (named.get(part) or {}).values()}
        found = [objects[name] for name in sorted(ids) if name in objects]
        boxes = [[o["x"], o["y"], o["x"] + o["w"], o["y"] + o["h"]] for o in found]
        return {
            "image": f"{image}.jpg",
            "question": one["question"],
            "answer": one.get("answer", ()),
            "kind": (one.get("types") or {}).get("structural", "question"),
            "evidence": [boxes] if boxes else [],
        }

    return _collect("GQA", folder, questions.values(), convert, limit, "vqa")


def read_pope(folder: Path, limit: int | None = None) -> Data:
    paths = sorted(folder.rglob("*_pope_*.json"))
    if not paths:
        raise DataError(f"expected coco_pope_random.json and the like inside {str(folder)!r}, found none")

    def raw_samples() -> Iterator[RawSample]:
        before = 0  # lines are numbered across all files, in the order of their names
        for path in paths:
            number = 0
            kind = path.stem.rsplit("_", 1)[-1]
            for number, one in read_json_lines(path):
                if not isinstance(one, InvalidSample):
                    asked = {"image": one.get("image"), "question": one.get("text"), "answer": one.get("label", ())}
                    one = asked | {"kind": kind}
                yield before + number, one
            before += number

    return collect("POPE", raw_samples(), _file_finder(folder), limit, metric="yes_no", where="line")


class _PlainUnpickler(pickle.Unpickler):
    """Lists, dicts, texts and numbers only: a pickle that imports anything could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants to import {module}.{name}")


def read_refcoco(folder: Path, limit: int | None = None) -> Data:
    """Referring expressions have no answers: the box is the evidence."""
    path = _find_file(folder, ("refs(unc).p", "refs(umd).p", "refs(google).p", "refs*.p"), "RefCOCO")
    instances = path.parent / "instances.json"
    if not instances.is_file():
        instances = _find_file(folder, ("instances.json",), "RefCOCO")
    try:
        with path.open("rb") as file:
            refs = _PlainUnpickler(file, encoding="latin1").load()  # Python 2 wrote them
        splits = {ref["split"] for ref in refs}
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"expected the pickled references of RefCOCO in {str(path)!r} ({error})") from None
    split = next((one for one in SPLITS if one in splits), None)
    names = {one["id"]: one["file_name"] for one in _load_list(instances, "images")}
    boxes = {one["id"]: one["bbox"] for one in _load_list(instances, "annotations")}

    def convert(pair: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
        ref, sentence = pair
        if ref["ann_id"] not in boxes or ref["image_id"] not in names:
            raise InvalidSample(f"reference {ref.get('ref_id')} has no box or picture in instances.json")
        x, y, width, height = boxes[ref["ann_id"]]
        return {
            "image": names[ref["image_id"]],
            "question": sentence.get("raw") or sentence["sent"],
            "kind": "reference",
            "evidence": [[[x, y, x + width, y + height]]],
        }

    pairs = ((ref, one) for ref in refs if split in (ref["split"], None) for one in ref.get("sentences", ()))
    return _collect("RefCOCO", folder, pairs, convert, limit, where="sentence")


def read_sroie(folder: Path, limit: int | None = None) -> Data:
    """Four fields of scanned receipts; the evidence is found in their text lines."""
    pictures = {path.stem: path for path in sorted(folder.rglob("*.jpg")) if "(" not in path.stem}  # (1): duplicates
    fields: dict[str, dict[str, Any]] = {}
    lines: dict[str, list[TextLine]] = {}
    for path in sorted(path for suffix in ("json", "txt", "csv") for path in folder.rglob(f"*.{suffix}")):
        if path.stem not in pictures:
            continue
        text = read_bytes(path, "a file of the data", DataError).decode("utf-8", errors="replace")
        if text.lstrip().startswith("{"):
            try:
                fields[path.stem] = json.loads(text)
            except ValueError:
                fields[path.stem] = {}
        else:
            lines[path.stem] = [line for line in map(_sroie_line, text.splitlines()) if line is not None]
    if not fields:
        raise DataError(f"expected receipts of SROIE (img, box and key folders) inside {str(folder)!r}, found none")

    def samples() -> Iterator[dict[str, Any] | InvalidSample]:
        for name in sorted(fields):
            if not fields[name]:
                yield InvalidSample(f"the fields of {name} are not JSON")
            image = str(pictures[name].relative_to(folder))
            for kind, question in SROIE_QUESTIONS.items():
                if answer := str(fields[name].get(kind) or ""):
                    evidence = _sroie_evidence(kind, answer, lines.get(name, []))
                    asked = {"image": image, "question": question, "answer": answer, "kind": kind}
                    yield asked | {"evidence": evidence}

    return collect("SROIE", enumerate(samples(), start=1), lambda name: folder / name, limit, where="field")


def _sroie_evidence(kind: str, answer: str, lines: list[TextLine]) -> list[list[list[float]]]:
    """Any line with a total or a date suffices; a company or an address needs every line that it spans."""
    flat = "".join(answer.split())
    if kind not in ("total", "date"):
        parts = [box for box, text in lines if len(text) > 3 and "".join(text.split()).strip(",.") in flat]
        if parts:
            return [parts]
    return [[box] for box, text in lines if flat in "".join(text.split())]


def _sroie_line(row: str) -> TextLine | None:
    """`x1,y1,x2,y2,x3,y3,x4,y4,text`; the text may contain commas."""
    parts = row.split(",", 8)
    try:
        sides = [float(part) for part in parts[:8]]
    except ValueError:
        return None
    if len(parts) < 9:
        return None
    xs, ys = sides[0::2], sides[1::2]
    return [min(xs), min(ys), max(xs), max(ys)], parts[8]


def read_nextqa(folder: Path, limit: int | None = None) -> Data:
    """Multiple-choice questions about clips: columns video, question, answer (0 to 4), type, a0 to a4."""
    path = _find_file(folder, ("val.csv", "test.csv", "train.csv", "*val*.csv", "*test*.csv"), "NExT-QA")
    text = read_bytes(path, "a file of the data", DataError).decode("utf-8-sig", errors="replace")
    rows = csv.DictReader(io.StringIO(text))
    missing = {"video", "question", "answer", *(f"a{n}" for n in range(5))} - set(rows.fieldnames or ())
    if missing:
        raise DataError(f"expected the columns of NExT-QA in {str(path)!r}, {', '.join(sorted(missing))} are missing")

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        options = [row[f"a{number}"] for number in range(5)]
        return _choice_fields(row["video"], row["question"], options, int(row["answer"]), row.get("type") or "question")

    return _collect_clips("NExT-QA", folder, rows, convert, limit)


def read_egoschema(folder: Path, limit: int | None = None) -> Data:
    """Multiple-choice questions about clips of three minutes. The public answers are those of a subset; others are left out."""
    questions = _load_list(_find_file(folder, ("questions.json",), "EgoSchema"), "questions", bare=True)
    answers = _load_json(_find_file(folder, ("subset_answers.json",), "EgoSchema"))
    if not isinstance(answers, dict):
        raise DataError(f"expected answers by their q_uid in subset_answers.json inside {str(folder)!r}")
    known = [one for one in questions if isinstance(one, dict) and one.get("q_uid") in answers]
    if not known:
        raise DataError(f"expected questions with an answer in subset_answers.json inside {str(folder)!r}, found none")

    def convert(one: dict[str, Any]) -> dict[str, Any]:
        options = [one[f"option {number}"] for number in range(5)]
        return _choice_fields(one["q_uid"], one["question"], options, int(answers[one["q_uid"]]), "question")

    return _collect_clips("EgoSchema", folder, known, convert, limit)


def _choice_fields(clip: str, question: str, options: list[str], right: int, kind: str) -> dict[str, Any]:
    if not 0 <= right < len(options):
        raise InvalidSample(f"expected the number of the right option from 0 to {len(options) - 1}, got {right}")
    lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True)]
    text = "\n".join([question.strip(), *lines, CHOOSE])
    return {"video": str(clip), "question": text, "answers": [LETTERS[right], options[right]], "kind": kind}


def _collect_clips(
    name: str, folder: Path, raws: Iterable[Any], convert: Callable[[Any], dict[str, Any]], limit: int | None
) -> Data:
    """As `_collect`, for clips by name: a folder of frames, or a video file whose frames are extracted on first use."""
    places: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.suffix.lower() in clips.SUFFIXES:
            places.setdefault(path.stem if path.is_file() else path.name, path)

    def find(clip: str) -> Path:
        if clip not in places:
            raise InvalidSample(f"there is no clip {clip!r}")
        place = places[clip]
        return place if place.is_dir() else clips.extract_frames(place, clips.frames_folder())

    found = collect(name, _converted(raws, convert), find, limit, metric="choice", where="question")
    return clips.with_frame_rates(found)


def _find_file(folder: Path, patterns: tuple[str, ...], layout: str) -> Path:
    """The file that matches one of the patterns; of several splits, validation first."""
    found = [path for pattern in patterns for path in sorted(folder.rglob(pattern)) if path.is_file()]
    if not found:
        raise DataError(f"expected {' or '.join(patterns)} of {layout} inside {str(folder)!r}, found none")

    def rank(path: Path) -> int:
        return next((i for i, split in enumerate(SPLITS) if split in path.name.lower()), len(SPLITS))

    return min(found, key=rank)


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"expected JSON in {str(path)!r} ({first_line(error)})") from None


def _load_list(path: Path, key: str, bare: bool = False) -> list[Any]:
    """The list under a key of a JSON file; `bare`: the file may be that list itself."""
    value = _load_json(path)
    found = value.get(key) if isinstance(value, dict) else value if bare else None
    if not isinstance(found, list):
        raise DataError(f"expected a list under {key!r} in {str(path)!r}")
    return found


def _collect(
    name: str,
    folder: Path,
    raws: Iterable[Any],
    convert: Callable[[Any], dict[str, Any]],
    limit: int | None,
    metric: str = "exact",
    where: str = "question",
) -> Data:
    """Convert raw entries to the plain format; one that cannot be converted does not stop the others."""

    return collect(name, _converted(raws, convert), _file_finder(folder), limit, metric=metric, where=where)


def _converted(raws: Iterable[Any], convert: Callable[[Any], dict[str, Any]]) -> Iterator[RawSample]:
    """The entries in the plain format, or what is wrong with them."""
    for number, raw in enumerate(raws, start=1):
        try:
            yield number, convert(raw)
        except InvalidSample as why:
            yield number, why
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            yield number, InvalidSample(f"this is not in the published layout ({type(error).__name__}: {error})")


def _file_finder(folder: Path) -> Callable[[str], Path]:
    """From a picture's name to its path: in the folder or in any folder below it."""
    folders = level = [folder]
    for _ in range(MAX_DEPTH):
        level = [path for parent in level for path in sorted(parent.iterdir()) if path.is_dir()]
        folders = folders + level

    def find(name: str) -> Path:
        return next((place / name for place in folders if (place / name).is_file()), folder / name)

    return find


FORMATS: dict[str, Reader] = {
    "samples": read_samples,
    "vqav2": read_vqav2,
    "gqa": read_gqa,
    "textvqa": _vqa_reader(
        "TextVQA",
        ("TextVQA_*_val.json", "TextVQA_*_train.json"),
        lambda one: f"{one['image_id']}.jpg",
        lambda one: "text",
    ),
    "docvqa": _vqa_reader(
        "DocVQA",
        ("val_v1.0*.json", "train_v1.0*.json"),
        lambda one: str(one["image"]),
        lambda one: (one.get("question_types") or [None])[0],
        metric="anls",
    ),
    "vizwiz": _vqa_reader(
        "VizWiz",
        ("Annotations/val.json", "val.json", "Annotations/train.json", "train.json"),
        lambda one: str(one["image"]),
        lambda one: one.get("answer_type"),
    ),
    "sroie": read_sroie,
    "refcoco": read_refcoco,
    "pope": read_pope,
    "nextqa": read_nextqa,
    "egoschema": read_egoschema,
}
