//! File signatures of formats that this build does not decode.

/// Why files that start like this cannot be decoded, where their format is known.
pub(super) fn why_not(head: &[u8]) -> Option<&'static str> {
    // A file of the ISO base media format starts with its kind, and with others that it may be taken
    // for: ISO/IEC 14496-12, 4.3. Of some AVIF files the first is that of HEIF, their container.
    if head.get(4..8) == Some(b"ftyp") {
        let length = head.first_chunk().map_or(0, |length| u32::from_be_bytes(*length) as usize);
        let kinds = head.get(8..length.min(head.len())).unwrap_or_default().as_chunks().0;
        let is_one_of = |names: &[&[u8; 4]]| kinds.iter().any(|kind| names.contains(&kind));
        if is_one_of(&[b"avif", b"avis"]) {
            return Some(
                "AVIF, which is not supported: decoders of AV1 are C libraries of the system, have \
                 a licence that we do not accept, or want unsafe code; convert the file to PNG, \
                 WebP or JPEG XL",
            );
        }
        let names = [b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"];
        if is_one_of(&names) {
            return Some(
                "HEIF, which is not supported: HEVC, its compression, is under patents, and its \
                 decoders are C libraries of the system; convert the file to JPEG or PNG",
            );
        }
    }
    let starts = |magic: &[u8]| head.starts_with(magic);
    if starts(b"\xFF\x0A") || starts(b"\0\0\0\x0CJXL ") {
        return Some("JPEG XL, which needs the feature `jxl` of spdl-media");
    }
    if starts(&[0x76, 0x2F, 0x31, 0x01]) {
        return Some("OpenEXR, which needs the feature `exr` of spdl-media");
    }
    if starts(b"\0\0\0\x0CjP  ") || starts(b"\xFF\x4F\xFF\x51") {
        return Some("JPEG 2000, which is not supported; convert the file to PNG or JPEG XL");
    }
    if [&b"qoif"[..], b"DDS ", b"#?RADIANCE", b"farbfeld"].into_iter().any(starts) {
        return Some("of a format that needs the feature `more-formats` of spdl-media");
    }
    None
}
