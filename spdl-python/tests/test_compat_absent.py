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
ADVICE = {"io": _missing_names.NAMES, "io.utils": _missing_names.UTILITIES}
# Excludes names that were added since.
ABSENT = [
    (module, name)
    for module, names in UPSTREAM.items()
    for name in names.split()
    if name not in importlib.import_module(f"spdl_rs.{module}").__all__
]


@pytest.fixture(autouse=True)
def clean():
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "spdl"]:
        del sys.modules[name]


def test_every_missing_name_of_upstream_has_advice():
    assert len(ABSENT) > 20
    for module, name in ABSENT:
        assert len(ADVICE[module][name]) > 20, name
    for module, advice in ADVICE.items():
        assert set(advice) <= set(UPSTREAM[module].split())


@pytest.mark.parametrize(("module", "name"), ABSENT, ids=lambda part: part)
def test_importing_a_missing_name_is_an_error_with_advice(module, name):
    home = importlib.import_module(f"spdl_rs.{module}")
    assert not hasattr(home, name) and name not in dir(home)
    with pytest.raises(AttributeError) as raised:
        getattr(home, name)
    start = f"module 'spdl_rs.{module}' has no attribute '{name}'; SPDL has this name: "
    assert str(raised.value) == start + ADVICE[module][name]
    with pytest.raises(ImportError) as raised:
        exec(f"from spdl_rs.{module} import {name}")
    start = f"cannot import name '{name}' from 'spdl_rs.{module}'; SPDL has this name: "
    assert str(raised.value) == start + ADVICE[module][name]


def test_programs_that_import_spdl_get_the_advice():
    if importlib.util.find_spec("spdl") is not None:
        pytest.skip("SPDL itself is installed")
    compat.install()
    with pytest.raises(ImportError, match=r"'load_video' .*; SPDL has this name: frames of videos"):
        exec("import numpy\nfrom spdl.io import load_npy, load_video, load_wav")
    with pytest.raises(AttributeError, match=r"'load_image'; .*DecodeImage\(size\)"):
        exec("import spdl.io\ndef load(path): return spdl.io.load_image(path)\nload('1.jpg')", {})
    names = {}
    exec("from spdl.io import *\nfrom spdl.io.utils import *", names)
    assert names["load_wav"] is spdl_rs.io.load_wav


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
    assert "'load_image_batch'" in str(error) and "; SPDL has this name: use spdl_rs" in str(error)


def test_other_attribute_errors_are_failures_of_items():
    assert run(source(range(3)).pipe(lambda item: item.absent if item else item)) == [0]


def test_an_unknown_name_has_the_standard_error():
    with pytest.raises(AttributeError, match=r"^module 'spdl_rs.io' has no attribute 'nothing'$"):
        spdl_rs.io.nothing  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing' from 'spdl_rs.io' \("):
        exec("from spdl_rs.io import nothing")


def test_an_uncaught_import_error_ends_with_the_advice():
    program = "from spdl_rs.io import transfer_buffer_cpu as absent, load_audio"
    absent = [name for _, name in ABSENT]
    if not {"load_audio", "transfer_buffer_cpu"} & set(absent):
        pytest.skip("this package has both names")
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1 and "; SPDL has this name: " in ran.stderr.splitlines()[-1]
