"""Audio by FFmpeg, through TorchCodec, in a pool of threads."""

import audio_pool

if __name__ == "__main__":
    audio_pool.main("torchcodec")
