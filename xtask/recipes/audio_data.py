"""Writes the audio files of `cargo xtask bench audio`: 10 seconds of harmonics with noise, mono, 16 bits.

Usage: audio_data.py OUT. `OUT/audio/wav`, `flac`, `mp3` (constant bit rate, 128 kbit/s) have 44.1 kHz; `whisper` has
WAV files of 16 kHz. `flac-windows` has one FLAC file of an hour, 16 kHz: such signals one after the other.
"""

import os
import sys

import numpy as np
import soundfile

import common

COUNT = 400


def signal(number, rate):
    """Like a voice: harmonics of 100 to 250 Hz whose loudness changes, and noise that falls with the frequency."""
    draw = np.random.default_rng(number)
    time = np.arange(common.SECONDS * rate) / rate
    loudness = np.interp(time, np.arange(0, common.SECONDS + 0.2, 0.1), draw.random(10 * common.SECONDS + 2))
    pitch = draw.uniform(100, 250)
    voice = sum(np.sin(2 * np.pi * pitch * k * time + draw.uniform(0, 6)) / k for k in range(1, 20))
    noise = np.cumsum(draw.standard_normal(len(time)))
    noise[201:] -= (np.cumsum(noise)[201:] - np.cumsum(noise)[:-201]) / 201
    mixed = 0.1 * voice * loudness + 0.02 * noise / abs(noise).max() + 0.002 * draw.standard_normal(len(time))
    return np.clip(mixed, -1, 1).astype("f4")


def write_files(folder):
    settings = {"mp3": {"bitrate_mode": "CONSTANT", "compression_level": 0.5}}
    for task in common.RATES:
        os.makedirs(os.path.join(folder, task))
    for number in range(COUNT):
        signals = {rate: signal(number, rate) for rate in set(common.RATES.values())}
        for task, rate in common.RATES.items():
            extension = "wav" if task == "whisper" else task
            path = os.path.join(folder, task, f"{number:04}.{extension}")
            soundfile.write(path, signals[rate], rate, **settings.get(task, {}))


def write_hour(folder):
    os.makedirs(folder)
    path = os.path.join(folder, "hour.flac")
    with soundfile.SoundFile(path, "w", common.HOUR_RATE, 1, "PCM_16") as file:
        for number in range(common.HOUR // common.SECONDS):
            file.write(signal(number, common.HOUR_RATE))


def main(out):
    folder = os.path.join(out, "audio")
    for name, write in {"": write_files, common.WINDOWS: write_hour}.items():
        # The folder of all tasks is first: the others are in it.
        path = os.path.join(folder, name) if name else folder
        if not os.path.exists(path):
            write(path + ".partial")
            os.replace(path + ".partial", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
