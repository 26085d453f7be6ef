"""Comparison of selectors: the same questions with the same model in one run."""

from arr_coc.evaluation.data import Data, PictureQuestions, Sample
from arr_coc.evaluation.report import Report
from arr_coc.evaluation.runner import Interrupted, evaluate

__all__ = ["Data", "Interrupted", "PictureQuestions", "Report", "Sample", "evaluate"]
