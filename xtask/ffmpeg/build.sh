#!/usr/bin/env bash
# Builds `libspdl_av.so.1`: FFmpeg, dav1d and zlib in one shared library.
#
# Usage: build.sh FFMPEG_TARBALL DAV1D_FOLDER ZLIB_FOLDER BUILD_FOLDER JOBS
#
# Run by `cargo xtask ffmpeg`, which verifies the sources. Needs gcc, make, pkg-config, meson, ninja and, on x86, nasm.
# The results are in BUILD_FOLDER/result. If this file changes, `cargo xtask ffmpeg` builds the library again.
set -euo pipefail
tarball=$1 dav1d=$2 zlib=$3 build=$4 jobs=$5
deps=$build/deps result=$build/result
unset CFLAGS LDFLAGS CPPFLAGS PKG_CONFIG_PATH
export PKG_CONFIG_LIBDIR=$deps/lib/pkgconfig LC_ALL=C

decoders=(
    # video
    h264 hevc libdav1d vp3 theora vp6 vp6f vp8 vp9 mpeg1video mpeg2video mpegvideo mpeg4 msmpeg4v1 msmpeg4v2
    msmpeg4v3 h261 h263 h263i h263p flv vc1 wmv1 wmv2 wmv3 svq1 svq3 rv10 rv20 rv30 rv40 mjpeg mjpegb prores dnxhd
    dvvideo ffv1 ffvhuff huffyuv utvideo magicyuv lagarith qtrle rpza cinepak msvideo1 msrle
    rawvideo v210 wrapped_avframe yuv4 zlib zmbv flashsv flashsv2
    # images
    png apng gif webp bmp tiff targa pam pbm pgm ppm
    # audio
    aac aac_latm ac3 eac3 mp1 mp2 mp3 mp1float mp2float mp3float flac alac vorbis opus speex amrnb amrwb wmav1 wmav2
    wmapro ape wavpack tta cook gsm gsm_ms 'pcm_*'
    adpcm_ms adpcm_ima_wav adpcm_ima_qt adpcm_swf adpcm_yamaha adpcm_g722 adpcm_g726
)
demuxers=(
    mov matroska avi flv mpegts mpegps mpegvideo asf rm ogg mxf nut dv gif apng
    h261 h263 h264 hevc av1 obu ivf m4v mjpeg vc1 vc1t rawvideo yuv4mpegpipe
    wav w64 aiff au caf voc aac ac3 eac3 mp3 flac amr ape tta wv loas 'pcm_*'
    image2pipe image_bmp_pipe image_gif_pipe image_jpeg_pipe image_pam_pipe image_pbm_pipe
    image_pgm_pipe image_png_pipe image_ppm_pipe image_tiff_pipe image_webp_pipe
)
encoders=(
    png apng mjpeg bmp tiff gif pam pgm ppm rawvideo wrapped_avframe mpeg4 ffv1 huffyuv
    aac ac3 mp2 flac alac opus pcm_s16le pcm_s16be pcm_s24le pcm_s32le pcm_u8 pcm_f32le pcm_f64le pcm_alaw pcm_mulaw
)
# `image2` only finds the codec of an image by the extension of its file; `image2pipe` writes it.
muxers=(
    mov mp4 ipod matroska webm avi mpegts ogg opus nut ivf obu h264 hevc gif apng image2 image2pipe rawvideo
    yuv4mpegpipe wav w64 flac adts mp2 mp3 aiff caf pcm_s16le pcm_f32le null
)
filters=(
    buffer buffersink abuffer abuffersink null anull nullsrc anullsrc color testsrc testsrc2 sine
    format noformat aformat setpts asetpts settb asettb setsar setdar setrange setparams fieldorder
    scale crop pad fps framerate framestep trim atrim tpad apad select aselect loop aloop reverse areverse
    hflip vflip transpose rotate hue colorspace lut lutrgb lutyuv curves negate noise
    gblur avgblur unsharp drawbox overlay fade yadif bwdif thumbnail tile zoompan random
    split asplit concat hstack vstack xstack alphaextract alphamerge extractplanes mergeplanes
    aresample asetrate atempo volume pan amix amerge join channelmap channelsplit afade highpass lowpass bandpass
    equalizer loudnorm dynaudnorm silencedetect silenceremove astats showinfo ashowinfo showspectrumpic
)
# The others edit the headers of packets, which needs readers of all headers of each codec.
bsfs=(
    aac_adtstoasc av1_frame_merge av1_frame_split dump_extradata extract_extradata h264_mp4toannexb hevc_mp4toannexb
    mjpeg2jpeg mjpega_dump_header mpeg4_unpack_bframes null opus_metadata pcm_rechunk remove_extradata setts
    vp9_raw_reorder vp9_superframe vp9_superframe_split
)
parsers=(
    aac aac_latm ac3 amr av1 bmp cook dvaudio flac gif gsm h261 h263 h264 hevc mjpeg mpeg4video mpegaudio mpegvideo opus
    png pnm prores rv34 vc1 vorbis vp3 vp8 vp9 webp
)
list() { local IFS=,; echo "$*"; }

# C code has no exceptions: tables for unwinding would only enlarge the library.
sections="-ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables -fno-unwind-tables"

