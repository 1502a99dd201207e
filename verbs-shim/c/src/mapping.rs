//! What the program's memory permits, asked when it is registered: hardware pins pages, and refuses those that it could not.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::errno::{EFAULT, EINVAL, Errno};

/// `EFAULT` if there is a hole in the range, or if it is to be written and the program itself could not write it.
///
/// Costs one system call, and for what is to be written a look through the mappings of the process up to the range: about a
/// tenth of a microsecond each. No page is touched, so a large sparse mapping stays sparse.
pub(crate) fn check(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = addr - addr % page;
    let end = addr.checked_add(len).ok_or(EINVAL)?;
    // A call that does nothing else: there is nothing to write back.
    if unsafe { libc::msync(start as *mut _, end - start, libc::MS_ASYNC) } != 0 {
        return Err(EFAULT);
    }
    if !write {
        return Ok(());
    }
    // Where /proc is not mounted nobody can tell, and a write to such memory would kill the program, as one of its own would.
    let Ok(maps) = File::open("/proc/self/maps") else { return Ok(()) };
    if is_writable(BufReader::new(maps), start, end) { Ok(()) } else { Err(EFAULT) }
}

/// Whether all mappings in the range may be written, by a table like `/proc/self/maps`, which is sorted.
fn is_writable(mut maps: impl BufRead, start: usize, end: usize) -> bool {
    let mut line = Vec::with_capacity(256);
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            return true;
        }
        let Some((from, to, writable)) = mapping(&line) else { continue };
        if from >= end {
            return true;
        }
        if to > start && !writable {
            return false;
        }
    }
}

/// `7f00-7fff rw-p ...`
fn mapping(line: &[u8]) -> Option<(usize, usize, bool)> {
    let mut fields = line.split(|&b| b == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (from, to) = range.split_once('-')?;
    let writable = fields.next()?.get(1) == Some(&b'w');
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, writable))
}
