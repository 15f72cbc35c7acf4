"""The programs in examples/python run and print what they document."""

import ast
import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy
import pytest
from conftest import write_png
from spdl_rs.io.utils import get_ffmpeg_versions

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"
# Each takes less than a minute on an idle machine.
SECONDS = 240
# The packages that each requires besides NumPy.
PROGRAMS = {
    "captions_and_boxes": [],
    "finetune_from_shards": ["jax"],
    "image_batches": [],
    "imagenet_jax": ["jax"],
    "imagenet_pytorch": ["torch"],
    "migrate_from_torch_dataloader": ["torch", "PIL"],
    "migrate_from_upstream": ["PIL"],
    "tune_settings": [],
}
# Programs that need no images.
WITHOUT_IMAGES = {
    "compare_arenas": [],
    "decode_on_device": [],
    "media_loaders": [],
    "pipeline_from_yaml": ["hydra"],
    "simulate_pipeline": [],
    "starved_training": [],
    "text_sequences": [],
    "video_clips": [],
}
NAMES = {"hydra": "Hydra", "jax": "JAX", "torch": "PyTorch", "PIL": "pillow", "matplotlib": "matplotlib"}
CLASSES = 10

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples/python does not exist"),
]


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of class folders: `SPDL_TEST_IMAGES`, or generated images of one colour per class."""
    given = os.environ.get("SPDL_TEST_IMAGES")
    if given:
        return pathlib.Path(given)
    folder = tmp_path_factory.mktemp("demo") / "images"
    random = numpy.random.default_rng(0)
    for label in range(CLASSES):
        colour = random.integers(0, 200, 3)
        for number in range(20):
            noise = random.integers(0, 50, (90, 100, 3))
            path = folder / f"class_{label:02}" / f"{label + CLASSES * number:06}.png"
            write_png(str(path), (colour + noise).astype(numpy.uint8))
    return folder


@pytest.fixture
def target(tmp_path, images):
    """A target folder with the layout of `cargo xtask demo`."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "data-0").symlink_to(images, target_is_directory=True)
    return tmp_path


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{NAMES[module]} is not installed")


def call(target, words, **variables):
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "MPLBACKEND": "agg", **variables}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment,
        cwd=target,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def run(target, name, *words, by=()):
    """The standard output of an example."""
    need(*(PROGRAMS | WITHOUT_IMAGES)[name])
    done = call(target, [*by, EXAMPLES / f"{name}.py", *words])
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed):
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]


def assert_trains(printed, epochs=3):
    """Checks that the loss falls, and that rate, waiting time and diagnosis are printed."""
    found = losses(printed)
    assert len(found) == epochs and found[-1] < found[0]
    assert re.search(r"[1-9][\d,]* images/s, \d+% of the time waited for data", printed)
    # The last line is the diagnosis.
    assert printed.splitlines()[-1].endswith((".", ")")), printed


def right(printed):
    return [int(share) for share in re.findall(r"(\d+)% accuracy on held-out images", printed)]


