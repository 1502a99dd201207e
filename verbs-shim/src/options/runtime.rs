//! The directory where processes leave what others shall find: counters, links to the library.
//!
//! Unless told otherwise it is below `/dev/shm`, which is memory on every Linux host: writing to it never waits for a disk.
//! The name depends on the user only, not on the session, so that whoever looks finds it; unless others hold that name.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess, geteuid};

const PARENTS: [&str; 2] = ["/dev/shm", "/tmp"];
const PREFIX: &str = "srd-";

/// Makes the directory: `chosen`, or the usual one.
pub(super) fn make(chosen: Option<&Path>) -> Result<PathBuf, String> {
    match chosen {
        Some(dir) => own(dir).map_err(|e| refused(dir, &e)),
        None => usual(&PARENTS.map(Path::new), geteuid().as_raw()),
    }
}

fn refused(dir: &Path, why: &str) -> String {
    format!("cannot use the runtime directory {}: {why}", dir.display())
}

/// The directory of `user` in one of `parents`. Where others hold that name, one serves whose name nobody could have
/// foreseen; it is found again by its owner.
fn usual(parents: &[&Path], user: u32) -> Result<PathBuf, String> {
    let mut last = String::new();
    for parent in parents {
        let dir = parent.join(format!("{PREFIX}{user}"));
        match own(&dir) {
            Ok(dir) => return Ok(dir),
            Err(e) => last = refused(&dir, &e),
        }
    }
    if let Some(dir) = parents.iter().flat_map(|parent| existing(parent, |of| of == user)).find(|dir| own(dir).is_ok())
    {
        return Ok(dir);
    }
    for parent in parents {
        let suffix = getrandom::u64().map_err(|e| e.to_string())?;
        if let Ok(dir) = own(&parent.join(format!("{PREFIX}{user}-{suffix:016x}"))) {
            tracing::warn!("{last}; {} serves instead, from now on", dir.display());
            return Ok(dir);
        }
    }
    Err(format!("{last}; name another one with SRD_RUNTIME_DIR"))
}

/// Makes a directory if need be, and checks that it is ours and can be written.
fn own(dir: &Path) -> Result<PathBuf, String> {
    let dir = std::path::absolute(dir).map_err(|e| e.to_string())?;
    if let Err(e) = DirBuilder::new().mode(0o700).create(&dir)
        && e.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(e.to_string());
    }
    // Not followed: nobody else may lead us somewhere.
    let found = fs::symlink_metadata(&dir).map_err(|e| e.to_string())?;
    if !found.is_dir() {
        return Err("it is no directory".to_owned());
    }
    if found.uid() != geteuid().as_raw() {
        return Err(format!("it belongs to user {}", found.uid()));
    }
    eaccess(&dir, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|e| format!("it cannot be written: {}", e.desc()))?;
    Ok(dir)
}

/// Directories where something may be found.
pub(super) fn all(chosen: Option<&Path>) -> Vec<PathBuf> {
    if let Some(dir) = chosen {
        return vec![dir.to_owned()];
    }
    let me = geteuid();
    let there =
        PARENTS.iter().flat_map(|parent| existing(Path::new(parent), |user| me.is_root() || user == me.as_raw()));
    let mut found: Vec<PathBuf> = there.collect();
    if !me.is_root() {
        // Whoever finds nothing is told where it would be.
        found.extend(PARENTS.map(|parent| Path::new(parent).join(format!("{PREFIX}{me}"))));
    }
    found.sort();
    found.dedup();
    found
}

/// Directories in `parent` of users that are `wanted`.
fn existing(parent: &Path, wanted: impl Fn(u32) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let user = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        // Its owner is the user in its name: others' claims do not count.
        let owner = fs::symlink_metadata(entry.path()).ok().filter(|m| m.is_dir()).map(|m| m.uid());
        if user.is_some_and(&wanted) && user == owner {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_only_if_it_is_ours() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("runtime");
        assert_eq!(make(Some(&dir)), Ok(dir.clone()));
        assert_eq!(make(Some(&dir)), Ok(dir.clone()));
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(make(Some(&link)).unwrap_err().contains("no directory"));
        assert!(make(Some(Path::new("/proc/nowhere/srd"))).is_err());
    }

    #[test]
    fn somebody_elses_is_refused() {
        if !geteuid().is_root() {
            eprintln!("skipped: needs root, to give a directory away");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("runtime");
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
        assert!(make(Some(&dir)).unwrap_err().contains("belongs to user 12345"));
    }

    #[test]
    fn whoever_takes_our_names_keeps_nobody_out() {
        let parents = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [first, second] = [0, 1].map(|k| parents[k].path());
        let me = geteuid().as_raw();
        let usual = || usual(&[first, second], me);
        assert_eq!(usual(), Ok(first.join(format!("srd-{me}"))));
        fs::remove_dir(usual().unwrap()).unwrap();
        // A file is as good as a directory of somebody else, and takes no root to make.
        for parent in [first, second] {
            fs::write(parent.join(format!("srd-{me}")), "").unwrap();
        }
        let dir = usual().unwrap();
        assert!(dir.starts_with(first) && fs::metadata(&dir).unwrap().mode() & 0o777 == 0o700, "{dir:?}");
        assert_eq!(usual(), Ok(dir.clone()), "it is found again");
        assert_eq!(existing(first, |user| user == me), [dir], "so do those who look for counters");
        assert!(existing(first, |user| user != me).is_empty());
    }
}
