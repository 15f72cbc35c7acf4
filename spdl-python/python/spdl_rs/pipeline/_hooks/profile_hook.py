"""Code of the user's around the parts of a profile."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod


class ProfileHook(ABC):
    """Code of yours around the parts of a profile: to start a profiler of another kind, say.

    >>> from contextlib import contextmanager
    >>> from spdl_rs.pipeline import PipelineBuilder, ProfileHook, profile_pipeline
    >>> class Tell(ProfileHook):
    ...     @contextmanager
    ...     def stage_profile_hook(self, stage, concurrency):
    ...         yield
    ...         print(stage, concurrency)
    ...     @contextmanager
    ...     def pipeline_profile_hook(self):
    ...         yield
    ...         print("done")
    >>> config = PipelineBuilder().add_source(range(4)).aggregate(2).add_sink().get_config()
    >>> results = profile_pipeline(config, hook=Tell())
    aggregate 1
    done
    """

    @abstractmethod
    def stage_profile_hook(
        self, stage: str, concurrency: int
    ) -> contextlib.AbstractContextManager[None]:
        """Is entered before a stage runs, and left after it: once for each number of items at once.

        Args:
            stage: The name of the stage.
            concurrency: How many items it works on at once.
        """

    @abstractmethod
    def pipeline_profile_hook(self) -> contextlib.AbstractContextManager[None]:
        """Is entered before all else, and left after it, also where nothing is profiled."""
