"""Pipeline-parallel training of PyTorch models: a model is exported, profiled, planned for and trained by Pipewright's programs.

`pipewright train MODEL --text FILE --gpus N` does all of it; the functions here do one step each. docs/python.md
"""
from pipewright.documents import (Comparison, Contender, Evaluation, Exported, Memory, Plan, PredictedStage, Prediction, Profile, ProfiledModel, ProfiledNode,
                                  RankSummary, Stage, Summary, Value)
from pipewright.errors import Error, ProgramError
from pipewright.programs import spec
from pipewright.steps import compare, export, load, plan, profile, train

__all__ = ["Comparison", "Contender", "Error", "Evaluation", "Exported", "Memory", "Plan", "PredictedStage", "Prediction", "Profile", "ProfiledModel",
           "ProfiledNode", "ProgramError", "RankSummary", "Stage", "Summary", "Value", "compare", "export", "load", "plan", "profile", "spec", "train"]
