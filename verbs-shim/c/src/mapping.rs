//! What the program's memory permits, asked when it is registered: hardware pins pages, and refuses those that it could not.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::errno::{EFAULT, EINVAL, ENOMEM, Errno};

pub(crate) fn page_size() -> usize {
    // It is there on every system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// `EFAULT` if there is a hole in the range, or if the program itself could not read it, or not write what is to be written.
///
/// Costs one system call, and a look through the mappings of the process up to the range: about a tenth of a microsecond each.
/// No page is touched but one of each file, so a large sparse mapping stays sparse.
pub(crate) fn check(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    let start = addr - addr % page_size();
    let end = addr.checked_add(len).ok_or(EINVAL)?;
    // A call that does nothing else: there is nothing to write back. Where it is forbidden, it cannot tell.
    if unsafe { libc::msync(start as *mut _, end - start, libc::MS_ASYNC) } != 0 && Errno::last() == ENOMEM {
        return Err(EFAULT);
    }
    // Where /proc is not mounted nobody can tell, and using such memory would kill the program, as a use of its own would.
    let Ok(maps) = File::open("/proc/self/maps") else { return Ok(()) };
    if permits(BufReader::new(maps), start, end, write) { Ok(()) } else { Err(EFAULT) }
}

/// Whether all mappings in the range may be read, or written, by a table like `/proc/self/maps`, which is sorted. What may be
/// written may be read, on all processors that matter.
fn permits(mut maps: impl BufRead, start: usize, end: usize, write: bool) -> bool {
    let mut line = Vec::with_capacity(256);
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            return true;
        }
        let Some(mapping) = Mapping::parse(&line) else { continue };
        if mapping.from >= end {
            return true;
        }
        let is_enough = if write { mapping.is_writable } else { mapping.is_readable };
        if mapping.to > start && !(is_enough && (!mapping.is_of_file || has_page(mapping.to.min(end) - 1))) {
            return false;
        }
    }
}

/// Whether the file behind a mapping reaches the page of this address: beyond its end there is nothing to read or to write, and
/// who tries is killed.
fn has_page(addr: usize) -> bool {
    let page = addr - addr % page_size();
    // Systems from before Linux 5.14 do not know the call, and cannot tell.
    let populated = unsafe { libc::madvise(page as *mut _, page_size(), libc::MADV_POPULATE_READ) };
    populated == 0 || Errno::last() != EFAULT
}

/// A line of the table.
struct Mapping {
    from: usize,
    to: usize,
    is_readable: bool,
    is_writable: bool,
    is_of_file: bool,
}

impl Mapping {
    /// `7f00-7fff rw-p 00000000 08:01 1234 /name`; the number before the name is 0 where there is no file.
    fn parse(line: &[u8]) -> Option<Mapping> {
        let mut fields = line.split(|&b| b == b' ');
        let range = std::str::from_utf8(fields.next()?).ok()?;
        let (from, to) = range.split_once('-')?;
        let [read, write] = *fields.next()?.first_chunk()?;
        let inode = fields.nth(2)?;
        Some(Mapping {
            from: usize::from_str_radix(from, 16).ok()?,
            to: usize::from_str_radix(to, 16).ok()?,
            is_readable: read == b'r',
            is_writable: write == b'w',
            is_of_file: inode != b"0",
        })
    }
}
