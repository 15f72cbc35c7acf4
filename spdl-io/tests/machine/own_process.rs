//! Runs a test in a separate process: under limits, in a mount namespace, or with a faulty C
//! library.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Set in the separate process of a test.
const TEST_PROCESS: &str = "SPDL_TEST_WITHIN";

/// How the process of a test is started.
pub(crate) struct OwnProcess {
    launcher: Vec<String>,
    variables: Vec<(String, String)>,
}

impl OwnProcess {
    /// Starts the process without changes.
    pub(crate) fn new() -> Self {
        OwnProcess { launcher: Vec::new(), variables: Vec::new() }
    }

    /// Sets a limit in the syntax of the shell's `ulimit`.
    pub(crate) fn with_limit(limit: &str) -> Self {
        let script = format!("ulimit {limit} && exec \"$@\"");
        OwnProcess::new().launched_by(&["sh", "-c", &script, "sh"])
    }

    /// Starts the process in a private mount namespace.
    pub(crate) fn with_mounts() -> Self {
        OwnProcess::new().launched_by(&["unshare", "--mount", "--map-root-user"])
    }

    /// Preloads the library `faulty_libc.c`. Prints a reason and returns `None` without a C
    /// compiler.
    pub(crate) fn with_faulty_libc() -> Option<Self> {
        if is_test_process() {
            return Some(OwnProcess::new());
        }
        let Some(library) = faulty_libc() else {
            println!("SKIPPED: no C compiler found");
            return None;
        };
        Some(OwnProcess::new().variable("LD_PRELOAD", library.to_str().unwrap()))
    }

    pub(crate) fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    fn launched_by(mut self, launcher: &[&str]) -> Self {
        self.launcher = launcher.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Runs the test `name` in a new process, in which `work` is executed. If the process cannot be
    /// started, prints the reason and returns.
    pub(crate) fn run(self, name: &str, work: impl FnOnce()) {
        if is_test_process() {
            return work();
        }
        let begin = |program: &str| {
            let mut words = self.launcher.iter().map(String::as_str).chain([program]);
            let mut command = Command::new(words.next().unwrap());
            command.args(words);
            command
        };
        match begin("true").output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                return println!("SKIPPED: {:?} fails here: {}", self.launcher, why.trim());
            }
            Err(error) => {
                return println!("SKIPPED: {:?} cannot be started: {error}", self.launcher);
            }
        }
        let program = std::env::current_exe().unwrap();
        let output = begin(program.to_str().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env(TEST_PROCESS, "1")
            .output()
            .unwrap();
        let [output_text, failed] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        // Prints the output of the test without the lines of the test harness.
        let began = format!("test {name} ... ");
        for line in output_text.lines().map(|line| line.strip_prefix(&began).unwrap_or(line)) {
            let is_count = ["running ", "test result:"].iter().any(|it| line.starts_with(it));
            if !is_count && !["", "ok"].contains(&line) {
                println!("{line}");
            }
        }
        assert!(output.status.success(), "{name}: {}\n{output_text}\n{failed}", output.status);
        assert!(output_text.contains("1 passed"), "no test has the name {name}\n{output_text}");
    }
}

/// Returns whether this is the separate process of a test.
pub(crate) fn is_test_process() -> bool {
    std::env::var_os(TEST_PROCESS).is_some()
}

fn faulty_libc() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machine/faulty_libc.c");
        let library = folder.join(format!("faulty_libc-{}.so", std::process::id()));
        let output = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o", library.to_str()?, source, "-ldl"])
            .output();
        match output {
            Ok(output) if output.status.success() => Some(library),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => None,
        }
    });
    built.as_ref()
}
