"""Video: allocate tokens frame by frame, reuse results along the motion, recompute only what changed."""
