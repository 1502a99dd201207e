//! The files of a device, which a kernel with EFA hardware has beside what the library offers.
//!
//! UCX takes no device without a character device `/dev/infiniband/uverbsN`, and others look in `/sys/class/infiniband` for
//! devices and for where these are. Only drivers can make such files for everybody. So the program gets a mount namespace of its
//! own: there `/dev` and `/sys/class` are covered by file systems in memory, to which all that was there is bound, and these
//! files are added. Who may not make mount namespaces makes a user namespace for it (user_namespaces(7)), in which users are who
//! they were.

use std::fs::{self, File, FileType};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use verbs_shim::NicConfig;
use verbs_shim::counters::{Identity, SHOWN, Values, write_counters, write_tree};

/// What shows RDMA devices, below `/dev` and `/sys/class`.
const INFINIBAND: &str = "infiniband";
const VERBS: &str = "infiniband_verbs";

/// Gives this process a view of `/dev` and `/sys/class` in which these devices are the only RDMA devices, which it hands on to
/// the program that it becomes. Must be called while there is one thread.
///
/// # Errors
/// Neither a mount namespace nor a user namespace may be made, as in most containers, or something could not be mounted.
pub(super) fn show(devices: &[NicConfig]) -> io::Result<()> {
    separate()?;
    cover(Path::new("/dev"), &[INFINIBAND])?;
    fs::create_dir("/dev/infiniband")?;
    for index in 0..devices.len() {
        symlink("/dev/null", format!("/dev/infiniband/uverbs{index}"))?;
    }
    // Where the program is started by one that has such files, those are not its own.
    cover(Path::new("/sys/class"), &[INFINIBAND, VERBS, SHOWN.trim_start_matches("/sys/class/")])?;
    for (index, device) in devices.iter().enumerate() {
        write_tree(Path::new(SHOWN), index, &Identity::from(device))?;
        write_counters(Path::new(SHOWN), &device.name, &Values::default())?;
        lead_to_real(&Path::new(SHOWN).join("class").join(INFINIBAND).join(&device.name).join("device"))?;
    }
    for class in [INFINIBAND, VERBS] {
        symlink(format!("srd/class/{class}"), Path::new("/sys/class").join(class))?;
    }
    Ok(())
}

/// A mount namespace of our own, of which nobody else sees anything.
fn separate() -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    match unshare(CloneFlags::CLONE_NEWNS) {
        Err(Errno::EPERM) => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            // Without it nobody may map groups.
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
        other => other?,
    }
    Ok(mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?)
}

/// Covers a directory by one in memory that has the same in it, but for what shall be hidden.
fn cover(dir: &Path, hidden: &[&str]) -> io::Result<()> {
    let covered = File::open(dir)?;
    let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    mount(Some("srd"), dir, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))?;
    // What is mounted on it is reached that way, too.
    let before = Path::new("/proc/self/fd").join(covered.as_raw_fd().to_string());
    for entry in entries {
        let name = entry.file_name();
        if hidden.iter().any(|hidden| name == *hidden) {
            continue;
        }
        match bind(&before.join(&name), &dir.join(&name), entry.file_type()?) {
            // It has gone meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => (),
            other => other?,
        }
    }
    Ok(())
}

/// Has at `to` what is at `from`.
fn bind(from: &Path, to: &Path, kind: FileType) -> io::Result<()> {
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
    } else {
        File::create(to)?;
    }
    Ok(mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?)
}

/// Lets the link of a device lead to the one of this machine that is in its place, if any: programs compare paths, and look for
/// cores that are near.
fn lead_to_real(link: &Path) -> io::Result<()> {
    let place = fs::read_link(link)?.file_name().map(|place| Path::new("/sys/bus/pci/devices").join(place));
    if let Some(Ok(real)) = place.map(fs::canonicalize) {
        fs::remove_file(link)?;
        symlink(real, link)?;
    }
    Ok(())
}
