//! The Rust program of `README.md` is the example `batches`, and runs.

use std::env::current_exe;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn the_rust_program_of_the_readme_is_an_example_and_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(folder.join("../README.md")).unwrap();
    let program = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let example = fs::read_to_string(folder.join("examples/batches.rs")).unwrap();
    let unindented: String = example
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line)))
        .collect();
    assert!(unindented.contains(program), "README.md and examples/batches.rs differ");

    // Test programs are in `deps`, examples beside that folder.
    let built = current_exe().unwrap().parent().unwrap().join("../examples/batches");
    if !built.exists() {
        println!("SKIPPED: the example `batches` is not built");
        return;
    }
    let output = Command::new(built).arg(folder.join("../assets")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("\"images\""), "{printed}");
}
