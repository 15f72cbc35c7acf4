//! Reads arrays that NumPy writes, and damaged copies of them.

// promise of this file: DATA6

use std::fs;
use std::path::Path;

use bytes::Bytes;
use spdl_core::ErrorKind;
use spdl_core::memory::BufferPool;
use spdl_io::archive::{NpyArray, NpyHeader, NpyType};

use crate::corpus::{self, Random};

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

fn kind(header: &str, data: &[u8]) -> Option<ErrorKind> {
    NpyArray::from_bytes(file(header, data)).err().map(|error| error.kind())
}

#[test]
fn arrays_written_by_numpy_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/archive/make_arrays.py");
    let python = std::env::var("SPDL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let arguments = [script.to_str().unwrap(), folder.path().to_str().unwrap()];
    if !matches!(corpus::run(&python, &arguments, b""), Some((_, true, _))) {
        println!("SKIPPED: no Python with NumPy; set SPDL_PYTHON to one");
        return;
    }
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let values = |name: &str| -> Vec<f64> {
        let array = NpyArray::from_bytes(read(name)).unwrap();
        assert_eq!(array.shape(), [2, 3, 4], "{name}");
        let element = array.element();
        let number = |bytes: &[u8]| match (element, bytes) {
            (NpyType::Bool | NpyType::UInt(1) | NpyType::Int(1), &[byte]) => f64::from(byte),
            (NpyType::Int(2), _) => f64::from(i16::from_le_bytes(bytes.try_into().unwrap())),
            (NpyType::UInt(4), _) => f64::from(u32::from_le_bytes(bytes.try_into().unwrap())),
            (NpyType::Int(8), _) => i64::from_le_bytes(bytes.try_into().unwrap()) as f64,
            (NpyType::Float(4), _) => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            (NpyType::Float(8), _) => f64::from_le_bytes(bytes.try_into().unwrap()),
            // The real part.
            (NpyType::Complex(8), _) => {
                f64::from(f32::from_le_bytes(bytes[..4].try_into().unwrap()))
            }
            other => panic!("{other:?}"),
        };
        array.data().chunks_exact(element.size()).map(number).collect()
    };
    let counted: Vec<f64> = (0..24).map(f64::from).collect();
    let names = ["i1", "u1", "little-i2", "little-u4", "little-i8", "little-f4", "little-f8"];
    for name in names.into_iter().chain(["little-c8", "big-i2", "big-f4", "big-i8", "big-c8"]) {
        assert_eq!(values(&format!("{name}.npy")), counted, "{name}");
    }
    let truth: Vec<f64> = (0..24).map(|value| f64::from(u8::from(value > 0))).collect();
    assert_eq!(values("b1.npy"), truth);

    let pool = BufferPool::new();
    for name in ["little-f4.npy", "big-f4.npy", "fortran.npy", "version-2.npy", "version-3.npy"] {
        let array = NpyArray::from_bytes(read(name)).unwrap();
        assert_eq!(array.is_fortran_order(), name == "fortran.npy");
        let array = array.to_array(&pool).unwrap();
        let expected: Vec<f32> = (0..24).map(|value| value as f32).collect();
        assert_eq!(array.as_slice::<f32>().unwrap(), expected, "{name}");
    }
    let number = NpyArray::from_bytes(read("number.npy")).unwrap();
    assert_eq!((number.shape(), &number.data()[..]), (&[][..], &7_f32.to_le_bytes()[..]));
    let empty = NpyArray::from_bytes(read("empty.npy")).unwrap();
    assert_eq!((empty.shape(), empty.data().len()), (&[0, 5][..], 0));
    for name in ["object.npy", "records.npy", "text.npy", "time.npy"] {
        let error = NpyArray::from_bytes(read(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
    }
    let array = |name: &str| NpyArray::from_bytes(read(name)).unwrap().to_array(&pool);
    assert_eq!(array("little-f8.npy").unwrap().as_slice::<f64>().unwrap(), counted);
    let short: Vec<i16> = (0..24).collect();
    assert_eq!(array("big-i2.npy").unwrap().as_slice::<i16>().unwrap(), short);
    assert_eq!(array("little-c8.npy").unwrap_err().kind(), ErrorKind::Unsupported);

    #[cfg(feature = "zip")]
    for name in ["stored.npz", "deflated.npz"] {
        let archive = spdl_io::archive::NpzArchive::new(read(name)).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(archive.get("first").unwrap().shape(), [24]);
        assert_eq!(archive.get("second").unwrap().data(), &[0; 3][..]);
        assert_eq!(archive.get("third").unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn byte_order_and_fortran_order_are_converted() {
    let big: Vec<u8> = (0..6_i16).flat_map(i16::to_be_bytes).collect();
    let header = "{'descr': '>i2', 'fortran_order': False, 'shape': (6,), }";
    let array = NpyArray::from_bytes(file(header, &big)).unwrap();
    assert_eq!(array.data(), &(0..6_i16).flat_map(i16::to_ne_bytes).collect::<Vec<_>>());

    // Three rows of two. In Fortran order, the first column is stored first.
    let header = "{'descr': '|u1', 'fortran_order': True, 'shape': (3, 2), }";
    let array = NpyArray::from_bytes(file(header, b"abcdef")).unwrap();
    assert_eq!(array.to_array(&BufferPool::new()).unwrap().as_bytes(), b"adbecf");
}

#[test]
fn array_data_are_not_copied() {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    let bytes = Bytes::from(file(header, &[1; 8]));
    let array = NpyArray::from_bytes(bytes.clone()).unwrap();
    assert_eq!(array.data().as_ptr(), bytes[bytes.len() - 8..].as_ptr());
}

#[test]
fn a_header_is_read_without_the_elements() {
    let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (1000, 1000), }";
    let start = file(header, b"");
    // The elements cannot be read.
    let read = |range: std::ops::Range<u64>| {
        Ok(Bytes::copy_from_slice(&start[range.start as usize..range.end as usize]))
    };
    let len = start.len() as u64;
    let found = NpyHeader::read(len + 2_000_000, read).unwrap();
    assert_eq!((found.descr(), found.element()), (">i2", Some(NpyType::Int(2))));
    assert_eq!((found.is_big_endian(), found.is_fortran_order()), (true, true));
    assert_eq!((found.shape(), found.data_range()), (&[1000, 1000][..], len..len + 2_000_000));
    let error = NpyHeader::read(len + 1_999_999, read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
}

#[test]
fn non_numeric_elements_have_their_size() {
    let sizes = [("<U3", 12), ("S5", 5), ("|V7", 7), ("<M8[25us]", 8), (">m8", 8), ("<f16", 16)];
    for (descr, size) in sizes {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,)}}");
        let file = Bytes::from(file(&header, &[0; 64]));
        let read =
            |range: std::ops::Range<u64>| Ok(file.slice(range.start as usize..range.end as usize));
        let found = NpyHeader::read(file.len() as u64, read).unwrap();
        let range = found.data_range();
        assert_eq!((found.descr(), range.end - range.start), (descr, 2 * size));
        assert_eq!(found.element(), None);
    }
    for descr in ["<U0", "S", "<M8[s", "<M8[)]", "<M4[s]", "U-1", "S99999999999999999999"] {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,)}}");
        assert_eq!(kind(&header, &[0; 64]), Some(ErrorKind::Unsupported), "{descr}");
    }
}

