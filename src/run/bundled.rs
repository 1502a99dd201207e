//! Copies of libibverbs and libefa under other names.
//!
//! Wheels for Python bring libraries of their own, renamed so that nobody else's are loaded instead: an extension module asks
//! for `libibverbs-1a2b3c4d.so.1.14.44.0` and has the directory of it built in, which counts before `LD_LIBRARY_PATH`. The names
//! are found here; what is done about them is told in [`standin`](super::standin).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::elf::Elf;

/// What renamed libraries were called.
const ORIGINALS: [&str; 2] = ["libibverbs", "libefa"];
/// Directories of one kind that are looked into at most.
const MAX_DIRS: usize = 10_000;

/// Whether this is the name of a renamed copy: `libibverbs-HASH.so...`.
pub(super) fn is_renamed(name: &str) -> bool {
    ORIGINALS.iter().any(|original| {
        let rest = name.strip_prefix(original).and_then(|rest| rest.strip_prefix('-'));
        rest.and_then(|rest| rest.split_once(".so"))
            .is_some_and(|(hash, _)| !hash.is_empty() && hash.bytes().all(|b| b.is_ascii_alphanumeric()))
    })
}

/// Names of renamed copies that a program may ask for: it itself, or modules that are installed where it looks.
pub(super) fn names(elf: &Elf, program: &Path) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = elf.needed.iter().filter(|n| is_renamed(n)).cloned().collect();
    let is_python = program.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python"));
    if is_python {
        for libs in environments(program).iter().flat_map(|lib| library_dirs(lib)) {
            let names = list(&libs).filter_map(|p| p.file_name()?.to_str().map(str::to_owned));
            found.extend(names.filter(|n| is_renamed(n)));
        }
    }
    found
}

/// `lib` directories of Python environments: that of the interpreter, of the active environment, and of the user.
fn environments(python: &Path) -> Vec<PathBuf> {
    let prefix = |p: &Path| p.parent().and_then(Path::parent).map(Path::to_owned);
    let variables = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    // The interpreter of an environment is a link to another one's, whose modules may count, too.
    let real = fs::canonicalize(python).ok();
    let own = [Some(python), real.as_deref()].into_iter().flatten().filter_map(prefix);
    let all: BTreeSet<PathBuf> = own.chain(variables).chain(home).collect();
    all.into_iter().flat_map(|p| [p.join("lib"), p.join("local/lib")]).collect()
}

/// The directories of libraries that wheels brought: `python3*/site-packages/*.libs`.
fn library_dirs(lib: &Path) -> Vec<PathBuf> {
    let ends = |p: &PathBuf, end: &str| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(end));
    let pythons = list(lib).filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")));
    let packages = pythons.flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]);
    packages.flat_map(|p| list(&p).collect::<Vec<_>>()).filter(|p| ends(p, ".libs")).collect()
}

fn list(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_DIRS).map(|e| e.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_copies_are_told_from_others() {
        for name in ["libibverbs-1a2b3c4d.so.1.14.44.0", "libefa-00ff00ff.so.1", "libibverbs-abc.so"] {
            assert!(is_renamed(name), "{name}");
        }
        for name in [
            "libibverbs.so.1",
            "libefa.so.1",
            "libefa-rdmav34.txt",
            "libibverbs-.so.1",
            "libibverbs-a/b.so",
            "libc-1.so",
        ] {
            assert!(!is_renamed(name), "{name}");
        }
    }

    #[test]
    fn wheels_of_an_environment_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let libs = dir.path().join("lib/python3.11/site-packages/nixl.libs");
        fs::create_dir_all(&libs).expect("create");
        fs::create_dir_all(dir.path().join("bin")).expect("create");
        for name in ["libibverbs-1a2b.so.1", "libefa-3c4d.so.1", "libucp-5e6f.so.0"] {
            fs::write(libs.join(name), "").expect("write");
        }
        let found = names(&Elf::default(), &dir.path().join("bin/python3"));
        let ours: Vec<_> =
            found.iter().filter(|n| n.contains("1a2b") || n.contains("3c4d") || n.contains("5e6f")).collect();
        assert_eq!(ours, ["libefa-3c4d.so.1", "libibverbs-1a2b.so.1"]);
        assert!(!names(&Elf::default(), &dir.path().join("bin/perl")).contains("libefa-3c4d.so.1"));
    }
}
