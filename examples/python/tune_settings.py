"""Searches the fastest settings for a data set: a reference driver for `spdl tune`.

    cargo xtask demo                            creates a demo data set
    python examples/python/tune_settings.py
    python examples/python/tune_settings.py photos -- --mode train --batch 64

Requires only the command `spdl` (of the package `spdl-rs`, or `--program`). The search moves along
one setting after the other, by factors of two, and keeps a change only if it is faster by more than
the noise. Any other search can drive the same protocol: see docs/tune-protocol.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Settings = dict[str, int | None]


class Tuner:
    """A running `spdl tune`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.measurements = 0

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        # The program ends with its input.
        self._process.stdin.close()
        self._process.wait()

    def request(self, command: str, **keys: Any) -> dict[str, Any]:
        """Sends a request, and returns the response."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **keys}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SystemExit("spdl tune has ended") from None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("spdl tune has ended")
        response: dict[str, Any] = json.loads(line)
        if not response["ok"]:
            raise SystemExit("{kind}: {message}".format(**response["error"]))
        return response

    def measure(self, settings: Settings, seconds: float) -> Rate:
        """Measures the rate with these settings."""
        self.request("set", settings=settings)
        self.measurements += 1
        return Rate(self.request("measure", seconds=seconds))


class Rate:
    """Samples per second: the median of rounds, and its noise."""

    def __init__(self, measured: dict[str, Any]) -> None:
        rate = measured["samples_per_s"]
        self.median: float = rate["median"]
        # Half of the quartile distance is 0.67 standard deviations of a normal distribution.
        deviation = (rate["q3"] - rate["q1"]) / 2 / 0.67
        self.noise: float = 1.25 * deviation / len(rate["rounds"]) ** 0.5

    def is_above(self, other: Rate) -> bool:
        """Whether the difference is larger than the noise, and than 2 %."""
        noise = 2 * (self.noise**2 + other.noise**2) ** 0.5
        return self.median - other.median > max(noise, 0.02 * other.median)


def search(tuner: Tuner, seconds: float) -> tuple[Settings, Rate, Rate]:
    """Returns the best settings, their rate, and the rate with the defaults."""
    described = tuner.request("describe")["settings"]
    # A setting that a request does not name keeps its value, so each request names all settings.
    defaults: Settings = {setting["name"]: setting["default"] for setting in described}
    best = dict(defaults)
    rate = tuner.measure(best, seconds)
    print(f"defaults: {rate.median:,.0f} samples/s")
    improved = True
    while improved:
        improved = False
        for setting in described:
            name = setting["name"]
            for factor in (2.0, 0.5):
                now, last = best[name], rate
                if now is None:
                    # The program chooses the number. Search upwards from the smallest.
                    if factor < 1:
                        continue
                    now, last = setting["min"], None
                while True:
                    value = min(max(round(now * factor), setting["min"]), setting["max"])
                    if value == now:
                        break
                    changed = tuner.measure({**best, name: value}, seconds)
                    keeps = changed.is_above(rate)
                    print(
                        f"{name} {now} -> {value}: {changed.median:,.0f} samples/s"
                        f"{', kept' if keeps else ''}"
                    )
                    if keeps:
                        best, rate, improved = {**best, name: value}, changed, True
                    if last is not None and not changed.is_above(last):
                        break
                    now, last = value, changed
    # The best of several noisy measurements is too high: the rate is measured again, longer.
    rates = tuner.measure(best, 2 * seconds), tuner.measure(defaults, 2 * seconds)
    return {name: value for name, value in best.items() if value != defaults[name]}, *rates


def main() -> None:
    options = arguments()
    data = options.data
    if data is None:
        import demo_data

        data = demo_data.folder()
    command = [*shlex.split(options.program), "tune", str(data), "--json", *options.options]
    with Tuner(command) as tuner:
        best, rate, default = search(tuner, options.seconds)
        gain = rate.median / default.median - 1
        print(f"{tuner.measurements} measurements; {gain:+.0%} in samples/s by {best or 'no change'}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="the data set, as for `spdl bench`")
    parser.add_argument("options", nargs="*", help="after `--`: options of `spdl tune`")
    parser.add_argument("--program", default="spdl", help="the command spdl [%(default)s]")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of a measurement [%(default)s]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
