"""Drawn documents: pictures with the place of every character, and questions with answers and evidence."""
