"""One file per family of channels; importing this package registers them all."""

from arr_coc.texture.channels import (  # noqa: F401
    clusters,
    colour,
    distance,
    edges,
    embedding,
    memory,
    position,
    saliency,
    text,
)
