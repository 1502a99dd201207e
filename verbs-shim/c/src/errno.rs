//! Error numbers.

use std::error::Error;
use std::ffi::c_int;
use std::io;

use verbs_shim::{CardError, OpenError};

/// An error number of the C library, above zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const EAGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const EFAULT: Errno = Errno(libc::EFAULT);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const EMFILE: Errno = Errno(libc::EMFILE);
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

/// What the system said, where it said something; `EIO` if the card itself cannot be.
impl From<&OpenError> for Errno {
    fn from(error: &OpenError) -> Errno {
        if error.lacks_descriptors() {
            return EMFILE;
        }
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = next {
            if let Some(number) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                return Errno(number);
            }
            next = error.source();
        }
        EIO
    }
}
