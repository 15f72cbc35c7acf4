"""Audio by FFmpeg, through torchaudio, in a pool of threads."""

import audio_pool

if __name__ == "__main__":
    audio_pool.main("torchaudio")
