//! The C structures and constants of `infiniband/verbs.h` and `infiniband/efadv.h` that this library fills or reads, by hand.
//!
//! Names are C's. `tests/layout.rs` compiles a program against the installed headers and compares every size and offset.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "the names and their meaning are those of verbs.h and efadv.h"
)]

mod attrs;
mod consts;
mod device;
mod efadv;
mod objects;
mod work;

pub(crate) use attrs::*;
pub(crate) use consts::*;
pub(crate) use device::*;
pub(crate) use efadv::*;
pub(crate) use objects::*;
pub(crate) use work::*;

/// What a mutex takes here more than on x86-64: 8 bytes on AArch64.
const WIDER_MUTEX: usize = size_of::<libc::pthread_mutex_t>() - 40;

/// Defines C structures with the size that they must have, and a list of their fields with offsets for the test.
macro_rules! c_structs {
    ($($(#[$meta:meta])* struct $name:ident: $size:literal $(+ $more:ident)? { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }

        const _: () = assert!(size_of::<$name>() == $size $(+ $more)?, concat!("size of ", stringify!($name)));

        impl $name {
            #[allow(dead_code, reason = "only the layout test asks")]
            pub(crate) const LAYOUT: super::Layout = super::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            };
        }
    )*};
}
use c_structs;

/// What the layout test compares.
#[allow(dead_code, reason = "only the layout test asks")]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize)],
}
