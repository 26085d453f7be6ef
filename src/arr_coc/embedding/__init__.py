"""Images and questions in one vector space: dense features that a dot product with a question ranks."""

from arr_coc.embedding.encoder import DenseFeatures, Encoder, Mode, open_encoder, register_encoder

__all__ = ["DenseFeatures", "Encoder", "Mode", "open_encoder", "register_encoder"]
