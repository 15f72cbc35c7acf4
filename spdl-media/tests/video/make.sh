#!/bin/sh
# Makes the files and the golden lists of tests/video_index.rs and tests/video.rs with ffmpeg and ffprobe 5.1.
# Usage: sh make.sh [lists]     "lists" leaves the files as they are.
set -eu
cd "$(dirname "$0")"

run() { ffmpeg -v error -y -fflags +bitexact "$@"; }
# 64x48 pixels, 10 frames a second.
source="-f lavfi -i testsrc=size=64x48:rate=10:duration=2"
x264="-c:v libx264 -preset veryfast -crf 35 -pix_fmt yuv420p -flags +bitexact -threads 1"
x264="$x264 -x264-params keyint=8:min-keyint=8:scenecut=0:bframes=3:b-pyramid=normal:b-adapt=0"
x265="keyint=6:min-keyint=6:scenecut=0:bframes=2:open-gop=1:pools=1:frame-threads=1:log-level=error"
exact="-bitexact -map_metadata -1"

if [ "${1:-}" != lists ]; then
    # H.264 with B-frames; moov after and before mdat.
    run $source $x264 $exact h264.mp4
    run -i h264.mp4 -c copy $exact -movflags +faststart h264_faststart.mp4
    # Fragments; an edit list and negative composition offsets.
    run -i h264.mp4 -c copy $exact -movflags +frag_keyframe+empty_moov+default_base_moof h264_fragmented.mp4
    run -i h264.mp4 -c copy $exact -movflags +frag_keyframe -frag_duration 300000 h264_fragmented_base.mp4
    run -i h264.mp4 -c copy $exact -movflags +negative_cts_offsets h264_negative_offsets.mov
    # Edit lists: frames before the start are not presented; an empty edit.
    run -ss 1.1 -i h264.mp4 -c copy $exact h264_edited.mov
    run -itsoffset 0.5 -i h264.mp4 -c copy $exact h264_delayed.mov
    # A variable frame rate.
    run $source -vf "select=not(mod(n\,3))+lt(n\,6)" -vsync vfr $x264 $exact h264_variable_rate.mp4
    # Turned by 90, 180 and 270 degrees.
    for angle in 90 180 270; do
        run -i h264.mp4 -c copy -t 0.5 $exact -metadata:s:v rotate=$angle h264_rotated_$angle.mp4
    done
    run $source $x264 $exact -pix_fmt yuv420p h264.mkv
    # No cues, sizes unknown: a live stream.
    run -i h264.mp4 -c copy $exact -f matroska -live 1 -cluster_time_limit 500 h264_live.mkv
    run $source -c:v libx265 -preset ultrafast -crf 35 -pix_fmt yuv420p -x265-params $x265 $exact -tag:v hvc1 hevc_open_gop.mp4
    run $source -c:v mpeg4 -q:v 12 -bf 2 -g 8 -flags +bitexact $exact mpeg4.mp4
    run $source -c:v mpeg2video -q:v 12 -bf 2 -g 8 -r 25 -flags +bitexact $exact mpeg2.mp4
    run $source -c:v libvpx -b:v 60k -g 8 -auto-alt-ref 1 -lag-in-frames 8 -threads 1 -flags +bitexact $exact vp8.webm
    run $source -c:v libvpx-vp9 -b:v 60k -g 8 -lag-in-frames 8 -threads 1 -flags +bitexact $exact vp9.webm
    run $source -c:v libaom-av1 -cpu-used 8 -crf 50 -b:v 0 -g 8 -threads 1 -flags +bitexact $exact av1.mp4
    # Other pixel formats, and containers without a reader of this crate: no time stamps; divided packets.
    run $source $x264 $exact -pix_fmt yuv422p h264_422.mp4
    run $source $x264 $exact -pix_fmt yuv420p10le -frames:v 3 h264_10_bit.mp4
    run -i h264_10_bit.mp4 -f rawvideo -pix_fmt yuv420p10le h264_10_bit.yuv
    # Other matrices and ranges of colours.
    run $source $x264 $exact -colorspace bt709 -frames:v 1 h264_bt709.mp4
    run $source $x264 $exact -colorspace bt709 -color_range pc -frames:v 1 h264_bt709_full.mp4
    run $source -c:v ffv1 -pix_fmt gray -frames:v 3 $exact grey.mkv
    # Frames that are not presented, in blocks of the same kind.
    for pass in 1 2; do
        run -f lavfi -i testsrc2=size=64x48:rate=30 -t 3 -c:v libvpx -b:v 60k -auto-alt-ref 1 -lag-in-frames 16 -threads 1 \
            -pass $pass -passlogfile /tmp/vp8_hidden -flags +bitexact $exact vp8_hidden.webm
    done
    run -i mpeg4.mp4 -c copy $exact mpeg4.avi
    run -i h264.mp4 -c copy $exact h264.ts
fi

# Frames: time stamp and position (that of the block in Matroska). Packets: time stamp, size, position, whether it is a key frame.
for file in *.mp4 *.mov *.mkv *.webm *.avi *.ts; do
    {
        ffprobe -v error -select_streams v:0 -show_entries frame=pts,pkt_pos -of csv "$file" |
            awk -F, '/^frame/ { print "frame\t" $2 "\t" $3 }'
        ffprobe -v error -select_streams v:0 -show_entries packet=pts,size,pos,flags -of csv "$file" |
            awk -F, '/^packet/ { print "packet\t" $2 "\t" $3 "\t" $4 "\t" (substr($5, 1, 1) == "K") }'
        # The frames that remain if FFmpeg skips those that no other frame refers to.
        ffprobe -v error -skip_frame noref -select_streams v:0 -show_entries frame=pkt_pos -of csv "$file" |
            awk -F, '/^frame/ { print "kept\t" $2 }'
        # The hashes of the planes of the frames.
        ffmpeg -v error -noautorotate -i "$file" -map 0:v:0 -vsync passthrough -f framehash -hash sha256 - |
            awk -F', *' '!/^#/ { print "hash\t" $6 }'
    } >"$file.tsv"
done
