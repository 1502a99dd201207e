//! Threads that are cancelled (pthreads(7), "Cancellation points").
//!
//! Many system calls are such points, and to be unwound from there would end the program: Rust code cannot be left that way. So
//! cancellation waits while something makes such calls. What is done for each message makes its system calls in a way that is no
//! such point, by syscall(2), because to switch cancellation off and on takes 25 ns.

use std::ffi::c_int;
use std::marker::PhantomData;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

/// The calling thread is not cancelled while this exists.
#[derive(Debug)]
pub struct NoCancel {
    before: c_int,
    /// It is about one thread.
    _here: PhantomData<*const ()>,
}

impl NoCancel {
    /// Puts cancellation off.
    #[must_use = "it is for as long as this exists"]
    pub fn begin() -> NoCancel {
        let mut before = 0;
        // SAFETY: the state is a valid one, and the pointer is valid for the call.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        NoCancel { before, _here: PhantomData }
    }
}

impl Drop for NoCancel {
    fn drop(&mut self) {
        // SAFETY: the state is one that the system gave, and it is allowed not to ask for the one before.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