def test_every_program_is_tested():
    texts = {path.stem: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")}
    programs = {name for name, text in texts.items() if "__main__" in text}
    # One is tested in another module.
    assert (PROGRAMS | WITHOUT_IMAGES).keys() == programs - {"export_statistics"}
    assert (pathlib.Path(__file__).parent / "test_export_statistics.py").exists()


@pytest.mark.parametrize("name", PROGRAMS | WITHOUT_IMAGES)
def test_u05_help_shows_the_command_and_requirements(name, target):
    printed = run(target, name, "--help")
    assert f"python examples/python/{name}.py" in printed and "Requires" in printed


@pytest.mark.parametrize("name", PROGRAMS)
def test_u05_without_data_an_example_fails_with_advice(name, tmp_path):
    need(*PROGRAMS[name])
    done = call(tmp_path, [EXAMPLES / f"{name}.py"])
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("no data set found: pass a folder of images")


@pytest.mark.parametrize("name", ["imagenet_jax", "imagenet_pytorch"])
def test_u05_training_lowers_the_loss(name, target):
    printed = run(target, name)
    assert_trains(printed)
    assert right(printed)[-1] > 100 / CLASSES


@pytest.mark.parametrize("name", ["imagenet_jax", "imagenet_pytorch"])
def test_u05_training_and_evaluation_folders_may_be_given(name, target, images):
    printed = run(target, name, images, "--val", images, "--epochs", "1", "--size", "32")
    assert len(losses(printed)) == len(right(printed)) == 1


def test_u05_ranks_share_the_work(target, images):
    by = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = run(target, "imagenet_pytorch", "--batch-size", "16", by=by)
    assert_trains(printed)
    # A fifth of the images is held out.
    steps = len(list(images.glob("*/*"))) * 4 // 5 // (2 * 16)
    assert printed.count(f": {steps} steps, ") == 3


def test_u05_fine_tuning_loads_the_trained_weights(target):
    weights = target / "weights.npz"
    run(target, "imagenet_jax", "--epochs", "1", "--save", weights)
    trained = numpy.load(weights)
    assert [array.ndim for array in trained.values()] == [2, 4, 4, 4]
    # With zero weights, all classes are equally likely.
    numpy.savez(weights, *map(numpy.zeros_like, trained.values()))
    words = ["--classes", "20", "--epochs", "1", "--learning-rate", "0"]
    assert losses(run(target, "finetune_from_shards", *words, "--weights", weights)) == [2.9957]
    assert losses(run(target, "finetune_from_shards", *words)) != [2.9957]


def test_u05_an_interrupted_run_resumes_to_the_same_loss(target):
    def words(name):
        return ["--checkpoint", target / name, "--save-every", "2", "--epochs", "2"]

    whole = run(target, "finetune_from_shards", *words("whole"))
    broken_off = run(target, "finetune_from_shards", *words("part"), "--stop-after", "3")
    rest = run(target, "finetune_from_shards", *words("part"))
    assert losses(broken_off) == [] and "resuming in epoch 0 after step 2\n" in rest
    # The second epochs are equal; of the first, only the resumed part is printed.
    assert losses(rest)[1] == losses(whole)[1] and losses(rest)[0] != losses(whole)[0]
    # A complete run has nothing left to do.
    assert losses(run(target, "finetune_from_shards", *words("part"))) == []


def test_u05_migrated_loaders_equal_the_pytorch_loader(target):
    printed = run(target, "migrate_from_torch_dataloader", "--workers", "2")
    assert "the same batches in the same order: True\n" in printed
    rates = re.findall(r"^(\S+) +([\d,]+) images/s$", printed, re.MULTILINE)
    names = ["torch.utils.data.DataLoader", "spdl_rs.torch.DataLoader", "spdl_rs.ImageLoader"]
    assert [name for name, _ in rates] == names


def test_u05_upstream_and_native_pipelines_deliver_all_images(target, images):
    printed = run(target, "migrate_from_upstream")
    count = len(list(images.glob("*/*")))
    reported = re.findall(r"^([a-zP ]+): (\d+) images, [\d,]+ images/s$", printed, re.MULTILINE)
    assert reported == [("Python functions", str(count)), ("native stages", str(count))]


def test_u05_samples_of_several_fields_resume_exactly(target, images):
    printed = run(target, "captions_and_boxes", "--batch-size", "16", "--size", "64")
    count = len(list(images.glob("*/*")))
    assert printed.startswith(f"{count} images in ")
    assert "image: uint8 [16, 64, 64, 3]\n" in printed
    assert re.search(r"^class_\d\d: boxes \[\[.*\]\] of classes \[\d\]$", printed, re.MULTILINE)
    assert printed.endswith("the resumed epoch has equal batches: True\n")


@pytest.mark.parametrize("words", [[], ["--train"]])
def test_u05_a_pipeline_prints_its_statistics(words, target, images):
    printed = run(target, "image_batches", *words)
    count = len(list(images.glob("*/*")))
    assert f"{count:,} images in " in printed
    assert re.search(r"labels \[(\d+, )*\d+\]$", printed, re.MULTILINE)
    for stage in ["Fetch", "DecodeImage"]:
        assert re.search(rf"{stage} +\d+ +{count} +0 +\d+% +[\d.]+ ms$", printed, re.MULTILINE)
    assert re.search(r"^waited for data: \d+% of the time$", printed, re.MULTILINE)


def test_u05_text_is_packed_into_sequences_in_an_order_of_the_seed(tmp_path):
    printed = run(tmp_path, "text_sequences", "--length", "64")
    epochs = re.findall(r"^epoch (\d): (\d+) batches, ([\d,]+) tokens, .* checksum (\w+)$", printed, re.M)
    assert [epoch[0] for epoch in epochs] == ["0", "1"] and epochs[0][3] != epochs[1][3]
    batches, tokens = int(epochs[0][1]), int(epochs[0][2].replace(",", ""))
    assert tokens > 0.95 * batches * 16 * 64
    # An interrupted run, which the next one resumes.
    words = ["--length", "64", "--state", "state.json", "--epochs"]
    again = run(tmp_path, "text_sequences", *words, "1")
    assert f"checksum {epochs[0][3]}\n" in again
    assert f"checksum {epochs[1][3]}\n" in run(tmp_path, "text_sequences", *words, "2")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("ab" * 50, encoding="utf-8")
    words = ["texts", "--length", "9", "--batch-size", "2", "--epochs", "1"]
    # 100 tokens are 10 sequences of 10.
    assert run(tmp_path, "text_sequences", *words).startswith("epoch 0: 5 batches, 90 tokens, ")


@pytest.mark.skipif(not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg")
def test_u05_clips_of_videos_have_their_frames_and_times(tmp_path):
    printed = run(tmp_path, "video_clips", "--frames", "30", "--every", "0.1s", "--size", "32")
    assert re.search(r"^2 clips in [\d.]+ s: ", printed, re.MULTILINE)
    assert "video: uint8 [2, 30, 32, 32, 3]\n" in printed
    # Both videos have 20 frames in 2 seconds.
    times = [round(0.1 * frame, 2) for frame in range(20)]
    for name in ("h264.mp4", "vp9.webm"):
        assert f"{name}: 20 frames at {times} s\n" in printed


@pytest.mark.skipif(not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg")
def test_u05_a_missing_video_is_an_error_without_a_traceback(tmp_path):
    done = call(tmp_path, [EXAMPLES / "video_clips.py", "absent.mp4"])
    assert done.returncode == 1
    assert done.stderr == 'cannot open "absent.mp4": the file or folder does not exist\n'


@pytest.mark.skipif(not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg")
def test_u05_a_video_is_decoded_on_the_cpu_without_a_device(tmp_path):
    words = ["--frames", "15", "--size", "32", "--device", "7"]
    done = call(tmp_path, [EXAMPLES / "decode_on_device.py", *words])
    assert "CudaFallbackWarning: the CPU decodes video: cannot open CUDA device 7; " in done.stderr
    rate, arrays = done.stdout.splitlines()
    assert re.fullmatch(r"CPU: 20 frames in [\d.]+ s: \d+ frames/s", rate)
    assert arrays == "arrays: [[15, 3, 32, 32], [5, 3, 32, 32]]"


@pytest.mark.skipif(not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg")
def test_u05_videos_and_recordings_are_written_and_loaded(tmp_path):
    printed = run(tmp_path, "media_loaders", "--frames", "5", "--every", "0.3s", "--seconds", "0.25")
    assert printed.startswith("3 batches of the classes class0, class1\n")
    assert printed.count("frames: uint8 [2, 5, 32, 32, 3]\n") == 3
    clips = re.findall(r"^class ([01]): frames at \[(.*)\] s$", printed, re.MULTILINE)
    assert sorted(label for label, _ in clips) == ["0"] * 3 + ["1"] * 3
    for _, text in clips:
        times = [float(time) for time in text.split(", ")]
        # The clips begin at frames of 0.1 s.
        assert numpy.allclose(numpy.diff(times), 0.3) and 0 <= times[0] <= 3 - 4 * 0.3
    lengths = "[16000, 24000, 32000]"
    assert printed.count(f"samples: float32 [3, 1, 32000], lengths {lengths}\n") == 2
    assert printed.endswith("log-mel spectrograms: [6, 80, 25]\n")


def test_u05_hydra_builds_a_pipeline_with_changed_settings(tmp_path):
    printed = run(tmp_path, "pipeline_from_yaml", "workers=3", "batch_size=4")
    assert "checksum(concurrency=3, output_order='input'" in printed
    assert printed.splitlines()[-3:] == ["[209, 583, 437, 611]", "[8, 566, 140, 346]", "[291, 709]"]


def test_u05_a_simulated_pipeline_names_its_bottleneck(tmp_path):
    stages = ["fetch:40:16", "decode:8:2", "collate:1:1"]
    printed = run(tmp_path, "simulate_pipeline", *stages, "--items", "100")
    assert re.search(r"^fetch +400 items/s at most$", printed, re.M)
    assert re.search(r"^measured +\d+ items/s, \d+% of decode$", printed, re.M)
    assert "decode" in printed.splitlines()[-1]
    printed = run(tmp_path, "simulate_pipeline", "fetch:1:4", "--step-ms", "20", "--items", "50")
    assert printed.splitlines()[-1].startswith("The consumer is the bottleneck")


# feature: A05
def test_u05_an_arena_is_faster_than_a_pipe_for_large_items(tmp_path):
    printed = run(tmp_path, "compare_arenas", "--mib", "8", "--total-mib", "400")
    mib, pipe, _, pool = map(float, printed.splitlines()[1].split())
    # docs/parallelism.md has the figures: the pool is about 6 times as fast.
    assert mib == 8 and pool > pipe > 0, printed


NOTEBOOK = EXAMPLES / "quickstart.ipynb"


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_u05_the_notebook_has_no_outputs():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells("code"))


def test_u05_the_notebook_runs(target):
    need("matplotlib")
    sources = ["".join(cell["source"]) for cell in cells("code")]
    program = target / "notebook.py"
    program.write_text("\n".join(map(as_cell, sources)), encoding="utf-8")
    done = call(target, [program], PYTHONPATH=path_with(EXAMPLES))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ImageLoader(")
    assert "HTML <div><p><b>ImageLoader(" in done.stdout and "<svg" in done.stdout
    assert "the same batch: True in epoch 5\n" in done.stdout


def as_cell(source):
    """Converts a cell so that the value of its last expression is shown, as in Jupyter."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
        tree.body[-1] = ast.parse(f"_shown = {ast.unparse(last)}").body[0]
        show = "hasattr(_shown, '_repr_html_') and print('HTML', _shown._repr_html_())"
        tree.body += ast.parse(show).body
    return ast.unparse(tree)


def path_with(folder):
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_u06_reports_of_starved_trainings_name_the_cause(tmp_path):
    printed = run(tmp_path, "starved_training", "--seconds", "3")
    reports = {report.split("\n", 1)[0]: report for report in printed.strip().split("\n\n")}
    assert 'Stage "read_object" is the bottleneck' in reports["slow-store"]
    assert "4 items that may be in flight" in reports["slow-store"]
    # The same setting neither helps nor does not help.
    assert 'more items in flight in "read_object"' not in reports["slow-store"]
    assert "The GIL is the bottleneck" in reports["gil"]
    assert "The worker threads are the bottleneck: 2 threads" in reports["few-threads"]
    assert "decode_in_python waits for the GIL for " in reports["gil"]
    for name in ("slow-store", "gil", "few-threads"):
        assert "The training is starved" in reports[name]
    assert "The training is not starved" in reports["fed"]


# A simulated `spdl tune`: threads decode on eight CPUs, reads wait for 40 ms, and the rates are noisy.
SIMULATED_TUNE = """
import json, random, statistics, sys

DEFAULTS = {"threads": 8, "decode_concurrency": None, "in_flight": None, "prefetch": None}


def rate(settings):
    threads = settings.get("threads") or DEFAULTS["threads"]
    decoding = min(threads, settings.get("decode_concurrency") or threads)
    # More threads than CPUs cost some of their time.
    decoded = 300 * min(decoding, 8) / (1 + 0.01 * max(0, threads - 8))
    read = (settings.get("in_flight") or 16) / 0.04
    grouped = 1500 * (settings.get("prefetch") or 2)
    return sum(limit**-6 for limit in (decoded, read, grouped)) ** (-1 / 6)


def main():
    noise, present = random.Random(1), dict(DEFAULTS)
    for line in sys.stdin:
        request = json.loads(line)
        response = {"ok": True, "command": request["command"]}
        if request["command"] == "describe":
            response["settings"] = [
                {"name": name, "type": "integer", "min": 1, "max": 256, "default": default, "value": present[name]}
                for name, default in DEFAULTS.items()
            ]
        elif request["command"] == "set":
            present |= request["settings"]
        else:
            rounds = [rate(present) * noise.gauss(1, 0.01) for _ in range(5)]
            q1, median, q3 = statistics.quantiles(rounds, n=4)
            response["samples_per_s"] = {"median": median, "q1": q1, "q3": q3, "rounds": rounds}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
"""


# feature: U02
def test_a_search_finds_nearly_the_best_of_a_grid(tmp_path):
    server = tmp_path / "simulated_tune.py"
    server.write_text(SIMULATED_TUNE)
    printed = run(tmp_path, "tune_settings", "photos", "--program", f"{sys.executable} {server}")
    found = ast.literal_eval(printed.strip().rsplit(" by ", 1)[1])
    simulated = {"__name__": "simulated"}
    exec(SIMULATED_TUNE, simulated)
    rate, values = simulated["rate"], [2**power for power in range(9)]
    grid = [
        {"threads": threads, "in_flight": in_flight, "prefetch": prefetch}
        for threads, in_flight, prefetch in itertools.product(values, values, values)
    ]
    best = max(map(rate, grid))
    assert rate({}) < 0.5 * best, "the defaults are slow"
    assert rate(found) >= 0.95 * best, printed


# feature: U03
def test_a_search_drives_the_tuner(target, images):
    spdl = f"{sys.executable} -m spdl_rs"
    printed = run(target, "tune_settings", images, "--program", spdl, "--seconds", "0.2")
    assert re.match(r"defaults: [1-9][\d,]* samples/s\n", printed)
    assert re.search(r"^threads \d+ -> \d+: [\d,]+ samples/s", printed, re.MULTILINE)
    assert re.search(r"^\d+ measurements; [+-]\d+% in samples/s by ", printed, re.MULTILINE)
