//! Error numbers.

use std::ffi::c_int;

use verbs_shim::CardError;

/// An error number of the C library, above zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const EFAULT: Errno = Errno(libc::EFAULT);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const ENOENT: Errno = Errno(libc::ENOENT);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

impl Errno {
    /// The one that the C library set last.
    pub(crate) fn last() -> Errno {
        std::io::Error::last_os_error().raw_os_error().map_or(EIO, Errno)
    }

    /// Sets `errno`.
    pub(crate) fn set(self) {
        // SAFETY: the address is that of this thread's errno.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<CardError> for Errno {
    fn from(error: CardError) -> Errno {
        match error {
            CardError::NotSupported(_) => EOPNOTSUPP,
            CardError::NoMemory(_) => ENOMEM,
            CardError::Busy(_) => EBUSY,
            CardError::Failed => EIO,
            _ => EINVAL,
        }
    }
}
