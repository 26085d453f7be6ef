"""Pictures and questions in one space: dense features of a picture, asked by a dot product."""

from arr_coc.embedding.encoder import Dense, Encoder, Mode, open_encoder

__all__ = ["Dense", "Encoder", "Mode", "open_encoder"]
