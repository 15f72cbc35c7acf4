"""Defects that only many repetitions show: leaks, and Ctrl-C at bad moments.

Each test runs in a separate Python process. SPDL_CYCLES (default 200) and SPDL_SIGINTS (default 32) set the
number of repetitions; `cargo xtask soak` uses 10,000 and 200.
"""

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import textwrap

CYCLES = int(os.environ.get("SPDL_CYCLES", "200"))
SIGINTS = int(os.environ.get("SPDL_SIGINTS", "32"))


def told_by(script, *arguments, within_s):
    """Returns the output of a script, parsed as JSON."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=within_s,
        # Background programs start with SIGINT ignored, and child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout)


# promise: R5
def test_repeated_starts_breaks_and_drops_leak_nothing(photos):
    script = """
        import asyncio, contextlib, gc, json, logging, os, random, sys, threading, time
        import numpy, spdl_rs
        from spdl_rs.pipeline import PipelineBuilder, PipelineFailure

        logging.disable()

        folder, cycles = sys.argv[1], int(sys.argv[2])
        rng = random.Random(0)
        kept = {}

        async def later(item):
            await asyncio.sleep(0)
            return item

        def functions():
            builder = PipelineBuilder().add_source(range(1000)).pipe(lambda item: [item])
            if rng.random() < 0.2:
                builder = builder.pipe(later, concurrency=4)
            pipeline = builder.aggregate(3).add_sink(2).build(num_threads=2)
            way = rng.randrange(4)
            if way == 0:
                return  # Never started.
            if way == 1:
                with pipeline.auto_stop():
                    for _ in zip(range(rng.randrange(5)), pipeline):
                        pass
            elif way == 2:
                for _ in zip(range(rng.randrange(1, 5)), pipeline):
                    pass
            else:
                iterator = iter(pipeline)
                kept["last"] = next(iterator)
                pipeline.stop()

        async def refuse(item):
            raise ValueError(item)

        def failing():
            builder = PipelineBuilder().add_source(range(9)).pipe(refuse, max_failures=0)
            pipeline = builder.add_sink().build(num_threads=1)
            try:
                list(pipeline)
            except PipelineFailure:
                return
            raise SystemExit("it did not fail")

        def images():
            loader = spdl_rs.ImageLoader(folder, batch_size=2, size=16, threads=1)
            batches = iter(loader)
            for _ in range(rng.randrange(3)):
                kept["batch"] = next(batches, None)
            if rng.random() < 0.5:
                batches.close()

        def ours():
            count = 0
            for task in os.listdir("/proc/self/task"):
                # The thread may have ended since.
                with contextlib.suppress(FileNotFoundError):
                    count += open(f"/proc/self/task/{task}/comm").read().startswith("spdl")
            return count

        def state():
            gc.collect()
            deadline = time.monotonic() + 20
            # Threads that wind down are not leaked.
            while (ours() or threading.active_count() > 1) and time.monotonic() < deadline:
                time.sleep(0.1)
            # Such threads may leave reference cycles.
            gc.collect()
            with open("/proc/self/status") as status:
                rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            tasks, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
            return {
                "ours": ours(),
                "threads": tasks,
                "files": files,
                "kib": rss,
                "objects": len(gc.get_objects()),
                "modules": len(sys.modules),
            }

        def cycle(number):
            ({0: images, 1: failing}.get(number % 5, functions))()

        for number in range(max(50, cycles // 10)):
            cycle(number)
        states = [state()]
        for _ in range(4):
            for number in range(cycles // 4):
                cycle(number)
            states.append(state())
        print(json.dumps(states))
    """
    states = told_by(script, photos, CYCLES, within_s=120 + CYCLES)
    before, after = states[0], states[-1]
    assert after["ours"] == 0 and after["threads"] <= before["threads"], (before, after)
    assert after["files"] == before["files"], (before, after)
    # A leak adds objects in most parts; a module that is imported late does so once.
    added = [later["objects"] - earlier["objects"] for earlier, later in itertools.pairwise(states)]
    assert statistics.median(added) <= 12, (added, states)
    # The memory that allocators keep varies, but does not grow with the number of cycles.
    assert after["kib"] <= before["kib"] + 16 * 1024, (before, after)


SITUATIONS = [
    "reads and decodes of images",
    "a function that sleeps",
    "an async function that sleeps",
    "short functions",
    "a store that does not answer",
    "a source that sleeps",
    "a process that sends items",
    "a full queue",
]


# promise: R6
def test_signals_are_handled_soon_at_any_moment(photos):
    script = """
        import asyncio, contextlib, functools, itertools, json, os, random, signal, socket, sys, threading, time
        import spdl_rs
        from spdl_rs.io import Fetch
        from spdl_rs.pipeline import PipelineBuilder, iterate_in_subprocess

        folder, times = sys.argv[1], int(sys.argv[2])
        rng = random.Random(1)

        def slow(item):
            time.sleep(0.3)
            return item

        async def slow_async(item):
            await asyncio.sleep(0.3)
            return item

        def functions(op, source=range(10**9)):
            builder = PipelineBuilder().add_source(source).pipe(op, concurrency=2)
            return builder.add_sink(2).build(num_threads=2)

        def images():
            while True:
                for _ in spdl_rs.ImageLoader(folder, batch_size=2, size=64, threads=1):
                    pass

        def items(*arguments):
            pipeline = functions(*arguments)
            with pipeline.auto_stop():
                for _ in pipeline:
                    pass

        def naps():
            while True:
                time.sleep(20)
                yield 1

        def full_queue():
            pipeline = functions(abs)
            with pipeline.auto_stop():
                pipeline.get_item()
                time.sleep(60)

        def from_process():
            for _ in numbers:
                pass

        silent = socket.create_server(("127.0.0.1", 0), backlog=100)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        numbers = iterate_in_subprocess(functools.partial(itertools.count))
        next(iter(numbers))
        ways = [
            images,
            lambda: items(slow),
            lambda: items(slow_async),
            lambda: items(abs),
            lambda: items(Fetch(), [url] * 1000),
            lambda: items(abs, naps()),
            from_process,
            full_queue,
        ]

        # As programs that end in an orderly way.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        pressed = 0.0

        def press(number):
            global pressed
            pressed = time.monotonic()
            os.kill(os.getpid(), number)

        handled = []
        for number in range(times):
            turn = number // len(ways)
            moment = rng.uniform(0.0, 0.05) if turn % 2 == 0 else rng.uniform(0.05, 0.6)
            sent, expected = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)][turn // 2 % 2]
            timer = threading.Timer(moment, press, [sent])
            try:
                timer.start()
                ways[number % len(ways)]()
                raise RuntimeError(f"way {number % len(ways)} ended by itself")
            except expected:
                handled.append(time.monotonic() - pressed)
            timer.join()
        print(json.dumps(handled))
    """
    handled = told_by(script, photos, SIGINTS, within_s=120 + 2 * SIGINTS)
    assert len(handled) == SIGINTS
    for way, situation in enumerate(SITUATIONS):
        times = handled[way :: len(SITUATIONS)]
        # Other programs may keep this machine busy for a moment.
        assert not times or statistics.median(times) < 0.1, (situation, sorted(times)[-10:])
