//! Files that programs expect in sysfs, in a directory of this process.
//!
//! libfabric takes a device for EFA's if its entry leads to a PCI device with a driver of that name, and looks for all of it
//! under `$SYSFS_PATH`. So that variable is set when the library is loaded, unless the user has set it.
//!
//! The directory goes with the last process that has it: the one that made it, or a child that lives longer, as daemons do. They
//! hold a lock in it, which children inherit. So each that exits can tell whether it is the last, and whoever comes next knows the
//! directories of those that were killed, and removes them. A child that has closed the descriptor of the lock makes a directory
//! of its own when it asks for devices.

use std::ffi::{CStr, CString, OsString, c_char, c_int};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use verbs_shim::cancel::NoCancel;
use verbs_shim::counters::{self, Identity};
use verbs_shim::lock::Mutex;
use verbs_shim::options;
use verbs_shim::{Gid, NicConfig, spare_standard};

use crate::abi::{export, minus_one, quiet};
use crate::errno::{EINVAL, Errno};
use crate::{config, device, fork, log};

/// The directory of this process.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    /// The same for C.
    path: CString,
    owner: u32,
    /// Until the process exits.
    lock: Mutex<Option<File>>,
}

/// What this process has. Never freed.
static TREE: AtomicPtr<Tree> = AtomicPtr::new(null_mut());

fn tree() -> Option<&'static Tree> {
    unsafe { TREE.load(Ordering::Acquire).as_ref() }
}

const VARIABLE: &str = "SYSFS_PATH";
const PREFIX: &str = "sysfs-";
const LOCK: &str = "lock";

/// Runs when the library is loaded.
extern "C" fn loaded() {
    let _whole = NoCancel::begin();
    quiet((), || {
        fork::watch();
        // A mistake in the options is reported when the program asks for devices.
        let Ok(devices) = config::devices() else { return };
        prepare(&devices);
    });
}

/// Makes the directory, once in each process that has none.
pub(crate) fn prepare(devices: &[NicConfig]) {
    /// The last generation that looked.
    static DONE: AtomicU32 = AtomicU32::new(0);
    let generation = fork::generation();
    if DONE.swap(generation, Ordering::Relaxed) != generation
        && !tree().is_some_and(Tree::is_held)
        && let Err(error) = set_up(devices)
    {
        log::error(format_args!("what libfabric looks for in sysfs cannot be made: {error}"));
    }
}

/// Makes the directory and tells the program of it.
fn set_up(devices: &[NicConfig]) -> Result<(), String> {
    let base = config::runtime_dir()?;
    let tree = Tree::make(&base, devices).map_err(|error| format!("{}: {error}", base.display()))?;
    // A parent process may have set it for itself.
    if set_by_user().is_none_or(|set| is_ours(&base, Path::new(&set))) {
        // As early as it can be: before the program could have started a thread that reads the environment, unless it loads
        // us later, which nothing can be done about.
        unsafe { std::env::set_var(VARIABLE, &tree.root) };
    }
    TREE.store(Box::into_raw(Box::new(tree)), Ordering::Release);
    Ok(())
}

/// What the variable says, if it counts: as in rdma-core, not in a process that may do what its user may not.
fn set_by_user() -> Option<OsString> {
    if options::is_set_id() { None } else { std::env::var_os(VARIABLE) }
}

