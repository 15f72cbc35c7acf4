//! File signatures of formats that this build does not decode.

/// An error message for a file of a known format without a codec, by its signature.
pub(super) fn unsupported_format(head: &[u8]) -> Option<&'static str> {
    // ISO/IEC 14496-12, 4.3: the file type box lists the major brand and the compatible brands. The
    // major brand of some AVIF files is the brand of HEIF, their container.
    if head.get(4..8) == Some(b"ftyp") {
        let length = head.first_chunk().map_or(0, |length| u32::from_be_bytes(*length) as usize);
        let brands = head.get(8..length.min(head.len())).unwrap_or_default().as_chunks().0;
        let is_one_of = |names: &[&[u8; 4]]| brands.iter().any(|brand| names.contains(&brand));
        if is_one_of(&[b"avif", b"avis"]) {
            return Some(
                "AVIF is not supported: the available AV1 decoders are C libraries, have \
                 unsuitable licences, or need unsafe code; convert the file to PNG, WebP or \
                 JPEG XL",
            );
        }
        let names = [b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"];
        if is_one_of(&names) {
            return Some(
                "HEIF is not supported: its HEVC compression is patented and its decoders are \
                 C libraries; convert the file to JPEG or PNG",
            );
        }
    }
    let starts = |magic: &[u8]| head.starts_with(magic);
    if starts(b"\xFF\x0A") || starts(b"\0\0\0\x0CJXL ") {
        return Some("JPEG XL needs the cargo feature `jxl` of spdl-media");
    }
    if starts(&[0x76, 0x2F, 0x31, 0x01]) {
        return Some("OpenEXR needs the cargo feature `exr` of spdl-media");
    }
    if starts(b"\0\0\0\x0CjP  ") || starts(b"\xFF\x4F\xFF\x51") {
        return Some("JPEG 2000 is not supported; convert the file to PNG or JPEG XL");
    }
    if [&b"qoif"[..], b"DDS ", b"#?RADIANCE", b"farbfeld"].into_iter().any(starts) {
        return Some("this image format needs the cargo feature `more-formats` of spdl-media");
    }
    None
}
