"""Clips by FFmpeg, through decord2, in a pool of threads."""

import video_pool

if __name__ == "__main__":
    video_pool.main("decord")
