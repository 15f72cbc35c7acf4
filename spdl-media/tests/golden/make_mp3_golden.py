"""Makes the files of tests/mp3 and the samples that libmpg123 decodes from them.

Needs numpy, av (with libmp3lame) and soundfile. LAME does not use all features of the format, so some
files contain random, valid data: all Huffman tables, block types and kinds of joint stereo.
`NAME.f32` has each `STEP`-th sample of the interleaved channels.
"""

import random
import re
from pathlib import Path

import av
import numpy as np
import soundfile

STEP = 37
TESTS = Path(__file__).parent.parent
SOURCES = TESTS.parent / "src/audio/mpeg/layer3"
RATES = [44100, 48000, 32000]

# The number of additional bits of the value 15, for each table of pairs.
ADDITIONAL = [0] * 16 + [1, 2, 3, 4, 6, 8, 10, 13, 4, 5, 6, 7, 8, 9, 11, 13]
TABLES = [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, *range(16, 32)]
SCALE_LENGTHS = [
    (0, 0), (0, 1), (0, 2), (0, 3), (3, 0), (1, 1), (1, 2), (1, 3),
    (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3),
]
LONG_44100 = [
    0, 4, 8, 12, 16, 20, 24, 30, 36, 44, 52, 62, 74, 90, 110, 134, 162, 196, 238, 288, 342, 418, 576,
]
LONG_22050 = [
    0, 6, 12, 18, 24, 30, 36, 44, 54, 66, 80, 96, 116, 140, 168, 200, 238, 284, 336, 396, 464, 522, 576,
]
START, SHORT, STOP = 1, 2, 3
MIDDLE, INTENSITY = 2, 1


def codes(name):
    """The code of each symbol, from the tables of the decoder."""
    source = (SOURCES / "huffman.rs").read_text()
    table = re.search(rf"const {name}: \[u16; \d+\] = \[(.*?)\];", source, re.S).group(1)
    result, start = {}, 0
    for entry in re.findall(r"0x([0-9A-F]+)", table):
        value, length = divmod(int(entry, 16), 256)
        result[value] = f"{start >> (32 - length):0{length}b}"
        start += 1 << (32 - length)
    return result


def pair_codes(table):
    return codes(f"CODES_{24 if table >= 24 else 16 if table >= 16 else table}")


QUADS = [codes("QUADS_A"), codes("QUADS_B")]
PAIRS = {table: pair_codes(table) for table in TABLES}


def bits(value, count):
    return f"{value:0{count}b}" if count else ""


def to_bytes(text, size):
    return int(text.ljust(8 * size, "0"), 2).to_bytes(size, "big")


