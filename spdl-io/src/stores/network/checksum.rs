//! [`Checksum`]: the checksum of an object in the headers of a response, compared with its bytes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc32IsoHdlc, Crc64Nvme};
use crc_fast::{CrcAlgorithm, Digest as Crc};
use md5::{Digest, Md5};
use reqwest::header::HeaderMap;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::ContentCheck;

/// The header in which Google Cloud Storage sends checksums: `crc32c=…,md5=…`.
const GOOGLE: &str = "x-goog-hash";
/// The header of an object that Google Cloud Storage decompresses, so that its checksum differs.
const GOOGLE_STORED_ENCODING: &str = "x-goog-stored-content-encoding";

/// A checksum that the store reports, and the checksum of the bytes received.
pub(crate) struct Checksum {
    name: &'static str,
    expected: Vec<u8>,
    received: Hash,
}

enum Hash {
    /// The CRC and its length in bytes.
    Crc(Box<Crc>, usize),
    Md5(Md5),
}

impl Checksum {
    /// Returns the checksum in the headers of a response that holds a whole object. If there are
    /// several, returns one that is computed fast.
    ///
    /// `has_tls`: whether TLS protects the response. Then MD5, which takes 1.5 ms per MB, is ignored.
    /// SHA checksums, checksums of multipart uploads, and values that are not valid base64 are always
    /// ignored.
    pub(crate) fn announced(headers: &HeaderMap, has_tls: bool) -> Option<Checksum> {
        let crc = |algorithm: CrcAlgorithm, bytes| Hash::Crc(Box::new(Crc::new(algorithm)), bytes);
        let is_as_stored =
            headers.get(GOOGLE_STORED_ENCODING).is_none_or(|coding| coding == "identity");
        let google = |name: &str| {
            let lists = headers.get_all(GOOGLE).iter().filter_map(|list| list.to_str().ok());
            let mut items = lists.filter(|_| is_as_stored).flat_map(|list| list.split(','));
            items.find_map(|item| item.trim().strip_prefix(name)?.strip_prefix('='))
        };
        let header = |name: &str| headers.get(name)?.to_str().ok();
        let announced = |value: Option<&str>, name: &'static str, received: Hash| {
            let expected = BASE64_STANDARD.decode(value?.trim()).ok()?;
            (expected.len() == received.len()).then_some(Checksum { name, expected, received })
        };
        let amazon = |name: &str| header(&format!("x-amz-checksum-{name}"));
        announced(amazon("crc32c").or_else(|| google("crc32c")), "CRC-32C", crc(Crc32Iscsi, 4))
            .or_else(|| announced(amazon("crc64nvme"), "CRC-64/NVME", crc(Crc64Nvme, 8)))
            .or_else(|| announced(amazon("crc32"), "CRC-32", crc(Crc32IsoHdlc, 4)))
            .or_else(|| {
                let value = header("content-md5").or_else(|| google("md5"));
                announced(value.filter(|_| !has_tls), "MD5", Hash::Md5(Md5::new()))
            })
    }
}

impl ContentCheck for Checksum {
    fn update(&mut self, bytes: &[u8]) {
        match &mut self.received {
            Hash::Crc(crc, _) => crc.update(bytes),
            Hash::Md5(md5) => md5.update(bytes),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Checksum { name, expected, received } = *self;
        let received = received.value();
        if received == expected {
            return Ok(());
        }
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (received, expected) = (hex(&received), hex(&expected));
        let message = format!(
            "the bytes received are damaged: their {name} checksum is {received}, and the store \
             reports {expected}"
        );
        Err(Error::new(ErrorKind::Corrupt, message))
    }
}

impl Hash {
    /// The length of the value in bytes.
    fn len(&self) -> usize {
        match self {
            Hash::Crc(_, bytes) => *bytes,
            Hash::Md5(_) => <Md5 as Digest>::output_size(),
        }
    }

    /// The value in network byte order.
    fn value(self) -> Vec<u8> {
        match self {
            Hash::Crc(crc, bytes) => crc.finalize().to_be_bytes()[8 - bytes..].to_vec(),
            Hash::Md5(md5) => md5.finalize().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, value: &str, bytes: &[&[u8]]) -> Option<Result<()>> {
        let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
        let mut checksum = Box::new(Checksum::announced(&headers, false)?);
        bytes.iter().for_each(|bytes| checksum.update(bytes));
        Some(checksum.finish())
    }

    /// The check values of the CRC catalogue (reveng), and the MD5 of the same text by `md5sum`.
    const CHECK_VALUES: [(&str, &[u8]); 4] = [
        ("x-amz-checksum-crc32c", &[0xe3, 0x06, 0x92, 0x83]),
        ("x-amz-checksum-crc64nvme", &[0xae, 0x8b, 0x14, 0x86, 0x0a, 0x79, 0x98, 0x88]),
        ("x-amz-checksum-crc32", &[0xcb, 0xf4, 0x39, 0x26]),
        (
            "content-md5",
            &[
                0x25, 0xf9, 0xe7, 0x94, 0x32, 0x3b, 0x45, 0x38, 0x85, 0xf5, 0x18, 0x1f, 0x1b, 0x62,
                0x4d, 0x0b,
            ],
        ),
    ];

    #[test]
    fn checksums_in_headers_are_compared_with_the_bytes() {
        for (header, value) in CHECK_VALUES {
            let value = BASE64_STANDARD.encode(value);
            check(header, &value, &[b"1234", b"56789"]).unwrap().unwrap();
            let error = check(header, &value, &[b"1234", b"56788"]).unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{header}");
            assert!(error.message().contains("the store reports"), "{error}");
        }
        for (header, value) in CHECK_VALUES {
            let value = BASE64_STANDARD.encode(value).parse().unwrap();
            let headers = HeaderMap::from_iter([(header.parse().unwrap(), value)]);
            let is_checked = Checksum::announced(&headers, true).is_some();
            assert_eq!(is_checked, header != "content-md5", "{header}");
        }
        let (_, crc) = CHECK_VALUES[0];
        let (_, md5) = CHECK_VALUES[3];
        let (crc, md5) = (BASE64_STANDARD.encode(crc), BASE64_STANDARD.encode(md5));
        for list in
            [format!("crc32c={crc},md5=AAAA"), format!("md5={md5}"), format!("x=y, crc32c={crc}")]
        {
            check(GOOGLE, &list, &[b"123456789"]).unwrap().unwrap();
            assert!(check(GOOGLE, &list, &[b"12345678"]).unwrap().is_err());
        }
    }

    #[test]
    fn checksums_of_other_content_are_ignored() {
        let crc = BASE64_STANDARD.encode(CHECK_VALUES[0].1);
        for (name, value) in [
            // The checksum of the checksums of 3 parts.
            ("x-amz-checksum-crc32c", format!("{crc}-3")),
            ("x-amz-checksum-crc32c", "4waSgw".to_owned()),
            ("x-amz-checksum-crc64nvme", crc.clone()),
            ("x-amz-checksum-sha256", crc.clone()),
            ("content-md5", "d41d8cd98f00b204e9800998ecf8427e".to_owned()),
            (GOOGLE, "crc32c".to_owned()),
        ] {
            assert!(check(name, &value, &[b""]).is_none(), "{name}: {value}");
        }
        let headers =
            [(GOOGLE, format!("crc32c={crc}")), (GOOGLE_STORED_ENCODING, "gzip".to_owned())];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        assert!(Checksum::announced(&HeaderMap::from_iter(headers), false).is_none());
    }
}
