"""The model folder: `transformers` loads it, and its tokenizer equals the reader's vocabulary."""

import pytest
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

from arr_coc.adapters.loading import load_processor
from arr_coc.errors import ModelError
from recipes.reader import folder, vocabulary
from recipes.reader.model import TINY, ReaderShape, build


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return folder.write(build(TINY), tmp_path_factory.mktemp("reader"))


def test_the_tokenizer_equals_the_vocabulary(path):
    tokenizer = AutoTokenizer.from_pretrained(path)
    for text in ("Total: RM 9.00", "two  spaces\nand a line", "caf\u00e9", "\u65e5", "".join(map(chr, range(32, 127)))):
        assert tokenizer(text).input_ids == vocabulary.encode(text)
    assert tokenizer.decode(tokenizer("a  b , c.").input_ids) == "a  b , c."


def test_a_picture_and_a_question_become_inputs(path):
    processor = load_processor(path)
    parts = [{"type": "text", "text": "total?"}, {"type": "image", "image": Image.new("L", (300, 200), 255)}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": parts}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    ids = inputs["input_ids"][0].tolist()
    assert ids[:2] == [vocabulary.USER, vocabulary.VISION_START]
    assert ids[-8:] == [vocabulary.VISION_END, *vocabulary.encode("total?"), vocabulary.ASSISTANT]
    assert ids.count(vocabulary.IMAGE) == 7 * 11


@pytest.mark.parametrize("size", [(10, 10), (3000, 4000), (40, 2000)])
def test_pictures_of_any_size_become_64_to_900_tokens(path, size):
    processor = load_processor(path)
    grid = processor.image_processor(Image.new("RGB", size), return_tensors="pt")["image_grid_thw"][0]
    assert folder.MIN_CELLS <= int(grid.prod()) // 4 <= folder.MAX_CELLS


def test_the_default_reader_fits_into_40_megabytes(tmp_path):
    written = folder.write(build(), tmp_path)
    assert (written / "model.safetensors").stat().st_size < 40e6
    assert (
        Qwen2VLForConditionalGeneration.from_pretrained(written).config.text_config.hidden_size == ReaderShape().width
    )


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot load the processor"):
        load_processor(tmp_path)
