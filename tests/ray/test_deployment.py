"""The endpoint on Ray Serve, through the openai client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from arr_coc.hosting import find_port
from arr_coc.ray import deployment
from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.settings import Selection, ServeSettings
from tests.serve.conftest import QUESTION, client, receipt, user

pytestmark = pytest.mark.filterwarnings("default")  # of ray


def test_the_endpoint_as_a_deployment(ray: Any) -> None:
    import ray.serve

    port = find_port("127.0.0.1", None, range(8500, 8600))
    settings = ServeSettings("reader", EndpointLimits(tokens=8), Selection("50%"), api_key="s3cret", grace=2)
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        ray.serve.run(deployment("reader", settings, replicas=2), route_prefix="/")
        address = f"http://127.0.0.1:{port}"
        known = client(address, "s3cret")
        totals = ["18.20", "7.35", "96.04", "55.10"]
        asked: dict[str, Any] = {"model": "reader"}
        with ThreadPoolExecutor(4) as pool:
            made = list(
                pool.map(
                    lambda total: known.chat.completions.create(**asked, messages=user(QUESTION, receipt(total))),
                    totals,
                )
            )
        assert [one.choices[0].message.content for one in made] == totals
        assert made[0].usage.model_dump()["visual_tokens"]["kept"] == 75
        stream = known.chat.completions.create(**asked, messages=user(QUESTION, receipt()), stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert [piece for piece in pieces if piece] == list("18.20")
        with pytest.raises(openai.BadRequestError, match="expected budget as a count"):
            known.chat.completions.create(
                **asked, messages=user(QUESTION, receipt()), extra_body={"arr_coc": {"budget": "lots"}}
            )
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
    finally:
        ray.serve.shutdown()
