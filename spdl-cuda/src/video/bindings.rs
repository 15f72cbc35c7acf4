//! Declarations of `cuviddec.h` and `nvcuvid.h` of the Video Codec SDK 11.1. Later versions do not
//! change these fields.
//!
//! Types have the names of the headers, without their prefix. Fields that the library fills in are
//! plain numbers instead of enums, because later versions add values.

use std::ffi::{c_int, c_uint, c_ulong, c_ulonglong, c_void};

/// Codes of `cudaVideoCodec`.
pub(crate) mod codec {
    use std::ffi::c_int;

    pub(crate) const MPEG1: c_int = 0;
    pub(crate) const MPEG2: c_int = 1;
    pub(crate) const MPEG4: c_int = 2;
    pub(crate) const H264: c_int = 4;
    pub(crate) const HEVC: c_int = 8;
    pub(crate) const VP8: c_int = 9;
    pub(crate) const VP9: c_int = 10;
    pub(crate) const AV1: c_int = 11;
}

/// `CUVID_PKT_ENDOFSTREAM`: the last packet.
pub(crate) const PACKET_END_OF_STREAM: c_ulong = 1;
/// `CUVID_PKT_TIMESTAMP`: the packet has a timestamp.
pub(crate) const PACKET_TIMESTAMP: c_ulong = 2;
/// `CUVID_PKT_DISCONTINUITY`: the packet does not continue the previous one.
pub(crate) const PACKET_DISCONTINUITY: c_ulong = 4;

/// `cudaVideoCreate_PreferCUVID`: use the NVDEC engines.
pub(crate) const CREATE_PREFER_ENGINES: c_ulong = 4;
/// `cudaVideoDeinterlaceMode_Weave`: no deinterlacing.
pub(crate) const DEINTERLACE_WEAVE: c_int = 0;

/// `cuvidDecodeStatus_Error`.
pub(crate) const STATUS_ERROR: c_int = 8;
/// `cuvidDecodeStatus_Error_Concealed`.
pub(crate) const STATUS_CONCEALED: c_int = 9;

/// A rectangle in pixels; `right` and `bottom` are exclusive.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Rectangle<T> {
    pub(crate) left: T,
    pub(crate) top: T,
    pub(crate) right: T,
    pub(crate) bottom: T,
}

/// `CUVIDDECODECAPS`: query and result.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DecodeCaps {
    pub(crate) codec: c_int,
    pub(crate) chroma_format: c_int,
    pub(crate) bit_depth_minus_8: c_uint,
    pub(crate) reserved_1: [c_uint; 3],
    pub(crate) is_supported: u8,
    pub(crate) engines: u8,
    pub(crate) output_format_mask: u16,
    pub(crate) max_width: c_uint,
    pub(crate) max_height: c_uint,
    pub(crate) max_macroblocks: c_uint,
    pub(crate) min_width: u16,
    pub(crate) min_height: u16,
    pub(crate) is_histogram_supported: u8,
    pub(crate) counter_bit_depth: u8,
    pub(crate) max_histogram_bins: u16,
    pub(crate) reserved_3: [c_uint; 10],
}

/// `CUVIDDECODECREATEINFO`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DecodeCreateInfo {
    pub(crate) width: c_ulong,
    pub(crate) height: c_ulong,
    pub(crate) decode_surfaces: c_ulong,
    pub(crate) codec: c_int,
    pub(crate) chroma_format: c_int,
    pub(crate) creation_flags: c_ulong,
    pub(crate) bit_depth_minus_8: c_ulong,
    pub(crate) intra_decode_only: c_ulong,
    pub(crate) max_width: c_ulong,
    pub(crate) max_height: c_ulong,
    pub(crate) reserved_1: c_ulong,
    pub(crate) display_area: Rectangle<i16>,
    pub(crate) output_format: c_int,
    pub(crate) deinterlace_mode: c_int,
    pub(crate) target_width: c_ulong,
    pub(crate) target_height: c_ulong,
    pub(crate) output_surfaces: c_ulong,
    pub(crate) context_lock: *mut c_void,
    pub(crate) target_rectangle: Rectangle<i16>,
    pub(crate) enable_histogram: c_ulong,
    pub(crate) reserved_2: [c_ulong; 4],
}

