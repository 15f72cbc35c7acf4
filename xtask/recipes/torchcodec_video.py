"""Clips by FFmpeg, through TorchCodec, in a pool of threads."""

import video_pool

if __name__ == "__main__":
    video_pool.main("torchcodec")
