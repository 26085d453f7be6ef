"""The web page that looks into the system: `arr-coc demo`. Only `page/` and `serving.py` know gradio."""
