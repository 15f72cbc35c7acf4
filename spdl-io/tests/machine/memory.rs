//! Little available memory.

use std::fs::File;

use spdl_io::{ErrorKind, Fetcher, Key, LocalFetcher, block_on};

use crate::own_process::OwnProcess;

#[test]
fn files_larger_than_memory_are_errors() {
    let name = "memory::files_larger_than_memory_are_errors";
    // Limits the address space to 1 GiB (in KiB).
    OwnProcess::with_limit("-v 1048576").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let file = File::create(&path).unwrap();
        let fetcher = LocalFetcher::with_threads(2);
        let (mut read, mut failed_count) = (0, 0);
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
                    assert!(error.message().contains("cannot allocate"), "{error}");
                    failed_count += 1;
                }
            }
        }
        println!("{read} reads succeeded, {failed_count} failed");
        assert!(read >= 5 && failed_count >= 10, "{read} {failed_count}");
    });
}