/// Runs when the process exits.
extern "C" fn unloaded() {
    let _whole = NoCancel::begin();
    quiet((), || {
        device::farewell();
        if let Some(tree) = tree() {
            tree.leave();
        }
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

/// The card of a device is open, so that its address is known.
pub(crate) fn tell_gid(device: &str, gid: Gid) {
    if let Some(tree) = tree().filter(|tree| tree.owner == std::process::id()) {
        // Programs that want to know it ask the device.
        let _ = counters::write_gid(&tree.root, device, gid);
    }
}

/// Where a file of sysfs is for the program.
pub(crate) fn path(relative: &str) -> String {
    let root = tree().map_or(Path::new("/sys"), |tree| &tree.root);
    root.join(relative).to_string_lossy().into_owned()
}

/// Whether a path is where this library makes its directories, in whatever process; it may be gone.
fn is_ours(base: &Path, path: &Path) -> bool {
    path.parent() == Some(base) && path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
}

impl Tree {
    fn make(base: &Path, devices: &[NicConfig]) -> io::Result<Tree> {
        let owner = std::process::id();
        sweep(base);
        // A process id means little where namespaces share a directory.
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let root = base.join(format!("{PREFIX}{owner}-{nanos:x}"));
        let draft = base.join(format!(".{PREFIX}{owner}-{nanos:x}"));
        fs::create_dir(&draft)?;
        let made = lock(&draft.join(LOCK)).and_then(|lock| {
            for (index, device) in devices.iter().enumerate() {
                counters::write_tree(&draft, index, &Identity::from(device))?;
            }
            // Under its name it can be swept, so it must be locked by then.
            fs::rename(&draft, &root)?;
            Ok(lock)
        });
        match made {
            Ok(lock) => Ok(Tree { path: c_path(&root), root, owner, lock: Mutex::new(Some(lock)) }),
            Err(error) => {
                let _ = fs::remove_dir_all(&draft);
                Err(error)
            }
        }
    }

    /// Whether this process has it still: programs may close any descriptor, and use its number again.
    fn is_held(&self) -> bool {
        let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let lock = self.lock.lock();
        let held = lock.as_ref().and_then(|lock| lock.metadata().ok());
        held.zip(self.root.join(LOCK).metadata().ok()).is_some_and(|(held, there)| same(held, there))
    }

    /// The process is done with it.
    fn leave(&self) {
        if self.is_held() {
            drop(self.lock.lock().take());
        }
        remove_if_left(&self.root);
    }
}

/// Opens a file and locks it, or finds that another process has it locked.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .and_then(spare_standard)?;
    // SAFETY: no memory is passed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        Ok(file)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Removes directories whose owners are gone.
fn sweep(base: &Path) {
    // SAFETY: no memory is passed.
    let me = unsafe { libc::geteuid() };
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let mine = is_ours(base, &path) && path.symlink_metadata().is_ok_and(|m| m.is_dir() && m.uid() == me);
        if mine {
            remove_if_left(&path);
        }
    }
}

/// Removes a directory that no process has any more.
fn remove_if_left(root: &Path) {
    if root.join(LOCK).exists() && lock(&root.join(LOCK)).is_ok() {
        // Whoever comes next tries again.
        let _ = fs::remove_dir_all(root);
    }
}

export!(
    "IBVERBS_1.0",
    fn ibv_get_sysfs_path() -> *const c_char {
        static PATH: OnceLock<CString> = OnceLock::new();
        let set = set_by_user();
        let path = match tree() {
            Some(tree) if options::is_set_id() || set.as_ref().is_some_and(|set| tree.root == **set) => &tree.path,
            _ => PATH.get_or_init(|| c_path(set.as_deref().map_or(Path::new("/sys"), Path::new))),
        };
        path.as_ptr()
    }
);

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

export!(
    "IBVERBS_1.0",
    fn ibv_read_sysfs_file(dir: *const c_char, name: *const c_char, buf: *mut c_char, size: usize) -> c_int {
        minus_one(|| {
            if dir.is_null() || name.is_null() || buf.is_null() || size == 0 {
                return Err(EINVAL);
            }
            let part = |text| Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()));
            let path = Path::new(part(dir)).join(part(name));
            let read = fs::read(path).map_err(|error| error.raw_os_error().map_or(EINVAL, Errno))?;
            let read = read.strip_suffix(b"\n").unwrap_or(&read);
            let n = read.len().min(size - 1);
            unsafe {
                std::ptr::copy_nonoverlapping(read.as_ptr(), buf.cast::<u8>(), n);
                buf.add(n).write(0);
            }
            Ok(n as c_int)
        })
    }
);
