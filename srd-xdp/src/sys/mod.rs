//! Thin, safe wrappers around the system calls of the driver: the only place of this crate with `unsafe`.
//!
//! The shared memory of AF_XDP is owned frame by frame: a [`Frame`] is a right to touch a piece of it, handed to the kernel
//! by moving it into a ring and handed back by taking it out of one.

mod bpf;
mod ethtool;
mod map;
mod option;
mod ring;
mod umem;
mod xsk;

pub(crate) use bpf::{
    ArrayMap, Attached, HashMap, Insn, Link, Loaded, MapsByName, SocketMap, attach, find_link, load, program_maps,
};
pub(crate) use ethtool::queues;
pub(crate) use umem::{Frame, METADATA, UmemSize};
pub(crate) use xsk::{Mode, Rings, Statistics, Xsk};
