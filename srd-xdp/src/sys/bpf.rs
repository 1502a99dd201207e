//! The `bpf` system call: maps, programs, links.

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// Commands, types and flags of `linux/bpf.h`.
const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const MAP_GET_NEXT_KEY: u32 = 4;
const PROG_LOAD: u32 = 5;
const PROG_GET_FD_BY_ID: u32 = 13;
const MAP_GET_FD_BY_ID: u32 = 14;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_GET_FD_BY_ID: u32 = 30;
const LINK_GET_NEXT_ID: u32 = 31;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const LINK_TYPE_XDP: u32 = 6;
/// The program knows packets of several pieces: without it, it cannot be attached where the MTU is large.
const F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Longest name of a program or map, with its final zero.
const PROG_NAME_LEN: usize = 16;
/// Most maps of a program that we look at.
const MAX_MAPS: usize = 8;

/// An instruction of the kernel's virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Insn {
    pub(crate) code: u8,
    /// Destination in the low half, source in the high one.
    pub(crate) regs: u8,
    pub(crate) off: i16,
    pub(crate) imm: i32,
}

/// Arguments of the system call: a union of structs, here as bytes.
#[repr(C, align(8))]
struct Attr([u8; 152]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 152])
    }

    fn u32(mut self, at: usize, value: u32) -> Attr {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Attr {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn ptr<T>(mut self, at: usize, value: *const T) -> Attr {
        self.0[at..at + 8].copy_from_slice(&(value as u64).to_ne_bytes());
        self
    }

    fn name(mut self, at: usize, name: &CStr) -> Attr {
        let bytes = name.to_bytes();
        let len = bytes.len().min(PROG_NAME_LEN - 1);
        self.0[at..at + len].copy_from_slice(&bytes[..len]);
        self
    }

    fn get(&self, at: usize) -> u32 {
        u32::from_ne_bytes(*self.0[at..].first_chunk().expect("offsets are constants within the struct"))
    }

    /// # Safety
    /// Every pointer in the arguments leads to memory of the length that the command reads or writes there.
    unsafe fn call(&mut self, command: u32) -> io::Result<i32> {
        // SAFETY: the struct is longer than any that the kernel knows of these commands, or zero where it is longer, which
        // the kernel accepts; the caller vouches for pointers in it.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as i32) }
    }

    /// # Safety
    /// As [`call`](Self::call), and the command returns a descriptor.
    unsafe fn open(&mut self, command: u32) -> io::Result<OwnedFd> {
        // SAFETY: the caller vouches for the pointers.
        let fd = unsafe { self.call(command) }?;
        // SAFETY: the kernel has just returned this open descriptor, so nobody else owns it.
        srd_udp::spare_standard(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Keys and values of maps: plain data without padding.
pub(crate) trait Plain: Copy {
    /// A value to be overwritten.
    const ZERO: Self;
}

impl Plain for u32 {
    const ZERO: u32 = 0;
}

impl Plain for u64 {
    const ZERO: u64 = 0;
}

impl<const N: usize> Plain for [u8; N] {
    const ZERO: [u8; N] = [0; N];
}

fn create(kind: u32, name: &CStr, key: usize, value: usize, entries: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::new().u32(0, kind).u32(4, key as u32).u32(8, value as u32).u32(12, entries).name(28, name);
    // SAFETY: the arguments contain no pointers.
    unsafe { attr.open(MAP_CREATE) }
}

fn lookup<K: Plain, V: Plain>(fd: BorrowedFd<'_>, key: &K) -> io::Result<V> {
    let mut value = V::ZERO;
    let mut attr = Attr::new().fd(0, fd).ptr(8, key).ptr(16, &raw mut value);
    // SAFETY: the map has keys and values of these types, so the kernel reads and writes as many bytes as they have.
    unsafe { attr.call(MAP_LOOKUP_ELEM) }?;
    Ok(value)
}

fn update<K: Plain, V: Plain>(fd: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    let mut attr = Attr::new().fd(0, fd).ptr(8, key).ptr(16, value);
    // SAFETY: as in `lookup`; the kernel only reads.
    unsafe { attr.call(MAP_UPDATE_ELEM) }.map(drop)
}

/// A map from keys to values.
#[derive(Debug)]
pub(crate) struct HashMap<K, V>(OwnedFd, PhantomData<fn(K) -> V>);

impl<K: Plain, V: Plain> HashMap<K, V> {
    pub(crate) fn create(name: &CStr, entries: u32) -> io::Result<Self> {
        create(MAP_TYPE_HASH, name, size_of::<K>(), size_of::<V>(), entries).map(Self::from_fd)
    }

    fn from_fd(fd: OwnedFd) -> Self {
        HashMap(fd, PhantomData)
    }

    pub(crate) fn get(&self, key: &K) -> io::Result<V> {
        lookup(self.0.as_fd(), key)
    }

    pub(crate) fn set(&self, key: &K, value: &V) -> io::Result<()> {
        update(self.0.as_fd(), key, value)
    }

    pub(crate) fn remove(&self, key: &K) -> io::Result<()> {
        let mut attr = Attr::new().fd(0, self.0.as_fd()).ptr(8, key);
        // SAFETY: as in `lookup`; the kernel only reads.
        unsafe { attr.call(MAP_DELETE_ELEM) }.map(drop)
    }

    /// The key after this one in the kernel's order; the first for `None`.
    pub(crate) fn key_after(&self, key: Option<&K>) -> io::Result<K> {
        let mut next = K::ZERO;
        let key = key.map_or(std::ptr::null(), std::ptr::from_ref);
        let mut attr = Attr::new().fd(0, self.0.as_fd()).ptr(8, key).ptr(16, &raw mut next);
        // SAFETY: as in `lookup`; a null key is permitted.
        unsafe { attr.call(MAP_GET_NEXT_KEY) }?;
        Ok(next)
    }
}

/// An array, zero at first.
#[derive(Debug)]
pub(crate) struct ArrayMap<V>(OwnedFd, PhantomData<fn() -> V>);

impl<V: Plain> ArrayMap<V> {
    pub(crate) fn create(name: &CStr, entries: u32) -> io::Result<Self> {
        create(MAP_TYPE_ARRAY, name, 4, size_of::<V>(), entries).map(Self::from_fd)
    }

    fn from_fd(fd: OwnedFd) -> Self {
        ArrayMap(fd, PhantomData)
    }

    pub(crate) fn get(&self, index: u32) -> io::Result<V> {
        lookup(self.0.as_fd(), &index)
    }

    pub(crate) fn set(&self, index: u32, value: &V) -> io::Result<()> {
        update(self.0.as_fd(), &index, value)
    }
}

/// AF_XDP sockets by queue. A socket that is closed leaves it by itself.
#[derive(Debug)]
pub(crate) struct SocketMap(OwnedFd);

impl SocketMap {
    pub(crate) fn create(name: &CStr, entries: u32) -> io::Result<Self> {
        create(MAP_TYPE_XSKMAP, name, 4, 4, entries).map(Self)
    }

    pub(crate) fn set(&self, index: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        update(self.0.as_fd(), &index, &(socket.as_raw_fd() as u32))
    }
}

macro_rules! is_map {
    ($($map:ident $(<$($arg:ident),*>)?),*) => {$(
        impl$(<$($arg: Plain),*>)? AsFd for $map$(<$($arg),*>)? {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.as_fd()
            }
        }
    )*};
}
is_map!(HashMap<K, V>, ArrayMap<V>, SocketMap);

/// A program in the kernel.
#[derive(Debug)]
pub(crate) struct Loaded(OwnedFd);

/// The verifier gives up when a signal is to be handled, be it one that only stops the process, and may be asked again.
const LOAD_ATTEMPTS: usize = 100;

/// Loads an XDP program.
///
/// # Errors
/// The kernel's answer; if the verifier objects, with the end of its log.
pub(crate) fn load(name: &CStr, code: &[Insn]) -> io::Result<Loaded> {
    let mut log = vec![0u8; 1 << 16];
    let license = c"Dual MIT/GPL";
    let attr = || {
        Attr::new()
            .u32(0, PROG_TYPE_XDP)
            .u32(4, code.len() as u32)
            .ptr(8, code.as_ptr())
            .ptr(16, license.as_ptr())
            .u32(44, F_XDP_HAS_FRAGS)
            .name(48, name)
    };
    // SAFETY: the pointers lead to `code`, with its length beside it, and to a string that ends in zero; both outlive the
    // call, and the kernel only reads them.
    let mut attempts = (0..LOAD_ATTEMPTS).map(|_| unsafe { attr().open(PROG_LOAD) });
    let is_answer = |tried: &io::Result<_>| !tried.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EAGAIN));
    let denied = match attempts.find(is_answer).unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EAGAIN))) {
        Ok(fd) => return Ok(Loaded(fd)),
        Err(e) => e,
    };
    if !matches!(denied.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) {
        return Err(denied);
    }
    let mut logged = attr().u32(24, 1).u32(28, log.len() as u32).ptr(32, log.as_mut_ptr());
    // SAFETY: as above, and the log buffer is exclusive memory of the stated length.
    if let Ok(fd) = unsafe { logged.open(PROG_LOAD) } {
        return Ok(Loaded(fd));
    }
    // Behind the zero lie remains of what the verifier took back.
    let log = log.split(|&b| b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(log);
    let tail: Vec<_> = text.lines().rev().take(3).collect();
    Err(io::Error::new(denied.kind(), format!("{denied}; the verifier says: {}", tail.join(" < "))))
}