echo "zlib"
mkdir -p "$deps/include" "$deps/lib/pkgconfig" "$build/zlib"
cp "$zlib/zlib.h" "$zlib/zconf.h" "$deps/include"
(
    cd "$build/zlib"
    # shellcheck disable=SC2086
    gcc -O3 -fPIC $sections -DHAVE_UNISTD_H -D_LARGEFILE64_SOURCE=1 -c "$zlib"/*.c
    ar rcs "$deps/lib/libz.a" ./*.o
)

echo "dav1d"
meson setup "$build/dav1d" "$dav1d" --prefix="$deps" --libdir=lib --buildtype=release --default-library=static \
    -Dc_args="$sections" \
    -Db_staticpic=true -Denable_tools=false -Denable_tests=false -Dlogging=false -Dxxhash_muxer=disabled
ninja -C "$build/dav1d" -j "$jobs" install

echo "FFmpeg"
tar -xf "$tarball" -C "$build"
# Relative paths: the configure line is part of the library and of the wheel.
cd "$build"/ffmpeg-*/
./configure --prefix=../install --disable-everything --disable-autodetect --disable-programs --disable-doc \
    --disable-debug --disable-network --disable-avdevice --disable-shared --enable-static --enable-pic \
    --enable-pthreads --enable-zlib --enable-libdav1d \
    --extra-cflags="-I../deps/include $sections" --extra-ldflags=-L../deps/lib \
    --enable-decoder="$(list "${decoders[@]}")" --enable-parser="$(list "${parsers[@]}")" --enable-bsf="$(list "${bsfs[@]}")" \
    --enable-demuxer="$(list "${demuxers[@]}")" --enable-encoder="$(list "${encoders[@]}")" \
    --enable-muxer="$(list "${muxers[@]}")" --enable-filter="$(list "${filters[@]}")"
grep -q '^#define FFMPEG_LICENSE "LGPL version 2.1 or later"' config.h
make -j "$jobs" install-libs install-headers

echo "libspdl_av.so.1"
mkdir -p "$result/lib/pkgconfig"
cat >"$build/symbols.map" <<'V'
SPDL_AV_1 {
  global: av_*; avcodec_*; avfilter_*; avformat_*; avio_*; avsubtitle_*; avutil_*; swr_*; swresample_*; sws_*; swscale_*;
  local: *;
};
V
# glibc 2.35 has new versions of `hypot` and `hypotf`. With the older versions, systems with glibc 2.34 load the library.
cat >"$build/glibc.c" <<'C'
#if defined(__x86_64__)
#define OLD(name) __asm__(".symver old_" #name "," #name "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define OLD(name) __asm__(".symver old_" #name "," #name "@GLIBC_2.17")
#endif
double old_hypot(double, double);
float old_hypotf(float, float);
OLD(hypot);
OLD(hypotf);
double __wrap_hypot(double x, double y) { return old_hypot(x, y); }
float __wrap_hypotf(float x, float y) { return old_hypotf(x, y); }
C
gcc -O3 -fPIC -c -o "$build/glibc.o" "$build/glibc.c"
static=$build/install/lib
# `-z muldefs`: `framepool.o` is in libavfilter.a and in libswscale.a.
gcc -shared -s -o "$result/lib/libspdl_av.so.1" -Wl,-soname,libspdl_av.so.1 -Wl,--version-script="$build/symbols.map" \
    -Wl,-Bsymbolic -Wl,-z,muldefs -Wl,-z,defs -Wl,-z,now -Wl,-z,relro -Wl,--gc-sections \
    -Wl,--whole-archive "$static"/lib{avformat,avfilter,avcodec,swresample,swscale,avutil}.a -Wl,--no-whole-archive \
    -Wl,--wrap=hypot,--wrap=hypotf "$build/glibc.o" "$deps/lib/libdav1d.a" "$deps/lib/libz.a" -lm -lpthread
ln -sf libspdl_av.so.1 "$result/lib/libspdl_av.so"
cp -r "$build/install/include" "$result"
for library in libavcodec libavfilter libavformat libavutil libswresample libswscale; do
    version=$(sed -n 's/^Version: *//p' "$static/pkgconfig/$library.pc")
    cat >"$result/lib/pkgconfig/$library.pc" <<P
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: $library
Description: $library of FFmpeg, in libspdl_av
Version: $version
Libs: -L\${libdir} -lspdl_av
Cflags: -I\${includedir}
P
done

sed -n 's/^#define FFMPEG_CONFIGURATION "\(.*\)"$/.\/configure \1/p' config.h >"$result/configure-line.txt"
{
    echo "libspdl_av.so.1 contains FFmpeg (GNU Lesser General Public License 2.1 or later), dav1d (BSD 2-Clause) and"
    echo "zlib (zlib License). This software is based in part on the work of the Independent JPEG Group."
    text() { printf '\n\n==== %s ====\n\n' "$1" && cat "$2"; }
    text "FFmpeg: LICENSE.md" LICENSE.md
    text "FFmpeg: COPYING.LGPLv2.1" COPYING.LGPLv2.1
    text "dav1d: COPYING" "$dav1d/COPYING"
    text "zlib: LICENSE" "$zlib/LICENSE"
} >"$result/FFMPEG-LICENSE.txt"
