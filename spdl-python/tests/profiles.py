"""Helpers for tests of profiles."""

import contextlib

from spdl_rs.pipeline import ProfileHook

AT_ONCE = [32, 16, 8, 4, 1]


def described(builder):
    return builder.add_sink().get_config()


class RecordingHook(ProfileHook):
    """Records the calls of the hook."""

    def __init__(self):
        self.calls = []

    @contextlib.contextmanager
    def stage_profile_hook(self, stage, concurrency):
        self.calls.append((stage, concurrency))
        yield
        self.calls.append("left")

    @contextlib.contextmanager
    def pipeline_profile_hook(self):
        self.calls.append("begin")
        try:
            yield
        finally:
            self.calls.append("end")
