//! Queue pairs for Rust programs: the card's verbs in safe types.
//!
//! SRD gives *messages*, not a stream: each is delivered **at most once, in any order**, whole, into one receive buffer.
//! The types say so. A work request takes its [`Buf`] and the [`Completion`] gives it back, so nobody can touch memory that
//! the card uses. [`WorkId`]s can be compared for equality only: that one request is done says nothing of another. There is
//! no receive without a buffer that was posted for it, and no message longer than [`Device::max_message`].
//!
//! ```
//! use verbs_shim::api::{Device, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (Device::loopback()?, Device::loopback()?);
//! let (pd, pd_b) = (a.pd()?, b.pd()?);
//! let (cq, cq_b) = (a.cq(64)?, b.cq(64)?);
//! let (qp, qp_b) = (pd.srd(&cq).build()?, pd_b.srd(&cq_b).build()?);
//! qp_b.recv(pd_b.buf(4096)?)?;
//! let mut hello = pd.buf(5)?;
//! hello.copy_from_slice(b"hello");
//! qp.send(&pd.target(qp_b.address())?, hello)?;
//! let message = cq_b.wait(None)?.expect("no timeout").ok()?;
//! assert_eq!(&message.buf.expect("a buffer")[..], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! | type | what it is |
//! |---|---|
//! | [`Device`], [`Pd`] | an open card, a protection domain |
//! | [`Buf`], [`Window`] | memory for our own work requests; memory that peers may read or write |
//! | [`QueuePair`], [`QpBuilder`] | a queue pair of type [`Srd`] or [`Ud`] |
//! | [`AddressHandle`], [`Target`] | the card of a peer; a queue pair there |
//! | [`CompletionQueue`], [`Completion`] | where requests end: polled, waited for by file descriptor, or awaited |
//!
//! Everything may be dropped in any order: what depends on something keeps it alive. Dropping a queue pair cancels what it
//! has under way.

mod buf;
mod cq;
mod device;
mod qp;

pub use buf::{Buf, RemoteMemory, Window};
pub use cq::{Completion, CompletionQueue, Next, Source, WorkError, WorkId};
pub use device::{AddressHandle, Device, Pd, QpAddress, Target};
pub use qp::{QpBuilder, QueuePair, Refused, Srd, Transport, Ud};
