//! Little memory left.

// promise of this file: R25

use std::fs::File;

use spdl_io::{ErrorKind, Fetcher, Key, LocalFetcher, block_on};

use crate::own_process::OwnProcess;

#[test]
fn a_file_longer_than_the_memory_left_is_refused_and_the_others_are_read() {
    let name = "memory::a_file_longer_than_the_memory_left_is_refused_and_the_others_are_read";
    // Of addresses, in KiB: 1 GiB.
    OwnProcess::with_limit("-v 1048576").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let file = File::create(&path).unwrap();
        let fetcher = LocalFetcher::with_threads(2);
        let (mut read, mut refused) = (0, 0);
        for case in 0..20 {
            // From 1 MiB to 512 GiB.
            file.set_len(1 << (20 + case)).unwrap();
            match block_on(fetcher.read(&Key::from_path(&path), None)) {
                Ok(bytes) => {
                    assert_eq!(bytes.len(), 1 << (20 + case));
                    read += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
                    assert!(error.message().contains("memory"), "{error}");
                    refused += 1;
                }
            }
        }
        println!("{read} were read, {refused} were refused");
        assert!(read >= 5 && refused >= 10, "{read} {refused}");
    });
}
