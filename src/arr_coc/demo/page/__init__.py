"""The page in gradio: controls, tabs, and what happens when something is touched. Nothing is worked out in here."""