/// The first fields of `CUVIDPICPARAMS`, which the parser fills in and the decoder reads.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PicParams {
    pub(crate) width_in_macroblocks: c_int,
    pub(crate) height_in_macroblocks: c_int,
    pub(crate) picture_index: c_int,
    pub(crate) field_picture: c_int,
    pub(crate) bottom_field: c_int,
    pub(crate) second_field: c_int,
}

/// `CUVIDPROCPARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ProcParams {
    pub(crate) progressive_frame: c_int,
    pub(crate) second_field: c_int,
    pub(crate) top_field_first: c_int,
    pub(crate) unpaired_field: c_int,
    pub(crate) reserved_flags: c_uint,
    pub(crate) reserved_zero: c_uint,
    pub(crate) raw_input_address: c_ulonglong,
    pub(crate) raw_input_pitch: c_uint,
    pub(crate) raw_input_format: c_uint,
    pub(crate) raw_output_address: c_ulonglong,
    pub(crate) raw_output_pitch: c_uint,
    pub(crate) reserved_1: c_uint,
    pub(crate) output_stream: *mut c_void,
    pub(crate) reserved: [c_uint; 46],
    pub(crate) histogram_address: *mut c_ulonglong,
    pub(crate) reserved_2: [*mut c_void; 1],
}

/// `CUVIDGETDECODESTATUS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GetDecodeStatus {
    pub(crate) status: c_int,
    pub(crate) reserved: [c_uint; 31],
    pub(crate) reserved_pointers: [*mut c_void; 8],
}

/// `CUVIDRECONFIGUREDECODERINFO`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ReconfigureDecoderInfo {
    pub(crate) width: c_uint,
    pub(crate) height: c_uint,
    pub(crate) target_width: c_uint,
    pub(crate) target_height: c_uint,
    pub(crate) decode_surfaces: c_uint,
    pub(crate) reserved_1: [c_uint; 12],
    pub(crate) display_area: Rectangle<i16>,
    pub(crate) target_rectangle: Rectangle<i16>,
    pub(crate) reserved_2: [c_uint; 11],
}

/// `CUVIDEOFORMAT`: a sequence header.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CuVideoFormat {
    pub(crate) codec: c_int,
    pub(crate) frame_rate_numerator: c_uint,
    pub(crate) frame_rate_denominator: c_uint,
    pub(crate) progressive_sequence: u8,
    pub(crate) bit_depth_luma_minus_8: u8,
    pub(crate) bit_depth_chroma_minus_8: u8,
    pub(crate) min_decode_surfaces: u8,
    pub(crate) coded_width: c_uint,
    pub(crate) coded_height: c_uint,
    pub(crate) display_area: Rectangle<c_int>,
    pub(crate) chroma_format: c_int,
    pub(crate) bit_rate: c_uint,
    pub(crate) display_aspect_ratio: [c_int; 2],
    /// Three bits of `video_format`, then one of `video_full_range_flag`.
    pub(crate) signal_flags: u8,
    pub(crate) color_primaries: u8,
    pub(crate) transfer_characteristics: u8,
    pub(crate) matrix_coefficients: u8,
    pub(crate) sequence_header_bytes: c_uint,
}

/// `CUVIDSOURCEDATAPACKET`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SourceDataPacket {
    pub(crate) flags: c_ulong,
    pub(crate) payload_size: c_ulong,
    pub(crate) payload: *const u8,
    pub(crate) timestamp: i64,
}

/// `CUVIDPARSERDISPINFO`: a picture for output.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ParserDispInfo {
    pub(crate) picture_index: c_int,
    pub(crate) progressive_frame: c_int,
    pub(crate) top_field_first: c_int,
    pub(crate) repeat_first_field: c_int,
    pub(crate) timestamp: i64,
}

/// A callback of the parser.
pub(crate) type Callback<T> = unsafe extern "system" fn(*mut c_void, *mut T) -> c_int;

