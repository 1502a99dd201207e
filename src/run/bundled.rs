//! Copies of libibverbs and libefa that programs bring along.
//!
//! Wheels for Python bring libraries of their own, renamed so that nobody else's are loaded instead: an extension module asks
//! for `libibverbs-1a2b3c4d.so.1.14.44.0` and has the directory of it built in, which counts before `LD_LIBRARY_PATH`. Those of
//! conda keep their names, but the libraries beside them look there first, too. The names are found here; what is done about them
//! is told in [`standin`](super::standin).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::elf::Elf;

/// The names that programs ask for.
pub(super) const NAMES: [&str; 2] = ["libibverbs.so.1", "libefa.so.1"];
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

/// Names of copies that a program may ask for: it itself, or modules that are installed where it looks, or where
/// a Python that it starts does. `command` is what was asked for, `program` what the kernel runs for that: its
/// interpreter, if it is a script.
pub(super) fn names(elf: &Elf, command: &Path, program: &Path) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = elf.needed.iter().filter(|n| is_renamed(n)).cloned().collect();
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let is_python = |p: &&Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python"));
    let pythons = [command, program].into_iter().filter(is_python);
    let prefixes: BTreeSet<PathBuf> = active.chain(pythons.flat_map(prefixes)).collect();
    let libs = prefixes.iter().flat_map(|p| [p.join("lib"), p.join("local/lib")]);
    for dir in libs.flat_map(|lib| library_dirs(&lib)) {
        let names = list(&dir).filter_map(|p| p.file_name()?.to_str().map(str::to_owned));
        found.extend(names.filter(|n| is_renamed(n)));
    }
    if let Some(conda) = std::env::var_os("CONDA_PREFIX") {
        found.extend(those_in(&Path::new(&conda).join("lib")));
    }
    found
}

/// The names under which a directory has them.
pub(super) fn those_in(dir: &Path) -> impl Iterator<Item = String> {
    NAMES.into_iter().filter(|name| dir.join(name).exists()).map(str::to_owned)
}

/// What to know if LD_PRELOAD names another library than `ours`: that one counts before all that are found.
pub(super) fn in_advance(ours: &Path) -> Option<String> {
    let list = std::env::var_os("LD_PRELOAD")?;
    let paths = list.as_bytes().split(|c| b": ".contains(c)).map(|path| Path::new(OsStr::from_bytes(path)));
    let is_other = |path: &&Path| fs::canonicalize(path).is_ok_and(|real| real != ours);
    let mut rivals = paths.filter(|path| NAMES.iter().any(|name| path.ends_with(name))).filter(is_other);
    rivals.next().map(|path| {
        format!("{} is loaded in advance, and used instead of the library; take it out of LD_PRELOAD", path.display())
    })
}

/// Where modules of a Python are: in its own environment, and in that of the user.
fn prefixes(python: &Path) -> BTreeSet<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    // The interpreter of an environment is a link to another one's, whose modules may count, too.
    let real = fs::canonicalize(python).ok();
    let prefix = |p: &Path| p.parent().and_then(Path::parent).map(Path::to_owned);
    let mut found: BTreeSet<PathBuf> =
        [Some(python), real.as_deref()].into_iter().flatten().filter_map(prefix).collect();
    // That of pyenv is a script, which chooses one of these.
    let versions: Vec<PathBuf> = found.iter().flat_map(|p| list(&p.join("versions")).collect::<Vec<_>>()).collect();
    found.extend(versions.into_iter().chain(home));
    found
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
        // Also if the command is a script that looks for one, as that of pyenv.
        let [python, bash] = ["bin/python3", "bin/bash"].map(|name| dir.path().join(name));
        let versions = dir.path().join("pyenv/versions");
        fs::create_dir_all(&versions).expect("create");
        std::os::unix::fs::symlink(dir.path(), versions.join("3.11.9")).expect("link");
        let shim = dir.path().join("pyenv/shims/python3");
        for (command, program) in [(&python, &python), (&shim, &bash)] {
            let found = names(&Elf::default(), command, program);
            let ours: Vec<_> =
                found.iter().filter(|n| n.contains("1a2b") || n.contains("3c4d") || n.contains("5e6f")).collect();
            assert_eq!(ours, ["libefa-3c4d.so.1", "libibverbs-1a2b.so.1"], "{command:?}");
        }
        assert!(!names(&Elf::default(), &bash, &bash).contains("libefa-3c4d.so.1"));
    }
}