def lines(rng, table_at, limit, quads, room):
    """Random lines: the number of pairs, and their bits."""
    text, at, pairs = "", 0, 0
    target = 2 * rng.randrange(limit // 2 + 1)
    while at < target:
        table = table_at(at)
        entry = ""
        if table:
            most = max(PAIRS[table]) >> 4
            spread = rng.choice([0.7, 3, 10, 60]) if at < 100 else 3
            values = [int(abs(rng.gauss(0, 1)) * spread) for _ in range(2)]
            most = most if table < 16 else 14 + (1 << ADDITIONAL[table])
            values = [min(value, most) for value in values]
            entry = PAIRS[table][min(values[0], 15) << 4 | min(values[1], 15)]
            for value in values:
                if table >= 16 and value >= 15:
                    entry += bits(value - 15, ADDITIONAL[table])
                entry += rng.choice("01") if value else ""
        if len(text) + len(entry) > room:
            break
        text, at, pairs = text + entry, at + 2, pairs + 1
    while at + 4 <= 576 and at < limit:
        value = rng.randrange(16)
        entry = quads[value] + "".join(rng.choice("01") for _ in range(value.bit_count()))
        if len(text) + len(entry) > room:
            break
        text, at = text + entry, at + 4
    return pairs, text


def scale_factors(rng, low_rate, code, block, mixed, is_intensity, shared):
    """Random scale factors. At low rates, codes below 400 are used, or 360 for intensity."""

    def values(count, length):
        # Of intensity positions with all bits set, decoders disagree which are valid.
        most = max(1, min((1 << length) - 1, 7)) if is_intensity else 1 << length
        return "".join(bits(rng.randrange(most), length) for _ in range(count))

    if low_rate and is_intensity:
        half = code // 2
        lengths = [half // 36, half % 36 // 6, half % 6]
        counts = [12, 12, 12] if block == SHORT and not mixed else [7, 7, 7]
        counts = [6, 15, 12] if block == SHORT and mixed else counts
        return "".join(values(*it) for it in zip(counts, lengths))
    if low_rate:
        lengths = [code // 80, code // 16 % 5, code // 4 % 4, code % 4]
        counts = [9, 9, 9, 9] if block == SHORT and not mixed else [6, 5, 5, 5]
        counts = [6, 9, 9, 9] if block == SHORT and mixed else counts
        return "".join(values(*it) for it in zip(counts, lengths))
    low, high = SCALE_LENGTHS[code]
    if block == SHORT:
        return values(17 if mixed else 18, low) + values(18, high)
    groups = zip([(6, low), (5, low), (5, high), (5, high)], shared)
    return "".join("" if is_shared else values(*group) for group, is_shared in groups)


def layer3(seed, rate, channels, frames, extensions=(), has_mixed=True):
    """A stream of random frames, which use no data of earlier frames."""
    rng = random.Random(seed)
    low_rate = rate < 32000
    long_bands = LONG_22050 if low_rate else LONG_44100
    granules = 1 if low_rate else 2
    side_size = {(False, 1): 17, (False, 2): 32, (True, 1): 9, (True, 2): 17}[low_rate, channels]
    kbps = 160 if low_rate else 320
    size = (72 if low_rate else 144) * kbps * 1000 // rate
    room = (size - 4 - side_size) * 8 // (granules * channels)
    stream = b""
    for _ in range(frames):
        extension = rng.choice(extensions) if extensions else 0
        mode = 3 if channels == 1 else 1 if extension else 0
        rate_index = RATES.index(rate * (2 if low_rate else 1))
        header = bytes([0xFF, 0xF3 if low_rate else 0xFB, 14 << 4 | rate_index << 2, mode << 6 | extension << 4])
        side = bits(0, 8 + channels if low_rate else 9 + (5 if channels == 1 else 3))
        shared = [[rng.random() < 0.4 for _ in range(4)] for _ in range(channels)]
        if not low_rate:
            side += "".join("01"[it] for channel in shared for it in channel)
        data = ""
        for granule in range(granules):
            kinds = [(0, 0), (0, 0), (START, 0), (SHORT, 0), (STOP, 0)]
            kinds += [(START, 1), (SHORT, 1), (STOP, 1)] if has_mixed else []
            kind = rng.choice(kinds)
            for channel in range(channels):
                # Joint stereo needs equal blocks.
                block, mixed = kind = kind if channel and extension else rng.choice(kinds)
                is_intensity = channel == 1 and extension & INTENSITY != 0
                code = rng.randrange(16 if not low_rate else 360 if is_intensity else 400)
                first, second = rng.randrange(16), rng.randrange(8)
                regions = [long_bands[min(22, first + 1)], long_bands[min(22, first + second + 2)]]
                if block:
                    regions = [54 if low_rate and block != SHORT else 36, 576]
                tables = [rng.choice([0, *TABLES]) for _ in range(3)]
                quads = rng.randrange(2)
                scales = scale_factors(
                    rng, low_rate, code, block, mixed, is_intensity,
                    shared[channel] if granule else [False] * 4,
                )
                limit = rng.choice([10, 40, 120, 300] if is_intensity else [60, 200, 400, 576])
                pairs, text = lines(
                    rng,
                    lambda at: tables[sum(at >= region for region in regions)],
                    limit,
                    QUADS[quads],
                    min(room, 4095) - len(scales),
                )
                side += bits(len(scales + text), 12) + bits(pairs, 9) + bits(rng.randrange(150, 168), 8)
                side += bits(code, 9 if low_rate else 4)
                if block:
                    side += "1" + bits(block, 2) + bits(mixed, 1) + bits(tables[0], 5) + bits(tables[1], 5)
                    side += "".join(bits(rng.randrange(4), 3) for _ in range(3))
                else:
                    side += "0" + "".join(bits(table, 5) for table in tables)
                    side += bits(first, 4) + bits(second, 3)
                side += "" if low_rate else bits(rng.randrange(2) if block != SHORT else 0, 1)
                side += bits(rng.randrange(2), 1) + bits(quads, 1)
                data += scales + text
        assert len(side) == 8 * side_size
        stream += header + to_bytes(side, side_size) + to_bytes(data, size - 4 - side_size)
    return stream


def layer1(seed, frames):
    """A stereo stream of random frames of layer I."""
    rng = random.Random(seed)
    size = 12 * 256000 // 44100 * 4
    stream = b""
    for _ in range(frames):
        mode, extension = rng.randrange(2), rng.randrange(4)
        bound = 4 * (extension + 1) if mode == 1 else 32
        allocations, used = [], 32 * 4 * 2
        for subband in range(32):
            row = [rng.choice([0, 0, 0, rng.randrange(15)]) for _ in range(2)]
            row = row if subband < bound else [row[0]] * 2
            cost = sum(6 + 12 * (it + 1) for it in row if it)
            row = row if used + cost <= 8 * (size - 4) else [0, 0]
            used += cost if any(row) else 0
            allocations.append(row)
        coded = [row if subband < bound else row[:1] for subband, row in enumerate(allocations)]
        text = "".join(bits(it, 4) for row in coded for it in row)
        text += "".join(bits(rng.randrange(12, 63), 6) for row in allocations for it in row if it)
        for _ in range(12):
            for it in (it for row in coded for it in row if it):
                text += bits(rng.randrange((2 << it) - 1), it + 1)
        stream += bytes([0xFF, 0xFF, 8 << 4, mode << 6 | extension << 4]) + to_bytes(text, size - 4)
    return stream


def sound(rate, channels, seconds):
    """Tones and clicks, so that LAME uses long and short blocks."""
    rng = np.random.default_rng(5)
    time = np.arange(int(rate * seconds)) / rate
    tones = sum(np.sin(2 * np.pi * 170 * k * time * (1 + 0.2 * time)) / k for k in range(1, 12))
    clicks = rng.standard_normal(time.size) * np.exp(-40 * (time % 0.11))
    left = 0.15 * tones + 0.2 * clicks
    right = 0.1 * tones - 0.15 * np.roll(clicks, 30)
    return np.stack([left, right][:channels]).astype(np.float32)


def encode(path, rate, channels, seconds, kbps, codec="libmp3lame"):
    samples = sound(rate, channels, seconds)
    layout = "mono" if channels == 1 else "stereo"
    with av.open(path, "w", format="mp3" if codec == "libmp3lame" else "mp2") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout, stream.bit_rate = layout, kbps * 1000
        stream.format = "fltp" if codec == "libmp3lame" else "s16"
        if codec != "libmp3lame":
            samples = np.round(samples.T.reshape(1, -1) * 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format=stream.format.name, layout=layout)
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


def main():
    folder = TESTS / "mp3"
    folder.mkdir(exist_ok=True)
    encode(folder / "mono.mp3", 44100, 1, 0.25, 64)
    encode(folder / "joint.mp3", 48000, 2, 0.25, 96)
    encode(folder / "low-rate.mp3", 22050, 2, 0.5, 40)
    encode(folder / "lowest-rate.mp3", 8000, 1, 0.5, 24)
    encode(folder / "layer2.mp2", 44100, 2, 0.1, 192, "mp2")
    streams = {
        "blocks.mp3": layer3(1, 44100, 2, 4),
        "blocks-low-rate.mp3": layer3(2, 22050, 1, 6),
        "middle.mp3": layer3(3, 44100, 2, 3, [MIDDLE]),
        "intensity.mp3": layer3(4, 44100, 2, 4, [INTENSITY, INTENSITY | MIDDLE], has_mixed=False),
        "intensity-low-rate.mp3": layer3(6, 22050, 2, 6, [INTENSITY, INTENSITY | MIDDLE], has_mixed=False),
        "layer1.mp1": layer1(7, 5),
    }
    for name, stream in streams.items():
        (folder / name).write_bytes(stream)
    for path in sorted(folder.glob("*.mp[123]")):
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        print(path.name, path.stat().st_size, rate, samples.shape, np.abs(samples).max())
        samples.reshape(-1)[::STEP].astype("<f4").tofile(f"{path}.f32")


if __name__ == "__main__":
    main()
