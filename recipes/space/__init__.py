"""The page as a Space of the Hugging Face hub: `python -m recipes.space OUT` makes the folder to push"""
