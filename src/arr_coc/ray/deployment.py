"""The endpoint of `arr-coc serve` as a deployment of Ray Serve: `serve.run(arr_coc.ray.deployment("reader", replicas=2))`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import arr_coc
from arr_coc.ray.workers import import_ray
from arr_coc.serve.settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI


def deployment(
    model: str = "reader",
    settings: ServeSettings | None = None,
    *,
    replicas: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    embeddings: str | None = None,
    layer: str | None = "auto",
) -> Any:
    """An application for `ray.serve.run`. Each replica loads the model, and has a queue and batches of its own.

    Args:
        model: A model folder, hub id or "reader". Every node must be able to load it.
        settings: Name, limits, defaults and API key, as of `arr-coc serve`.
        replicas: Processes, each with `cpus` and `gpus`.
        embeddings: As in `arr_coc.load`.
        layer: As in `arr_coc.load`.
    """
    import_ray()
    serve: Any = importlib.import_module("ray.serve")
    known = settings or ServeSettings(name=model)
    device = "cuda" if gpus else "cpu"

    def build() -> FastAPI:
        """Runs in the replica: an app with a model inside cannot be sent there."""
        from arr_coc.adapters.loading import keep_quiet
        from arr_coc.hosting import limit_malloc_arenas
        from arr_coc.serve.app import create_app
        from arr_coc.serve.engine import Engine

        limit_malloc_arenas()
        keep_quiet()
        vlm = arr_coc.load(model, embeddings=embeddings, layer=layer)
        vlm.model.to(device)
        engine = Engine(vlm, known.limits)
        engine.warm_up()
        return create_app(engine, known)

    @serve.deployment(
        name="arr-coc",
        num_replicas=replicas,
        # Above our own queue, so that a full one is answered with 429 and Retry-After.
        max_ongoing_requests=int(known.limits.queue + 2 * known.limits.batch),
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        graceful_shutdown_timeout_s=known.grace,
    )
    @serve.ingress(build)
    class Endpoint:
        pass

    return Endpoint.bind()  # type: ignore[attr-defined]
