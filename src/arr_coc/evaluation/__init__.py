"""The comparison: selectors answer the same questions with the same model in one run."""

from arr_coc.evaluation.data import Data, Picture, Sample
from arr_coc.evaluation.harness import Interrupted, evaluate
from arr_coc.evaluation.report import Report

__all__ = ["Data", "Interrupted", "Picture", "Report", "Sample", "evaluate"]
