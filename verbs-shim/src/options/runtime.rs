//! The directory where processes leave what others shall find: counters, links to the library.
//!
//! Unless told otherwise it is below `/dev/shm`, which is memory on every Linux host: writing to it never waits for a disk.
//! The name depends on the user only, not on the session, so that whoever looks finds it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

const PARENTS: [&str; 2] = ["/dev/shm", "/tmp"];
const PREFIX: &str = "srd-";

/// Makes the directory: `chosen`, or the usual one.
pub(super) fn make(chosen: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(dir) = chosen {
        return own(dir).map_err(|e| format!("cannot use the runtime directory {}: {e}", dir.display()));
    }
    let name = format!("{PREFIX}{}", geteuid());
    let mut last = String::new();
    for parent in PARENTS {
        let dir = Path::new(parent).join(&name);
        match own(&dir) {
            Ok(dir) => return Ok(dir),
            Err(e) => last = format!("cannot use the runtime directory {}: {e}", dir.display()),
        }
    }
    Err(format!("{last}; name another one with SRD_RUNTIME_DIR"))
}

/// Makes a directory if need be, and checks that it is ours.
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
    Ok(dir)
}

/// Directories where something may be found.
pub(super) fn all(chosen: Option<&Path>) -> Vec<PathBuf> {
    if let Some(dir) = chosen {
        return vec![dir.to_owned()];
    }
    let me = geteuid();
    if !me.is_root() {
        return PARENTS.map(|parent| Path::new(parent).join(format!("{PREFIX}{me}"))).to_vec();
    }
    let mut found = Vec::new();
    for parent in PARENTS {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            // Its owner is the user in its name: others' claims do not count.
            let name = entry.file_name().into_string().unwrap_or_default();
            let user = name.strip_prefix(PREFIX).and_then(|uid| uid.parse::<u32>().ok());
            let owner = fs::symlink_metadata(entry.path()).ok().filter(|m| m.is_dir()).map(|m| m.uid());
            if user.is_some() && user == owner {
                found.push(entry.path());
            }
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
}