/// `CUVIDPARSERPARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ParserParams {
    pub(crate) codec: c_int,
    pub(crate) max_decode_surfaces: c_uint,
    pub(crate) clock_rate: c_uint,
    pub(crate) error_threshold: c_uint,
    pub(crate) max_display_delay: c_uint,
    /// The first bit is `bAnnexb`.
    pub(crate) flags: c_uint,
    pub(crate) reserved_1: [c_uint; 4],
    pub(crate) user_data: *mut c_void,
    pub(crate) on_sequence: Option<Callback<CuVideoFormat>>,
    pub(crate) on_decode: Option<Callback<PicParams>>,
    pub(crate) on_display: Option<Callback<ParserDispInfo>>,
    pub(crate) on_operating_point: Option<Callback<c_void>>,
    pub(crate) reserved_2: [*mut c_void; 6],
    pub(crate) extended_format: *mut c_void,
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use std::fs;
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    macro_rules! layout {
        ($($name:literal $type:ty { $($c_name:literal $field:ident $offset:literal),* } $size:literal)*) => {
            /// For each structure and field: its name, its C expression, its size or offset in this
            /// file, and its size or offset in nv-codec-headers 11.1.5.2, compiled by gcc 12 on
            /// x86-64.
            fn layouts() -> Vec<(String, String, usize, usize)> {
                let mut all = Vec::new();
                $(
                    // Only the first fields of `CUVIDPICPARAMS` are declared.
                    if $name != "CUVIDPICPARAMS" {
                        let expression = format!("sizeof({})", $name);
                        all.push(($name.to_owned(), expression, size_of::<$type>(), $size));
                    }
                    $(all.push((
                        format!("{}.{}", $name, $c_name),
                        format!("offsetof({}, {})", $name, $c_name),
                        offset_of!($type, $field),
                        $offset,
                    ));)*
                )*
                all
            }
        };
    }

    layout! {
        "CUVIDDECODECAPS" DecodeCaps {
            "eCodecType" codec 0, "eChromaFormat" chroma_format 4,
            "nBitDepthMinus8" bit_depth_minus_8 8, "bIsSupported" is_supported 24,
            "nNumNVDECs" engines 25, "nOutputFormatMask" output_format_mask 26,
            "nMaxWidth" max_width 28, "nMaxHeight" max_height 32, "nMaxMBCount" max_macroblocks 36,
            "nMinWidth" min_width 40, "nMinHeight" min_height 42, "reserved3" reserved_3 48
        } 88
        "CUVIDDECODECREATEINFO" DecodeCreateInfo {
            "ulNumDecodeSurfaces" decode_surfaces 16, "CodecType" codec 24,
            "ChromaFormat" chroma_format 28, "ulCreationFlags" creation_flags 32,
            "bitDepthMinus8" bit_depth_minus_8 40, "ulMaxWidth" max_width 56,
            "ulMaxHeight" max_height 64, "display_area" display_area 80,
            "OutputFormat" output_format 88, "DeinterlaceMode" deinterlace_mode 92,
            "ulTargetWidth" target_width 96, "ulTargetHeight" target_height 104,
            "ulNumOutputSurfaces" output_surfaces 112, "vidLock" context_lock 120,
            "target_rect" target_rectangle 128, "enableHistogram" enable_histogram 136
        } 176
        "CUVIDPICPARAMS" PicParams {
            "PicWidthInMbs" width_in_macroblocks 0, "FrameHeightInMbs" height_in_macroblocks 4,
            "CurrPicIdx" picture_index 8, "field_pic_flag" field_picture 12,
            "bottom_field_flag" bottom_field 16, "second_field" second_field 20
        } 4280
        "CUVIDPROCPARAMS" ProcParams {
            "second_field" second_field 4, "top_field_first" top_field_first 8,
            "unpaired_field" unpaired_field 12, "raw_input_dptr" raw_input_address 24,
            "output_stream" output_stream 56, "Reserved" reserved 64,
            "histogram_dptr" histogram_address 248
        } 264
        "CUVIDGETDECODESTATUS" GetDecodeStatus {
            "decodeStatus" status 0, "pReserved" reserved_pointers 128
        } 192
        "CUVIDRECONFIGUREDECODERINFO" ReconfigureDecoderInfo {
            "ulHeight" height 4, "ulTargetWidth" target_width 8, "ulTargetHeight" target_height 12,
            "ulNumDecodeSurfaces" decode_surfaces 16, "display_area" display_area 68,
            "target_rect" target_rectangle 76, "reserved2" reserved_2 84
        } 128
        "CUVIDEOFORMAT" CuVideoFormat {
            "frame_rate.numerator" frame_rate_numerator 4,
            "frame_rate.denominator" frame_rate_denominator 8,
            "progressive_sequence" progressive_sequence 12,
            "bit_depth_luma_minus8" bit_depth_luma_minus_8 13,
            "min_num_decode_surfaces" min_decode_surfaces 15, "coded_width" coded_width 16,
            "coded_height" coded_height 20, "display_area" display_area 24,
            "chroma_format" chroma_format 40, "display_aspect_ratio" display_aspect_ratio 48,
            "video_signal_description" signal_flags 56,
            "video_signal_description.matrix_coefficients" matrix_coefficients 59,
            "seqhdr_data_length" sequence_header_bytes 60
        } 64
        "CUVIDSOURCEDATAPACKET" SourceDataPacket {
            "payload_size" payload_size 8, "payload" payload 16, "timestamp" timestamp 24
        } 32
        "CUVIDPARSERDISPINFO" ParserDispInfo {
            "progressive_frame" progressive_frame 4, "repeat_first_field" repeat_first_field 12,
            "timestamp" timestamp 16
        } 24
        "CUVIDPARSERPARAMS" ParserParams {
            "ulClockRate" clock_rate 8, "ulErrorThreshold" error_threshold 12,
            "ulMaxDisplayDelay" max_display_delay 16, "uReserved1" reserved_1 24,
            "pUserData" user_data 40, "pfnSequenceCallback" on_sequence 48,
            "pfnDecodePicture" on_decode 56, "pfnDisplayPicture" on_display 64,
            "pfnGetOperatingPoint" on_operating_point 72, "pExtVideoInfo" extended_format 128
        } 136
    }

    #[test]
    fn layouts_match_the_recorded_ones() {
        let layouts = layouts();
        assert!(layouts.len() > 60, "{}", layouts.len());
        for (name, _, declared, recorded) in layouts {
            assert_eq!(declared, recorded, "{name}");
        }
    }

    #[test]
    fn layouts_match_the_installed_headers() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
        let mut text = String::from(
            "#include <stdio.h>\n#include <stddef.h>\n#include <ffnvcodec/dynlink_cuda.h>\n\
             #include <ffnvcodec/dynlink_nvcuvid.h>\nint main(void) {\n",
        );
        let layouts = layouts();
        for (_, expression, ..) in &layouts {
            text += &format!("printf(\"%zu\\n\", {expression});\n");
        }
        fs::write(&source, text + "}\n").unwrap();
        let mut gcc = Command::new("gcc");
        // A folder that contains `ffnvcodec`; the compiler searches it before the system folders.
        if let Some(headers) = std::env::var_os("SPDL_NVCODEC_HEADERS") {
            gcc.arg("-I").arg(headers);
        }
        let compiled = gcc.arg("-o").arg(&program).arg(&source).output();
        let compiled = compiled.expect("gcc is installed");
        if !compiled.status.success() {
            let reason = String::from_utf8_lossy(&compiled.stderr).into_owned();
            assert!(reason.contains("ffnvcodec"), "{reason}");
            println!(
                "SKIPPED: nvcuvid headers not found: install nv-codec-headers, or set \
                 SPDL_NVCODEC_HEADERS to their folder"
            );
            return;
        }
        let output = Command::new(&program).output().unwrap();
        let numbers = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<usize> = numbers.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers.len(), layouts.len());
        for ((name, _, declared, _), installed) in layouts.iter().zip(numbers) {
            assert_eq!(*declared, installed, "{name}");
        }
    }
}
