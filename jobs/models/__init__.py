"""Rows of datasets, environments, templates, jobs, attempts, events and simulations."""

from jobs.models.attempt import Attempt, OutputFile, Replica
from jobs.models.code import CodeBundle, CodeKind
from jobs.models.dataset import Content, Dataset, DatasetVersion, Upload, VersionState
from jobs.models.environment import Environment, JobTemplate
from jobs.models.event import JobEvent
from jobs.models.job import Job, JobDataset, JobQuerySet
from jobs.models.profile import JobProfile
from jobs.models.simulation import (
    PlacementFrames,
    PlacementRun,
    Run,
    RunState,
    SimulationRun,
)

__all__ = [
    "Attempt",
    "CodeBundle",
    "CodeKind",
    "Content",
    "Dataset",
    "DatasetVersion",
    "Environment",
    "Job",
    "JobDataset",
    "JobEvent",
    "JobProfile",
    "JobQuerySet",
    "JobTemplate",
    "OutputFile",
    "PlacementFrames",
    "PlacementRun",
    "Replica",
    "Run",
    "RunState",
    "SimulationRun",
    "Upload",
    "VersionState",
]
