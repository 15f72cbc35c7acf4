//! A test in a process of its own: under limits, in a name space of its own, or with a C library that
//! fails.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Set where a test runs in its own process.
const WITHIN: &str = "SPDL_TEST_WITHIN";

/// How the process of a test is begun.
pub(crate) struct OwnProcess {
    launcher: Vec<String>,
    variables: Vec<(String, String)>,
}

impl OwnProcess {
    /// Begun as usual.
    pub(crate) fn new() -> Self {
        OwnProcess { launcher: Vec::new(), variables: Vec::new() }
    }

    /// Under a limit, as the shell's `ulimit` says it.
    pub(crate) fn with_limit(limit: &str) -> Self {
        let script = format!("ulimit {limit} && exec \"$@\"");
        OwnProcess::new().launched_by(&["sh", "-c", &script, "sh"])
    }

    /// Where file systems can be mounted that nobody else sees.
    pub(crate) fn with_mounts() -> Self {
        OwnProcess::new().launched_by(&["unshare", "--mount", "--map-root-user"])
    }

    /// With the C library of `faulty_libc.c`; `None`, with the reason said, where it cannot be built.
    pub(crate) fn with_faulty_libc() -> Option<Self> {
        if is_within() {
            return Some(OwnProcess::new());
        }
        let Some(library) = faulty_libc() else {
            println!("SKIPPED: there is no C compiler");
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

    /// Runs the test `name` anew, where `work` is done. Where such a process cannot be begun, says why
    /// and leaves it.
    pub(crate) fn run(self, name: &str, work: impl FnOnce()) {
        if is_within() {
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
                return println!("SKIPPED: {:?} cannot be run here: {error}", self.launcher);
            }
        }
        let program = std::env::current_exe().unwrap();
        let output = begin(program.to_str().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env(WITHIN, "1")
            .output()
            .unwrap();
        let [told, failed] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        // What the test said, without what the harness says: that is counted.
        let began = format!("test {name} ... ");
        for line in told.lines().map(|line| line.strip_prefix(&began).unwrap_or(line)) {
            let is_count = ["running ", "test result:"].iter().any(|it| line.starts_with(it));
            if !is_count && !["", "ok"].contains(&line) {
                println!("{line}");
            }
        }
        assert!(output.status.success(), "{name}: {}\n{told}\n{failed}", output.status);
        assert!(told.contains("1 passed"), "there is no test of this name: {name}\n{told}");
    }
}

/// Whether this is the process of one test.
pub(crate) fn is_within() -> bool {
    std::env::var_os(WITHIN).is_some()
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
