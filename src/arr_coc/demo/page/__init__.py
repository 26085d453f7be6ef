"""The page in gradio: its layout and its events. What it shows is computed in the tab modules."""
