"""One file per family of channels; importing this package registers them all."""

from arr_coc.texture.channels import clusters, edges, inputs, text  # noqa: F401
