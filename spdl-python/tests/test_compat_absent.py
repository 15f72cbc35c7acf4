"""Errors for names that SPDL has and this package lacks: each contains advice."""

import importlib
import subprocess
import sys

import in_processes as work
import pytest
import spdl_rs
from pipelines import run, source
from spdl_rs import compat
from spdl_rs.io import _missing_names
from spdl_rs.pipeline import PipelineBuilder, PipelineFailure
from spdl_rs.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

# The public names of SPDL 0.8.
UPSTREAM = {
    "io": """
        ArrayInterface AudioCodec AudioDecoder AudioEncodeConfig AudioEncoder AudioFrames AudioPackets
        BSF CPUBuffer CPUStorage CUDAArrayInterface CUDABuffer CUDAConfig DecodeConfig Decoder
        DemuxConfig Demuxer FilterGraph ImageCodec ImageFrames ImagePackets Muxer NpzFile NvDecDecoder
        VideoCodec VideoDecoder VideoEncodeConfig VideoEncoder VideoFrames VideoPackets WAVHeader
        apply_bsf audio_encode_config convert_array convert_frames cpu_storage
        create_reference_audio_frame create_reference_video_frame cuda_config decode_config
        decode_image_nvjpeg decode_packets decode_packets_nvdec demux_audio demux_config demux_image
        demux_video encode_image get_abuffer_desc get_audio_filter_desc get_buffer_desc get_filter_desc
        get_video_filter_desc iter_tarfile load_audio load_image load_image_batch
        load_image_batch_nvjpeg load_npy load_npz load_video load_wav nv12_to_bgr nv12_to_rgb
        nvdec_decoder parse_wav sample_decode_video save_image streaming_load_video_nvdec to_jax
        to_numba to_numpy to_torch transfer_buffer transfer_buffer_cpu transfer_tensor
        transfer_tensor_d2h transfer_tensor_h2d video_encode_config
    """,
    "io.utils": """
        built_with_cuda built_with_nvcodec built_with_nvjpeg get_ffmpeg_filters get_ffmpeg_log_level
        get_ffmpeg_versions set_ffmpeg_log_level trace_counter trace_event trace_gc tracing
    """,
}
# `encode_image` fails in SPDL itself; the others are classes and functions that have another form here.
ABSENT = ["CPUStorage", "CUDABuffer", "encode_image"]


@pytest.fixture(autouse=True)
def clean():
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "spdl"]:
        del sys.modules[name]


def test_all_other_names_of_upstream_are_present():
    missing = []
    for module, names in UPSTREAM.items():
        home = importlib.import_module(f"spdl_rs.{module}")
        missing += [name for name in names.split() if name not in home.__all__]
        assert all(hasattr(home, name) for name in home.__all__)
    assert sorted(missing) == ABSENT


def test_the_missing_names_and_no_others_have_advice():
    assert sorted(_missing_names.NAMES) == ABSENT
    assert all(len(advice) > 20 for advice in _missing_names.NAMES.values())


@pytest.mark.parametrize(
    ("name", "alternatives"),
    [
        ("CPUStorage", ["cpu_storage"]),
        ("CUDABuffer", ["transfer_tensor", "transfer_buffer", "cuda.DeviceArray"]),
        ("encode_image", ["save_image", "Muxer"]),
    ],
)
def test_the_advice_names_what_this_package_has(name, alternatives):
    for alternative in alternatives:
        assert alternative in _missing_names.NAMES[name]
        assert hasattr(spdl_rs.io, alternative) or hasattr(spdl_rs.cuda, alternative.removeprefix("cuda."))


@pytest.mark.parametrize("name", ABSENT)
def test_importing_a_missing_name_is_an_error_with_advice(name):
    assert not hasattr(spdl_rs.io, name) and name not in dir(spdl_rs.io)
    advice = f"; SPDL has this name: {_missing_names.NAMES[name]}"
    with pytest.raises(AttributeError) as raised:
        getattr(spdl_rs.io, name)
    assert str(raised.value) == f"module 'spdl_rs.io' has no attribute '{name}'{advice}"
    with pytest.raises(ImportError) as raised:
        exec(f"from spdl_rs.io import {name}")
    assert str(raised.value) == f"cannot import name '{name}' from 'spdl_rs.io'{advice}"


def test_programs_that_import_spdl_get_the_advice():
    if importlib.util.find_spec("spdl") is not None:
        pytest.skip("SPDL itself is installed")
    compat.install()
    with pytest.raises(ImportError, match=r"'encode_image' .*; SPDL has this name: use save_image"):
        exec("import numpy\nfrom spdl.io import load_npy, encode_image, load_wav")
    with pytest.raises(AttributeError, match=r"'CPUStorage'; .*: cpu_storage returns pinned memory"):
        exec("import spdl.io\ndef reserve(size): return spdl.io.CPUStorage(size)\nreserve(9)", {})
    names = {}
    exec("from spdl.io import *\nfrom spdl.io.utils import *", names)
    assert names["load_wav"] is spdl_rs.io.load_wav
    assert names["load_video"] is spdl_rs.io.load_video and "encode_image" not in names


@pytest.mark.parametrize("function", [work.load_missing, work.import_missing, work.load_missing_async])
@pytest.mark.parametrize("is_region", [False, True])
def test_a_missing_name_in_a_function_ends_the_pipeline(function, is_region):
    builder = PipelineBuilder().add_source(range(9))
    if is_region:
        builder = builder.to(ProcessPoolExecutorConfig(1)).pipe(function).to(MAIN_PROCESS)
    else:
        builder = builder.pipe(function)
    with pytest.raises(PipelineFailure) as raised:
        list(builder.add_sink().build(num_threads=1))
    (error,) = raised.value.exceptions
    assert "'encode_image'" in str(error) and "; SPDL has this name: use save_image" in str(error)


def test_other_attribute_errors_are_failures_of_items():
    assert run(source(range(3)).pipe(lambda item: item.absent if item else item)) == [0]


def test_an_unknown_name_has_the_standard_error():
    with pytest.raises(AttributeError, match=r"^module 'spdl_rs.io' has no attribute 'nothing'$"):
        spdl_rs.io.nothing  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing' from 'spdl_rs.io' \("):
        exec("from spdl_rs.io import nothing")


def test_an_uncaught_import_error_ends_with_the_advice():
    program = "from spdl_rs.io import load_audio, encode_image"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1 and "; SPDL has this name: " in ran.stderr.splitlines()[-1]
