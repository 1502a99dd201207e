//! What the tests share: the library under the names that programs know, and C programs that use it.
#![allow(dead_code, reason = "each test uses its part")]

mod library;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A directory with the library as `libibverbs.so.1`, `libefa.so.1` and so on, and room for programs.
pub(crate) struct Bench {
    dir: TempDir,
}

/// Time that any program here may take; far more than it needs.
const PATIENCE: Duration = Duration::from_secs(900);

impl Bench {
    pub(crate) fn new() -> Bench {
        let dir = tempfile::Builder::new().prefix("srd-c-test-").tempdir().expect("a directory");
        for name in ["libibverbs.so.1", "libibverbs.so", "libefa.so.1", "libefa.so"] {
            std::os::unix::fs::symlink(library(), dir.path().join(name)).expect("a link");
        }
        Bench { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles a program from `tests/c`.
    pub(crate) fn compile(&self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
        self.compile_file(&source, name)
    }

    /// Compiles a program that was made up.
    pub(crate) fn compile_text(&self, name: &str, text: &str) -> PathBuf {
        self.compile_file(&self.source(name, text), name)
    }

    /// The same, and it finds the library without being told by its environment.
    pub(crate) fn compile_for_all(&self, name: &str, text: &str) -> PathBuf {
        self.compile_with(&[&format!("-Wl,-rpath,{}", self.path().display())], &self.source(name, text), name)
    }

    fn source(&self, name: &str, text: &str) -> PathBuf {
        let source = self.path().join(name).with_extension("c");
        std::fs::write(&source, text).expect("a file");
        source
    }

    fn compile_file(&self, source: &Path, name: &str) -> PathBuf {
        self.compile_with(&[], source, name)
    }

    fn compile_with(&self, flags: &[&str], source: &Path, name: &str) -> PathBuf {
        let program = self.path().join(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread", "-o"]);
        cc.arg(&program)
            .arg(source)
            .arg("-I")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c"))
            .arg("-L")
            .arg(self.path());
        cc.args(["-l:libibverbs.so.1", "-l:libefa.so.1", "-ldl"]).args(flags);
        let out = cc.output().expect("cc runs");
        assert!(
            out.status.success(),
            "{}\n(the headers are in Debian's package libibverbs-dev)",
            String::from_utf8_lossy(&out.stderr)
        );
        program
    }

    /// A program that gets our library instead of the system's.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path()).env_remove("SYSFS_PATH");
        // Directories that the library makes are to be seen, and go with ours.
        command.env("SRD_RUNTIME_DIR", self.path().join("run")).env("SRD_ADDR", "127.0.0.1");
        command
    }

    /// Runs a program to its end, and shows what it said if it fails.
    pub(crate) fn run(&self, command: &mut Command) -> Output {
        let out = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
        assert!(
            out.status.success(),
            "{command:?}: {}\n{}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        out
    }

    /// Directories that the library has for sysfs now.
    pub(crate) fn left(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path().join("run")) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("sysfs-")).collect()
    }
}

/// Waits for the end of a process, kills it if that takes too long, and returns what it said.
pub(crate) fn finish(child: Child) -> Output {
    let pid = child.id();
    let began = Instant::now();
    let watch = std::thread::spawn(move || child.wait_with_output().expect("its output"));
    while !watch.is_finished() {
        if began.elapsed() > PATIENCE {
            // SAFETY: no memory is passed; the process has not been waited for.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            break;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    watch.join().expect("the watch")
}

/// The library, built as this test was.
pub(crate) fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let me = std::env::current_exe().expect("a path");
        // The test is in <profile>/deps.
        library::build(me.ancestors().nth(2).expect("a directory"))
    };
    BUILT.get_or_init(build).clone()
}
