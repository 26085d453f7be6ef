"""The web page of `arr-coc demo`. Only `page/` and `server.py` import gradio; each `tab_*.py` computes what one tab shows."""
