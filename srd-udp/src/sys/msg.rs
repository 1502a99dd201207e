//! Sending and receiving datagrams.
//!
//! None of the calls blocks, so none goes through the C library's wrapper: in a process with several threads that makes
//! each a cancellation point, at a price of 20 ns.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;

use super::{Control, RawAddr};

/// Most datagrams of one [`send_many`] call. `UIO_MAXIOV` would allow 1,024; the gain is flat from 32 on.
pub(crate) const MAX_MESSAGES: usize = 64;

const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Pointer to and length of the address, null for none.
fn raw_name(to: Option<&RawAddr>) -> (*const libc::c_void, u32) {
    to.map_or((std::ptr::null(), 0), RawAddr::as_ptr)
}

/// A message header for sending `iov` to `to`, or to where the socket is connected. The kernel only reads what it points to.
fn header(to: Option<&RawAddr>, iov: &[IoSlice<'_>], control: &Control) -> libc::msghdr {
    // SAFETY: msghdr is a plain C struct of integers and pointers, for which all-zero is a value.
    let mut hdr: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    let (name, name_len) = raw_name(to);
    hdr.msg_name = name.cast_mut();
    hdr.msg_namelen = name_len;
    // IoSlice has the layout of iovec on Unix (documented in std).
    hdr.msg_iov = iov.as_ptr().cast::<libc::iovec>().cast_mut();
    hdr.msg_iovlen = iov.len() as _;
    let control = control.bytes();
    if !control.is_empty() {
        hdr.msg_control = control.as_ptr().cast_mut().cast();
        hdr.msg_controllen = control.len() as _;
    }
    hdr
}

/// Sends the bytes of `iov` to `to` (`None`: where the socket is connected) as one datagram, or several if `control` names a segment size. Never blocks.
///
/// # Errors
/// The kernel's answer, `EINTR` included.
pub(crate) fn send(fd: BorrowedFd<'_>, to: Option<&RawAddr>, iov: &[IoSlice<'_>], control: &Control) -> io::Result<()> {
    let hdr = header(to, iov, control);
    // SAFETY: every pointer of `hdr` comes from a reference that outlives the call (`to`, `iov`, the slices in it,
    // `control`), with its true length, and sendmsg only reads through them. The descriptor is borrowed, so it is open.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const hdr, FLAGS) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends `bytes` to `to` as one datagram, without a gather list, which is cheaper when there is no control
/// message.
/// Never blocks.
///
/// # Errors
/// The kernel's answer, `EINTR` included.
pub(crate) fn send_small(fd: BorrowedFd<'_>, to: Option<&RawAddr>, bytes: &[u8], control: &Control) -> io::Result<()> {
    if !control.bytes().is_empty() {
        return send(fd, to, &[IoSlice::new(bytes)], control);
    }
    let (name, name_len) = raw_name(to);
    // SAFETY: the pointers come from references that outlive the call, with their true lengths, and sendto only reads
    // through them; the name is a socket address, or null. The descriptor is borrowed, so it is open.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendto, fd.as_raw_fd(), bytes.as_ptr(), bytes.len(), FLAGS, name, name_len) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends each element of `datagrams` as one datagram, and returns how many the kernel took, at least 1 (0 if there were
/// none). Never blocks.
///
/// # Errors
/// The kernel's answer to the first datagram.
///
/// # Panics
/// With more than [`MAX_MESSAGES`] datagrams.
pub(crate) fn send_many(
    fd: BorrowedFd<'_>,
    to: Option<&RawAddr>,
    datagrams: &[&[IoSlice<'_>]],
    control: &Control,
) -> io::Result<usize> {
    let mut headers: ArrayVec<libc::mmsghdr, MAX_MESSAGES> = ArrayVec::new();
    headers.extend(datagrams.iter().map(|iov| libc::mmsghdr { msg_hdr: header(to, iov, control), msg_len: 0 }));
    if headers.is_empty() {
        return Ok(0);
    }
    // SAFETY: `headers` is an array of its stated length that nobody else refers to; the kernel writes `msg_len` of its
    // elements only. Their pointers come from references that outlive the call, with true lengths, and are only read.
    // The descriptor is borrowed, so it is open.
    let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), headers.as_mut_ptr(), headers.len(), FLAGS) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Receives one datagram, or several coalesced ones, into `buf`, and returns their bytes and whether they were cut
/// because `buf` is too small. Never blocks.
///
/// # Errors
/// The kernel's answer; `WouldBlock` if there is none.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    from: &mut RawAddr,
    control: &mut Control,
) -> io::Result<(usize, bool)> {
    receive_flags(fd, buf, from, control, libc::MSG_DONTWAIT)
}

/// Whether something has arrived. Leaves it there.
pub(crate) fn has_arrivals(fd: BorrowedFd<'_>) -> bool {
    let (mut from, mut control) = (RawAddr::EMPTY, Control::new());
    receive_flags(fd, &mut [], &mut from, &mut control, libc::MSG_DONTWAIT | libc::MSG_PEEK).is_ok()
}

fn receive_flags(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    from: &mut RawAddr,
    control: &mut Control,
    flags: libc::c_int,
) -> io::Result<(usize, bool)> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: msghdr is a plain C struct of integers and pointers, for which all-zero is a value.
    let mut hdr: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    let (name, name_len) = from.as_mut_ptr();
    hdr.msg_name = name;
    hdr.msg_namelen = name_len;
    hdr.msg_iov = &mut iov;
    hdr.msg_iovlen = 1;
    let room = control.room();
    hdr.msg_control = room.as_mut_ptr().cast();
    hdr.msg_controllen = room.len() as _;
    // SAFETY: name, buffer and control room are exclusive references that outlive the call, each with its true size, of
    // which any bytes are valid values; `iov` lives on this stack frame. The descriptor is borrowed, so it is open.
    let len = unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut hdr, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(clippy::unnecessary_cast, reason = "32 bits wide with musl")]
    let written = hdr.msg_controllen as usize;
    control.set_len(written);
    Ok((len as usize, hdr.msg_flags & libc::MSG_TRUNC != 0))
}

/// Throws away up to `max` reports (ICMP errors and the like) from the socket's error queue.
pub(crate) fn drain_errors(fd: BorrowedFd<'_>, max: usize) {
    let (mut from, mut control) = (RawAddr::EMPTY, Control::new());
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    for _ in 0..max {
        if receive_flags(fd, &mut [], &mut from, &mut control, flags).is_err() {
            return;
        }
    }
}