/// Holds a program at an interface, together with whoever else has the same link open; it is detached when the last of
/// them closes it or dies.
#[derive(Debug)]
pub(crate) struct Link(#[expect(dead_code, reason = "held open")] OwnedFd);

/// Where in the kernel a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attached {
    /// In the device's driver.
    Native,
    /// After the driver, on socket buffers.
    Generic,
}

/// Attaches a program.
///
/// # Errors
/// `EBUSY` if there is one already, `EOPNOTSUPP` if the driver has no native mode.
pub(crate) fn attach(program: &Loaded, interface: u32, at: Attached) -> io::Result<Link> {
    let flags = match at {
        Attached::Native => XDP_FLAGS_DRV_MODE,
        Attached::Generic => XDP_FLAGS_SKB_MODE,
    };
    let mut attr = Attr::new().fd(0, program.0.as_fd()).u32(4, interface).u32(8, ATTACH_XDP).u32(12, flags);
    // SAFETY: the arguments contain no pointers.
    unsafe { attr.open(LINK_CREATE) }.map(Link)
}

/// What the kernel tells of an object, as bytes of a struct whose first fields are what is asked for.
fn info<const N: usize>(fd: BorrowedFd<'_>, info: &mut [u8; N]) -> io::Result<()> {
    let mut attr = Attr::new().fd(0, fd).u32(4, N as u32).ptr(8, info.as_mut_ptr());
    // SAFETY: the pointer leads to exclusive memory of the stated length. Pointers in what it holds are vouched for where
    // they are put in (`program_maps`).
    unsafe { attr.call(OBJ_GET_INFO_BY_FD) }.map(drop)
}

