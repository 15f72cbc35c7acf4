"""The hook of `profile_pipeline`."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod


class ProfileHook(ABC):
    """Custom code around the measurements of a profile, for example to start another profiler.

    >>> from contextlib import contextmanager
    >>> from spdl_rs.pipeline import PipelineBuilder, ProfileHook, profile_pipeline
    >>> class Print(ProfileHook):
    ...     @contextmanager
    ...     def stage_profile_hook(self, stage, concurrency):
    ...         yield
    ...         print(stage, concurrency)
    ...     @contextmanager
    ...     def pipeline_profile_hook(self):
    ...         yield
    ...         print("done")
    >>> config = PipelineBuilder().add_source(range(4)).aggregate(2).add_sink().get_config()
    >>> results = profile_pipeline(config, hook=Print())
    aggregate 1
    done
    """

    @abstractmethod
    def stage_profile_hook(
        self, stage: str, concurrency: int
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager around one run of a stage.

        Args:
            stage: The name of the stage.
            concurrency: The number of items that the stage processes at the same time.
        """

    @abstractmethod
    def pipeline_profile_hook(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager around the whole profile, entered even if there is nothing to profile."""
