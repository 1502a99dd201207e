//! How the functions of the library meet C: symbol versions, error conventions, panics.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use verbs_shim::cancel::NoCancel;
use verbs_shim::lock::Interrupted;

use crate::errno::{EBUSY, EINVAL, EIO, Errno};
use crate::event;

/// Defines a function of the C interface and gives it its public name and version.
macro_rules! export {
    ($version:literal, $(#[$meta:meta])* fn $($rest:tt)*) => {
        export!(@ "C", $version, $(#[$meta])* fn $($rest)*);
    };
    // In which the thread may be cancelled, and is unwound then.
    ($version:literal, $(#[$meta:meta])* cancellable fn $($rest:tt)*) => {
        export!(@ "C-unwind", $version, $(#[$meta])* fn $($rest)*);
    };
    (@ $abi:literal, $version:literal, $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[unsafe(export_name = concat!("srd_", stringify!($name)))]
        pub(crate) unsafe extern $abi fn $name($($arg: $type),*) $(-> $ret)? $body

        std::arch::global_asm!(concat!(
            ".symver srd_", stringify!($name), ", ", stringify!($name), "@@", $version
        ));
    };
}
pub(crate) use export;

/// Runs the body of an entry point. A panic ends here: the program that called us does not know how to unwind. A signal handler
/// that interrupted the same thread in another entry point gets `EBUSY` where it would wait for itself. The body makes no calls in
/// which the thread could be cancelled.
fn guarded<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) if panic.is::<Interrupted>() => Err(EBUSY),
        Err(panic) => {
            let what = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            crate::log::error(format_args!("defect in the card, please report it: {}", what.unwrap_or("panic")));
            Err(EIO)
        }
    }
}

/// The same for any body.
fn guarded_whole<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let _whole = NoCancel::begin();
    guarded(body)
}

/// For functions that return a pointer, or null and `errno`.
#[inline]
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded_whole(body).unwrap_or_else(|errno| {
        errno.set();
        std::ptr::null_mut()
    })
}

/// For functions that return 0 or an error number; `errno` is set too, as libibverbs does.
#[inline]
pub(crate) fn code(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    code_of(guarded_whole(body))
}

/// The same for what programs do with each message.
#[inline]
pub(crate) fn hot_code(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    code_of(guarded(body))
}

#[inline]
fn code_of(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// For functions that return a value, or -1 and `errno`.
#[inline]
pub(crate) fn minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    minus_one_of(guarded_whole(body))
}

/// The same for what programs do with each message.
#[inline]
pub(crate) fn hot_minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    minus_one_of(guarded(body))
}

#[inline]
fn minus_one_of(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// For functions that return 0, or -1 and `errno`, and that wait: the body says whether it found what was asked for, and is run
/// again when the descriptor is readable. Only there can the thread be cancelled.
pub(crate) fn waiting(body: impl Fn() -> Result<Attempt, Errno>) -> c_int {
    loop {
        let outcome = match guarded_whole(&body) {
            Ok(Attempt::Done) => Ok(0),
            Ok(Attempt::WaitFor(fd)) => match event::wait(fd) {
                Ok(()) => continue,
                Err(errno) => Err(errno),
            },
            Err(errno) => Err(errno),
        };
        return minus_one_of(outcome);
    }
}

/// See [`waiting`].
pub(crate) enum Attempt {
    Done,
    WaitFor(c_int),
}

/// For functions that return a value, or the negative of an error number.
#[inline]
pub(crate) fn negative(body: impl FnOnce() -> Result<isize, Errno>) -> isize {
    guarded_whole(body).unwrap_or_else(|errno| {
        errno.set();
        -(errno.0 as isize)
    })
}

/// For functions that cannot fail, and make no calls in which the thread could be cancelled.
#[inline]
pub(crate) fn quiet<T>(default: T, body: impl FnOnce() -> T) -> T {
    guarded(|| Ok(body())).unwrap_or(default)
}

/// What a pointer of the caller points to; null is `EINVAL`.
///
/// # Safety
/// The pointer is null or valid for the time of the call, and nobody else writes to what it points to.
#[inline]
pub(crate) unsafe fn arg<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: passed on to the caller of this function.
    unsafe { pointer.as_ref() }.ok_or(EINVAL)
}

/// The same, to write to.
///
/// # Safety
/// The pointer is null or valid for the time of the call, and nobody else uses what it points to.
#[inline]
pub(crate) unsafe fn out<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    // SAFETY: passed on to the caller of this function.
    unsafe { pointer.as_mut() }.ok_or(EINVAL)
}

/// Fills a structure of which the caller knows the first `len` bytes; what it knows and we do not becomes zero.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub(crate) unsafe fn fill<T>(to: *mut T, len: usize, from: &T) {
    // SAFETY: as this function asks; `from` has the size of T.
    unsafe {
        let known = len.min(size_of::<T>());
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast::<u8>(), known);
        std::ptr::write_bytes(to.cast::<u8>().add(known), 0, len - known);
    }
}

/// Reads a structure of which the caller knows `len` bytes; what it does not know is zero. What it knows and we do not must be
/// zero, and it must know `least` bytes, otherwise it is `EINVAL`.
///
/// # Safety
/// `from` is null or valid for reads of `len` bytes, and a T of zeros is valid.
pub(crate) unsafe fn fetch<T: Copy>(from: *const T, len: usize, least: usize) -> Result<T, Errno> {
    if from.is_null() || len < least {
        return Err(EINVAL);
    }
    // SAFETY: as this function asks.
    unsafe {
        let mut value: T = std::mem::zeroed();
        let known = len.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
        let more = std::slice::from_raw_parts(from.cast::<u8>().add(known), len - known);
        if more.iter().any(|&b| b != 0) { Err(EINVAL) } else { Ok(value) }
    }
}
