//! The library that programs get, and the directory of links through which they find it.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use verbs_shim::Options;
use verbs_shim::limit::may_write;

use super::elf::Elf;
use super::standin;
use crate::exit::{Exit, Fault, Result};

/// Its file name.
const NAME: &str = "libsrd_verbs.so";
/// What helps where it cannot be found.
const NAMED: &str = "name it with --library FILE (SRD_LIBRARY)";
/// The names under which programs ask for it: at start, and at run time (`dlopen`).
const LINKS: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "libefa.so.1", "libefa.so"];

/// Finds the library: where the options say, else beside this command.
pub(crate) fn find(options: &Options) -> Result<PathBuf> {
    let (path, advice) = match &options.library {
        Some(path) => (path.clone(), "check --library (SRD_LIBRARY)"),
        None => (beside()?, "set SRD_LIBRARY"),
    };
    let path = fs::canonicalize(&path)
        .map_err(|e| Fault::setup(format_args!("cannot find the library {}: {e}; {advice}", path.display())))?;
    match Elf::read(&path) {
        None => Err(Fault::setup(format_args!("{} is no library; {advice}", path.display()))),
        Some(elf) if !elf.native => {
            Err(Fault::setup(format_args!("{} is a library for another kind of machine; {advice}", path.display())))
        }
        Some(_) => Ok(path),
    }
}

fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe()
        .map_err(|e| Fault::setup(format_args!("cannot tell where this command is: {e}; {NAMED}")))?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(NAME), dir.join("../lib").join(NAME)];
    let found = places.iter().find(|p| p.exists());
    found.cloned().ok_or_else(|| {
        Fault::setup(format_args!(
            "cannot find {NAME} beside {} or in ../lib; './x install' brings both, or {NAMED}",
            own.display()
        ))
    })
}

/// Makes the directory of links to `library`, and stand-ins with the names `also`. It belongs to this user, and stays:
/// programs load from it as long as they run. The same library and names get the same directory.
pub(crate) fn links(options: &Options, library: &Path, also: &BTreeSet<String>) -> Result<PathBuf> {
    let runtime = options.runtime_dir().map_err(|e| Fault::new(Exit::Setup, e))?;
    if let Some(c) = runtime.to_string_lossy().chars().find(|c| ":; $".contains(*c)) {
        let dir = runtime.display();
        return Err(Fault::setup(format_args!(
            "the runtime directory {dir} cannot stand in a search path of the loader, because of the '{c}' in its name; \
             name another one with --runtime-dir (SRD_RUNTIME_DIR)"
        )));
    }
    let mut hash = DefaultHasher::new();
    (library, also).hash(&mut hash);
    let dir = runtime.join(format!("lib-{:016x}", hash.finish()));
    let versions = if also.is_empty() { Vec::new() } else { Elf::read(library).unwrap_or_default().versions };
    let made = fs::create_dir_all(&dir)
        .and_then(|()| LINKS.into_iter().try_for_each(|name| link(library, &dir.join(name))))
        .and_then(|()| also.iter().try_for_each(|name| stand_in(&dir, name, &versions)));
    made.map_err(|e| {
        let what = format!("cannot make links to the library in {}", dir.display());
        Fault::new(Exit::Setup, anyhow::Error::new(e).context(what))
    })?;
    Ok(dir)
}

/// What to load in advance, so that programs that ask for the names `also` get the library: itself, then the stand-ins.
pub(crate) fn preload(links: &Path, also: &BTreeSet<String>) -> Vec<PathBuf> {
    let stand_ins = also.iter().filter(|name| **name != LINKS[0]).map(|name| stand_in_path(links, name));
    std::iter::once(links.join(LINKS[0])).chain(stand_ins).collect()
}

fn stand_in_path(links: &Path, name: &str) -> PathBuf {
    links.join("stand-in").join(name)
}

fn stand_in(links: &Path, name: &str, versions: &[String]) -> io::Result<()> {
    may_write()?;
    let path = stand_in_path(links, name);
    fs::create_dir_all(links.join("stand-in"))?;
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, standin::build(name, versions))?;
    fs::rename(&fresh, &path)
}

/// Makes a link, also when others are doing the same.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|there| there == target) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    symlink(target, &fresh)?;
    fs::rename(&fresh, path)
}