#[test]
fn concatenated_arrays_are_read_in_sequence() {
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
    let both = [file(header, b"abc"), file(header, b"def")].concat();
    let mut rest = Bytes::from(both.clone());
    assert_eq!(NpyArray::take(&mut rest).unwrap().data(), "abc");
    assert_eq!(NpyArray::take(&mut rest).unwrap().data(), "def");
    assert!(rest.is_empty());
    let error = NpyArray::from_bytes(both).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

// promise: R20
#[test]
fn headers_are_parsed_and_never_executed() {
    let good = [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}",
        "{\"shape\":(3L,),\"fortran_order\":True,\"descr\":\"u1\"}  \n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1, 1,), }",
    ];
    for header in good {
        assert_eq!(kind(header, b"abc"), None, "{header}");
    }
    let corrupt = [
        "",
        "{}",
        "{'descr': '|u1', 'fortran_order': False}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3)} x",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1+2,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), 'shape': (3,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), 'other': 1}",
        "{'descr': '|\\x75', 'fortran_order': False, 'shape': (3,)}",
        "__import__('os')",
    ];
    for header in corrupt {
        assert_eq!(kind(header, b"abc"), Some(ErrorKind::Corrupt), "{header}");
    }
    let shape =
        |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
    assert_eq!(kind(&shape("(2,)"), &[0; 7]), Some(ErrorKind::Truncated));
    assert_eq!(kind(&shape("(2,)"), &[0; 9]), Some(ErrorKind::Corrupt));
    // A shape whose size overflows, and one whose size is 0.
    assert_eq!(kind(&shape("(9999999999, 9999999999)"), b""), Some(ErrorKind::Truncated));
    assert_eq!(kind(&shape("(9999999999, 9999999999, 0)"), b""), None);
    let deep = format!("({})", "1,".repeat(65));
    assert_eq!(kind(&shape(&deep), &[0; 4]), Some(ErrorKind::LimitExceeded));
    let of = |descr: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}");
    let error = NpyArray::from_bytes(file(&of("'|O'"), &[0; 16])).unwrap_err();
    assert!(error.message().contains("executes code"), "{error}");
    for descr in ["'|O'", "'O8'", "[('a', '<f4')]", "'<U3'", "'<f16'", "'<M8[D]'", "'|V4'", "''"] {
        assert_eq!(kind(&of(descr), &[0; 16]), Some(ErrorKind::Unsupported), "{descr}");
    }
}

#[test]
fn an_array_has_the_data_of_its_shape() {
    let array = NpyArray::new(NpyType::UInt(4), [1], vec![1, 0, 0, 0]).unwrap();
    let array = array.to_array(&BufferPool::new());
    // Unsigned 32-bit integers are no type of batches.
    assert_eq!(array.unwrap_err().kind(), ErrorKind::Unsupported);
    for (shape, data) in [(&[2, 2][..], 3), (&[2, 2], 5), (&[usize::MAX, 2], 4), (&[], 2)] {
        let made = NpyArray::new(NpyType::UInt(1), shape, vec![0; data]);
        assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidArgument, "{shape:?} {data}");
    }
    assert!(NpyArray::new(NpyType::UInt(1), [0, 5], Vec::new()).is_ok());
}

#[test]
fn truncated_arrays_are_errors_and_damage_never_panics() {
    let header = "{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3), }";
    let whole = file(header, &[5; 24]);
    for len in 0..whole.len() {
        let error = NpyArray::from_bytes(whole[..len].to_vec()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{len}: {error}");
        assert_eq!(error.offset(), Some(len as u64));
    }
    let mut random = Random(6);
    let pool = BufferPool::new();
    for _ in 0..20_000 {
        if let Ok(array) = NpyArray::from_bytes(corpus::mutant(&whole, &mut random)) {
            assert!(array.data().len() <= 24 + whole.len());
            let _ = array.to_array(&pool);
        }
    }
}
