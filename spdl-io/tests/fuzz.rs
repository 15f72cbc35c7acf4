//! The fuzz targets of `spdl-io` as ordinary tests.

// promise of this file: R1

#[path = "../../fuzz/tests.rs"]
mod fuzz;
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the library of the fuzz targets, included as a module")]
mod targets;

use std::io::{Cursor, Write};

use fuzz::{files, fuzz};

/// An array of three 32-bit integers in NumPy's format, version 1.0.
fn npy_file() -> Vec<u8> {
    let mut header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }".to_vec();
    header.resize(117, b' ');
    header.push(b'\n');
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], &header, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]].concat()
}

/// A stored and a deflated array in one zip archive.
fn zip_file() -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, method) in
        [("a.npy", zip::CompressionMethod::Stored), ("b.npy", zip::CompressionMethod::Deflated)]
    {
        writer.start_file(name, options.compression_method(method)).expect("an archive in memory");
        writer.write_all(&npy_file()).expect("an archive in memory");
    }
    writer.finish().expect("an archive in memory").into_inner()
}

/// A tar archive in GNU's format, with a short and a long member name.
fn tar_file() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for name in ["a.txt".to_owned(), format!("{}/b.txt", "folder".repeat(30))] {
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_cksum();
        builder.append_data(&mut header, name, &b"hello"[..]).expect("an archive in memory");
    }
    builder.into_inner().expect("an archive in memory")
}

#[test]
fn braces_and_lists() {
    let texts = [
        "shard-{000..012}.tar",
        "ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1 2 3 4\n",
        "n01440764\nn01751748\n",
        "a/{b,c{1..3}}/{x..z}.tar",
        "a.jpg\tcat\nb.jpg\tdog\n",
        "file,label\na.jpg,0\n\"b,c.jpg\",1\n",
        "{\"file\": \"a.jpg\", \"label\": 3}\n{\"file\": \"b.jpg\", \"label\": \"dog\"}\n",
    ];
    fuzz("lists", &texts.map(|text| text.as_bytes().to_vec()), targets::lists);
}

#[test]
fn litdata_indexes_and_chunks() {
    let mut seeds = files("tests/data/litdata/plain", &["json", "bin"]);
    seeds.extend(files("tests/data/litdata/batch", &["bin"]));
    fuzz("litdata", &seeds, targets::litdata);
}

#[test]
fn lmdb_files() {
    fuzz("lmdb", &files("tests/data/lmdb/pairs", &["mdb"]), targets::lmdb);
}

#[test]
fn mds_indexes_and_shards() {
    fuzz("mds", &files("tests/data/mds/plain", &["json", "mds"]), targets::mds);
}

#[test]
fn npy_files() {
    fuzz("npy", &[npy_file(), zip_file()], targets::npy);
}

#[test]
fn parquet_files() {
    fuzz("parquet", &files("tests/data/parquet", &["parquet"]), targets::parquet);
}

#[test]
fn recordio_files() {
    fuzz("recordio", &files("tests/data/recordio", &["rec"]), targets::recordio);
}

// promise: R19
#[test]
fn tar_archives() {
    fuzz("tar", &[tar_file()], targets::tar);
}

// promise: R19
#[test]
fn tar_indexes() {
    fuzz("tar_index", &[tar_file()], targets::tar_index);
}

#[test]
fn tfrecord_files() {
    fuzz("tfrecord", &files("tests/data/tfrecord", &["tfrecord"]), targets::tfrecord);
}

#[test]
fn voc_annotations() {
    let texts = [
        "<annotation><filename>1.jpg</filename><size><width>8</width><height>9</height></size>\
         <segmented>1</segmented><object><name>dog</name><bndbox><xmin>1</xmin><ymin>2</ymin>\
         <xmax>3</xmax><ymax>4</ymax></bndbox><difficult>0</difficult></object></annotation>",
        "2008_000002\n2008_000003\n",
        "2008_000002 -1\n2008_000003  1\n",
    ];
    fuzz("voc", &texts.map(|text| text.as_bytes().to_vec()), targets::voc);
}

// promise: R19
#[test]
fn zip_shards() {
    fuzz("zip_shard", &[zip_file()], targets::zip_shard);
}

// promise: R19
#[test]
fn zip_archives() {
    fuzz("zip", &[zip_file()], targets::zip);
}
