"""Video frames: reading them, and the motion between them."""