fn field(info: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*info[at..].first_chunk().expect("offsets are constants within the struct"))
}

fn name_in(info: &[u8], at: usize) -> String {
    let name = &info[at..at + PROG_NAME_LEN];
    String::from_utf8_lossy(name.split(|&b| b == 0).next().unwrap_or_default()).into_owned()
}

/// The link that holds the program with this id.
///
/// # Errors
/// `ENOENT` if there is none (any more); `EPERM` without `CAP_SYS_ADMIN`.
pub(crate) fn find_link(program: u32) -> io::Result<Link> {
    let mut id = 0;
    loop {
        let mut next = Attr::new().u32(0, id);
        // SAFETY: the arguments contain no pointers.
        unsafe { next.call(LINK_GET_NEXT_ID) }?;
        id = next.get(4);
        // SAFETY: the arguments contain no pointers.
        let link = match unsafe { Attr::new().u32(0, id).open(LINK_GET_FD_BY_ID) } {
            Ok(link) => link,
            // Gone between the two calls, or not yet complete.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => continue,
            Err(e) => return Err(e),
        };
        let mut about = [0; 64];
        info(link.as_fd(), &mut about)?;
        if field(&about, 0) == LINK_TYPE_XDP && field(&about, 8) == program {
            return Ok(Link(link));
        }
    }
}

