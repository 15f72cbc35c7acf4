"""WAV by the original SPDL's own reader, in a pool of threads."""

import audio_pool

if __name__ == "__main__":
    audio_pool.main("spdl_wav")
