"""The page of ARR-COC as a Space. `python app.py` serves it on port 7860, as Spaces expect.

Settings are variables of the Space: ARR_COC_MODEL (the bundled reader), ARR_COC_EMBEDDINGS (none), ARR_COC_DEVICE (cuda where
there is one). On ZeroGPU every tab runs inside `spaces.GPU`, in a process that has the GPU for ARR_COC_SECONDS (60).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

# `spaces` replaces parts of torch, so it is imported first.
spaces: Any = importlib.import_module("spaces") if importlib.util.find_spec("spaces") else None

import torch  # noqa: E402

from arr_coc.adapters.loading import keep_quiet  # noqa: E402
from arr_coc.demo.app import AppState, Output, PageRequest, RunTab, load_app  # noqa: E402
from arr_coc.demo.inputs import Upload  # noqa: E402
from arr_coc.demo.limits import Limits  # noqa: E402
from arr_coc.demo.server import Address, import_gradio, serve  # noqa: E402
from arr_coc.demo.state import PageState  # noqa: E402

SECONDS = int(os.environ.get("ARR_COC_SECONDS", "60"))  # of the GPU for one request
EMBEDDERS = ("https://huggingface.co", "https://*.hf.space")  # a Space is shown inside the hub's own page

app: AppState


def on_gpu(function: RunTab, session: str | None, upload: Upload | None, state: PageState) -> Iterator[Output]:
    """Run a tab. ZeroGPU calls this in another process, so the session's image comes along."""
    here = app.sessions.get(session)
    if here.upload is not upload:
        here.set_upload(upload)
    yield from function(PageRequest(app, here, state, session))


gpu: Callable[..., Any] = on_gpu if spaces is None else spaces.GPU(duration=SECONDS)(on_gpu)


def run(function: RunTab, request: PageRequest) -> Iterator[Output]:
    found: Iterator[Output] = gpu(function, request.session_id, request.session.upload, request.state)
    return found


def main() -> None:
    global app
    import_gradio()
    keep_quiet()
    device = os.environ.get("ARR_COC_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    model, embeddings = os.environ.get("ARR_COC_MODEL") or "reader", os.environ.get("ARR_COC_EMBEDDINGS") or None
    app = replace(load_app([model], Limits(), Path(), device=device, embeddings=embeddings), run=run)
    names = tuple(name for name in os.environ.get("SPACE_HOST", "").lower().split(",") if name)
    address = Address("0.0.0.0", int(os.environ.get("GRADIO_SERVER_PORT", "7860")), names=names, embedders=EMBEDDERS)
    with serve(app, address) as url:
        print(f"The page is at {url}.", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("The page is closed.")


if __name__ == "__main__":
    main()