/// Maps of a program by name.
pub(crate) type MapsByName = Vec<(String, FoundMap)>;

/// The name of the program with this id, and its maps.
///
/// # Errors
/// `ENOENT` if there is none (any more); `EPERM` without `CAP_SYS_ADMIN`.
pub(crate) fn program_maps(program: u32) -> io::Result<(String, MapsByName)> {
    // SAFETY: the arguments contain no pointers.
    let fd = unsafe { Attr::new().u32(0, program).open(PROG_GET_FD_BY_ID) }?;
    // `struct bpf_prog_info`: number of maps at 52, pointer to room for their ids at 56, name at 64.
    let mut about = [0u8; 128];
    let mut ids = [0u32; MAX_MAPS];
    about[52..56].copy_from_slice(&(MAX_MAPS as u32).to_ne_bytes());
    // The pointer leads to exclusive memory for as many ids as stated, which outlives the call.
    about[56..64].copy_from_slice(&(ids.as_mut_ptr() as u64).to_ne_bytes());
    info(fd.as_fd(), &mut about)?;
    let count = field(&about, 52) as usize;
    let mut maps = Vec::new();
    for &id in ids.iter().take(count) {
        // SAFETY: the arguments contain no pointers.
        let map = unsafe { Attr::new().u32(0, id).open(MAP_GET_FD_BY_ID) }?;
        // `struct bpf_map_info`: type 0, id 4, size of keys 8, of values 12, entries 16, flags 20, name 24.
        let mut about = [0u8; 80];
        info(map.as_fd(), &mut about)?;
        let shape = [0, 8, 12].map(|at| field(&about, at));
        maps.push((name_in(&about, 24), FoundMap { fd: map, shape }));
    }
    Ok((name_in(&about, 64), maps))
}

/// A map of somebody else's program.
#[derive(Debug)]
pub(crate) struct FoundMap {
    fd: OwnedFd,
    /// Type, size of keys, size of values.
    shape: [u32; 3],
}

impl FoundMap {
    fn shaped(self, shape: [u32; 3]) -> Option<OwnedFd> {
        (self.shape == shape).then_some(self.fd)
    }

    /// `None` if it is of another type.
    pub(crate) fn into_hash<K: Plain, V: Plain>(self) -> Option<HashMap<K, V>> {
        let shape = [MAP_TYPE_HASH, size_of::<K>() as u32, size_of::<V>() as u32];
        self.shaped(shape).map(HashMap::from_fd)
    }

    /// `None` if it is of another type.
    pub(crate) fn into_array<V: Plain>(self) -> Option<ArrayMap<V>> {
        self.shaped([MAP_TYPE_ARRAY, 4, size_of::<V>() as u32]).map(ArrayMap::from_fd)
    }

    /// `None` if it is of another type.
    pub(crate) fn into_sockets(self) -> Option<SocketMap> {
        self.shaped([MAP_TYPE_XSKMAP, 4, 4]).map(SocketMap)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    /// As those of timers, or of who stops the process for a moment.
    #[test]
    fn signals_do_not_keep_a_program_from_being_loaded() {
        if !testbed::runs_here() {
            return;
        }
        // SAFETY: the handler does nothing, and nobody else here uses this signal.
        unsafe { libc::signal(libc::SIGUSR1, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        // Returns XDP_PASS.
        let code = [(0xb7, 2), (0x95, 0)].map(|(code, imm)| Insn { code, regs: 0, off: 0, imm });
        let undisturbed = || {
            let began = Instant::now();
            load(c"undisturbed", &code).expect("loaded");
            began.elapsed()
        };
        // Mostly there is time for one between two signals, on however slow a machine.
        let pause = 3 * undisturbed().max(undisturbed()).max(Duration::from_micros(30));
        // SAFETY: takes nothing.
        let (me, is_over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: that thread waits for this one.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                    std::thread::sleep(pause);
                }
            });
            let failed = (0..2000).find_map(|_| load(c"signalled", &code).err());
            is_over.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }
}
