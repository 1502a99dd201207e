//! What the program's memory permits, asked when it is registered: hardware pins pages, and refuses those that it could not.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::errno::{EFAULT, EINVAL, Errno};

pub(crate) fn page_size() -> usize {
    // It is there on every system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// `EFAULT` if there is a hole in the range, or if the program itself could not read it, or not write what is to be written.
///
/// Costs one system call, and a look through the mappings of the process up to the range: about a tenth of a microsecond each.
/// No page is touched, so a large sparse mapping stays sparse.
pub(crate) fn check(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    let start = addr - addr % page_size();
    let end = addr.checked_add(len).ok_or(EINVAL)?;
    // A call that does nothing else: there is nothing to write back.
    if unsafe { libc::msync(start as *mut _, end - start, libc::MS_ASYNC) } != 0 {
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
        let Some((from, to, [read, written])) = mapping(&line) else { continue };
        if from >= end {
            return true;
        }
        let is_enough = if write { written == b'w' } else { read == b'r' };
        if to > start && !is_enough {
            return false;
        }
    }
}

/// `7f00-7fff rw-p ...`
fn mapping(line: &[u8]) -> Option<(usize, usize, [u8; 2])> {
    let mut fields = line.split(|&b| b == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (from, to) = range.split_once('-')?;
    let permitted = *fields.next()?.first_chunk()?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, permitted))
}
