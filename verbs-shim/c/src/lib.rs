//! `libibverbs.so.1` and `libefa.so.1` in one library: unmodified programs that use EFA run over the software card.
//!
//! | module | what it is for |
//! |---|---|
//! | `abi`, `errno`, `bindings` | how functions meet C: versions, error conventions, panics; error numbers; C's structures |
//! | `device`, `context`, `query` | the list of devices; open devices; what they say of themselves |
//! | `pd_mr`, `ah`, `cq`, `cq_ex`, `qp`, `post`, `qp_ex`, `efadv` | the objects and their functions |
//! | `mapping` | whether memory can be registered |
//! | `rings` | queues that programs use without calling anybody |
//! | `channel`, `async_event`, `event` | completion channels and asynchronous events |
//! | `fork`, `sysfs` | what happens around the library: processes that fork; files that programs expect |
//! | `strings`, `private` | names of enumerations; names that must exist |
//!
//! # Locks
//!
//! In this order: the poll lock of a completion queue (held by the program for as long as it polls), the rings of a card, the lock
//! of the card (in [`verbs_shim::Nic`]), the sink of a device, a queue of events. Programs post and register inside a poll session, so nothing
//! that posts or registers takes a poll lock.
//!
//! # Safety
//!
//! All unsafe code rests on one contract, that of verbs.h: pointers that a program passes are null, or point to what the header
//! says they do; objects are those that this library made and that were not destroyed; nobody destroys an object that another
//! thread uses. Null is checked, the rest cannot be. Memory of a region stays mapped for as long as it is registered.
//! Objects are allocated by `Box` with the public structure at the start (contexts: at the end, as verbs.h wants it), so that
//! the two pointers convert into each other. Public fields are only accessed through raw pointers, since programs read and
//! write them at any time; private fields have locks or atomics.
#![cfg(target_os = "linux")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "one contract for all of them, see above")]

mod abi;
mod ah;
mod async_event;
mod bindings;
mod channel;
mod config;
mod context;
mod cq;
mod cq_ex;
mod device;
mod efadv;
mod errno;
mod event;
mod fork;
mod log;
mod mapping;
mod pd_mr;
mod post;
mod private;
mod qp;
mod qp_ex;
mod query;
mod rings;
mod strings;
mod sysfs;
