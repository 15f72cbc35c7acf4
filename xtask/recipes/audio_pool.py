"""A pool of threads that decode audio files or windows of them, or compute log-mel spectrograms with PyTorch."""

import collections
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import common


# The functions get the path of a file and the range of its frames, `None` for all, and return an array `[channels,
# frames]`.


def by_soundfile(path, part):
    import soundfile

    start, stop = part or (0, None)
    samples, _ = soundfile.read(path, start=start, stop=stop, dtype="float32", always_2d=True)
    return samples.T


def by_pyav(path, part):
    import av

    parts, at, (start, stop) = [], None, part or (0, None)
    with av.open(path) as container:
        stream = container.streams.audio[0]
        if start:
            container.seek(int(start / stream.rate / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if at is None:
                at = round(float(frame.pts * stream.time_base) * stream.rate)
            parts.append(frame.to_ndarray())
            if stop is not None and at + sum(it.shape[1] for it in parts) >= stop:
                break
    samples = np.concatenate(parts, axis=1)
    if stop is not None:
        samples = samples[:, start - at : stop - at]
    return samples.astype("f4") / 32768 if samples.dtype == np.int16 else samples


def by_spdl(path, part):
    import spdl.io

    assert part is None
    return spdl.io.to_numpy(spdl.io.load_audio(path))


def by_spdl_wav(path, part):
    import spdl.io

    assert part is None
    with open(path, "rb") as file:
        samples = spdl.io.to_numpy(spdl.io.load_wav(file.read()))
    return samples.astype("f4").T / 32768


def by_torchcodec(path, part):
    from torchcodec.decoders import AudioDecoder

    decoder = AudioDecoder(path)
    if part is None:
        return decoder.get_all_samples().data.numpy()
    start, stop = (at / common.HOUR_RATE for at in part)
    return decoder.get_samples_played_in_range(start, stop).data.numpy()


def by_torchaudio(path, part):
    import torchaudio

    assert part is None
    return torchaudio.load(path)[0].numpy()


class Mel:
    """The log-mel spectrogram of Whisper."""

    def __init__(self):
        import torch

        torch.set_num_threads(1)
        self.torch, self.window = torch, torch.hann_window(400)
        self.filters = torch.from_numpy(mel_filters())

    def __call__(self, path, part):
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


# The function of each program, and the modules that it imports.
DECODERS = {
    "soundfile": (by_soundfile, ["soundfile"]),
    "pyav": (by_pyav, ["av"]),
    "spdl": (by_spdl, ["spdl.io"]),
    "spdl_wav": (by_spdl_wav, ["spdl.io"]),
    "torchcodec": (by_torchcodec, ["torchcodec.decoders"]),
    "torchaudio": (by_torchaudio, ["torchaudio", "torchcodec.decoders"]),
}


def requests(options, draw):
    """Paths and ranges of frames, in random order."""
    files = common.audio_files(options.data, options.task)
    if options.task == common.WINDOWS:
        last = (common.HOUR - 1) * common.HOUR_RATE
        starts = [draw.randrange(last + 1) for _ in range(common.WINDOW_COUNT)]
        return [(files[0], (start, start + common.HOUR_RATE)) for start in starts]
    draw.shuffle(files)
    return [(path, None) for path in files]


def batches(options, decode):
    is_window = options.task == common.WINDOWS
    frames = common.HOUR_RATE if is_window else common.SECONDS * common.RATES[options.task]
    for epoch in range(options.epochs):
        with ThreadPoolExecutor(options.workers) as pool:
            pending, arrays = collections.deque(), []
            for path, part in requests(options, random.Random(epoch)):
                pending.append(pool.submit(decode, path, part))
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
    decode, modules = (Mel(), []) if options.task == "whisper" else DECODERS[name]
    common.import_all(modules)
    common.measure(options.task, lambda: batches(options, decode))
