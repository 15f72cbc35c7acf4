"""Clips by FFmpeg, through the original SPDL, in a pool of threads."""

import video_pool

if __name__ == "__main__":
    video_pool.main("spdl")
