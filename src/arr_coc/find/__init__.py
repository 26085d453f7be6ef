"""Find images of a folder by what is in them, from embeddings that are encoded once"""
