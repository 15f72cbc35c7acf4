"""A pool of threads that decode audio files with libsndfile or FFmpeg, or compute log-mel spectrograms with PyTorch."""

import collections
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import common


def by_soundfile(path):
    import soundfile

    samples, _ = soundfile.read(path, dtype="float32", always_2d=True)
    return samples.T


def by_pyav(path):
    import av

    with av.open(path) as container:
        parts = [frame.to_ndarray() for frame in container.decode(audio=0)]
    samples = np.concatenate(parts, axis=1)
    return samples.astype("f4") / 32768 if samples.dtype == np.int16 else samples


def by_spdl(path):
    import spdl.io

    return spdl.io.to_numpy(spdl.io.load_audio(path))


class Mel:
    """The log-mel spectrogram of Whisper."""

    def __init__(self):
        import torch

        torch.set_num_threads(1)
        self.torch, self.window = torch, torch.hann_window(400)
        self.filters = torch.from_numpy(mel_filters())

    def __call__(self, path):
        import wave

        with wave.open(path) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype("f4") / 32768
        torch = self.torch
        audio = torch.from_numpy(samples)
        power = torch.stft(audio, 400, 160, window=self.window, return_complex=True)[..., :-1].abs() ** 2
        log = torch.clamp(self.filters @ power, min=1e-10).log10()
        log = torch.maximum(log, log.max() - 8.0)
        return ((log + 4.0) / 4.0).numpy()


def mel_filters():
    """80 bands of Slaney's scale, of equal area, for windows of 400 samples at 16 kHz."""
    mels = np.linspace(0, 15 + np.log(8) * 27 / np.log(6.4), 82)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    bins = np.arange(201) * 40.0
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return (np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)).astype("f4")


def decoder(task, name):
    if task == "whisper":
        return Mel()
    return {"soundfile": by_soundfile, "pyav": by_pyav, "spdl": by_spdl}[name]


def batches(options, decode):
    frames = common.SECONDS * common.RATES[options.task]
    files = common.audio_files(options.data, options.task)
    for epoch in range(options.epochs):
        random.Random(epoch).shuffle(files)
        with ThreadPoolExecutor(options.workers) as pool:
            pending, files_left, arrays = collections.deque(), iter(files), []
            for path in files_left:
                pending.append(pool.submit(decode, path))
                if len(pending) < 3 * common.BATCH:
                    continue
                arrays.append(pending.popleft().result())
                if len(arrays) == common.BATCH:
                    yield stacked(arrays, options.task, frames)
                    arrays = []
            arrays += [one.result() for one in pending]
            for start in range(0, len(arrays), common.BATCH):
                yield stacked(arrays[start : start + common.BATCH], options.task, frames)


def stacked(arrays, task, frames):
    """One array; audio is truncated or padded with zeros to `frames`."""
    if task == "whisper":
        return np.stack(arrays)
    batch = np.zeros((len(arrays), 1, frames), "f4")
    for out, array in zip(batch, arrays):
        part = array[:, :frames]
        out[:, : part.shape[1]] = part
    return batch


def main(name):
    options = common.arguments()
    decode = decoder(options.task, name)
    common.measure(options.task, lambda: batches(options, decode))
