"""Textures, video frames and decisions of fixed shape as CUDA graphs: an experiment for services and video, not used by an answer."""
