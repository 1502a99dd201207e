//! An open card, its protection domains, and the way to others.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use srd_core::card::{CardError, CardEvent, CqId, Gid, PdId};

use super::buf::{Buf, Window};
use super::cq::{CompletionQueue, Notify};
use super::qp::{QpBuilder, Srd, Ud};
use crate::config::{NicConfig, OpenError};
use crate::lock::Mutex;
use crate::nic::{Nic, NicCounters, NicSink};

/// An open card. Clones are the same card, which closes with the last of them and of what was made from it: that takes some
/// milliseconds, in which it says good-bye to its peers, and up to a second if datagrams (UD) are on their way.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) inner: Arc<DeviceInner>,
}

#[derive(Debug)]
pub(super) struct DeviceInner {
    pub(super) nic: Nic,
    pub(super) notifies: Arc<Registry>,
}

/// Who is told of completions, by completion queue.
#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<Vec<(CqId, Arc<Notify>)>>);

impl Registry {
    pub(super) fn add(&self, cq: CqId, notify: Arc<Notify>) {
        self.0.lock().push((cq, notify));
    }

    pub(super) fn remove(&self, cq: CqId) {
        self.0.lock().retain(|n| n.0 != cq);
    }

    fn find(&self, cq: CqId) -> Option<Arc<Notify>> {
        let all = self.0.lock();
        all.iter().find(|n| n.0 == cq).map(|n| n.1.clone())
    }
}

struct Sink(Arc<Registry>);

impl NicSink for Sink {
    fn event(&self, event: CardEvent) {
        match event {
            CardEvent::Completion(cq) => self.0.find(cq).iter().for_each(|n| n.tell()),
            CardEvent::CqOverrun(cq) => self.0.find(cq).iter().for_each(|n| n.overrun()),
            _ => {}
        }
    }
}

impl Device {
    /// Opens a card as `config` says: one that [`Options::devices`](crate::Options::devices) made, for instance, which is how a
    /// program heeds what `srd run` and the environment say.
    ///
    /// # Errors
    /// The address cannot be a card's, or the system does not permit it.
    pub fn open(config: NicConfig) -> Result<Device, OpenError> {
        let notifies = Arc::new(Registry::default());
        let nic = Nic::open(config, Box::new(Sink(notifies.clone())))?;
        Ok(Device { inner: Arc::new(DeviceInner { nic, notifies }) })
    }

    /// Opens a card of the newest generation that peers reach at `addr`; port 0 lets the system choose.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn at(addr: SocketAddr) -> Result<Device, OpenError> {
        Device::open(NicConfig::at(addr))
    }

    /// Opens a card for this host only.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn loopback() -> Result<Device, OpenError> {
        Device::at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.inner.nic.gid()
    }

    /// Longest message in bytes; nothing cuts longer ones up.
    pub fn max_message(&self) -> usize {
        self.inner.nic.profile().max_msg as usize
    }

    /// Longest RDMA operation in bytes.
    pub fn max_rdma(&self) -> usize {
        self.inner.nic.profile().max_rdma as usize
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// The device has no more.
    pub fn pd(&self) -> Result<Pd, CardError> {
        let id = self.inner.nic.alloc_pd()?;
        Ok(Pd { inner: Arc::new(PdInner { device: self.inner.clone(), id }) })
    }

    /// A new completion queue of at least `depth` entries: one for each work request that can be under way in the queue
    /// pairs that use it.
    ///
    /// # Errors
    /// The depth is 0 or more than the device permits, or it has no more queues, or the system no more file descriptors.
    pub fn cq(&self, depth: u32) -> Result<CompletionQueue, CardError> {
        CompletionQueue::new(&self.inner, depth)
    }

    /// Counters, as of now.
    pub fn counters(&self) -> NicCounters {
        self.inner.nic.counters()
    }
}

/// A protection domain: what work requests and peers of its queue pairs may touch. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(super) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) device: Arc<DeviceInner>,
    pub(super) id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Nothing depends on it, since all that does holds it.
        let _ = self.device.nic.dealloc_pd(self.id);
    }
}

impl Pd {
    /// Registers a new buffer of `len` bytes, all zero.
    ///
    /// # Errors
    /// The device has no more regions, or none as long, or the system not as much memory.
    pub fn buf(&self, len: usize) -> Result<Buf, CardError> {
        Buf::new(&self.inner, len)
    }

    /// Registers `n` buffers of `len` bytes in one go.
    ///
    /// # Errors
    /// As for [`buf`](Self::buf).
    ///
    /// # Panics
    /// If that is more bytes than there are addresses.
    pub fn bufs(&self, n: usize, len: usize) -> Result<Vec<Buf>, CardError> {
        let mut rest = self.buf(n.checked_mul(len).expect("less than all memory"))?;
        let mut all = Vec::with_capacity(n);
        for _ in 0..n {
            let next = rest.split_off(len);
            all.push(std::mem::replace(&mut rest, next));
        }
        Ok(all)
    }

    /// Registers memory of `len` bytes, all zero, that peers may read, write, or both.
    ///
    /// # Errors
    /// As for [`buf`](Self::buf), or the device generation has no such operation.
    pub fn window(&self, len: usize, read: bool, write: bool) -> Result<Window, CardError> {
        Window::new(&self.inner, len, read, write)
    }

    /// A new SRD queue pair that completes into `cq`; see there for what can be set.
    pub fn srd(&self, cq: &CompletionQueue) -> QpBuilder<Srd> {
        QpBuilder::new(self, cq)
    }

    /// A new UD queue pair.
    pub fn ud(&self, cq: &CompletionQueue) -> QpBuilder<Ud> {
        QpBuilder::new(self, cq)
    }

    /// A handle for the card with this address. RDMA is refused to cards that hold none for ours.
    ///
    /// # Errors
    /// This is no card's address, or the device has no more handles.
    pub fn address_handle(&self, gid: Gid) -> Result<AddressHandle, CardError> {
        let number = self.inner.device.nic.create_ah(self.inner.id, gid)?;
        Ok(AddressHandle { inner: Arc::new(AhInner { pd: self.inner.clone(), number }) })
    }

    /// A handle for the card of this queue pair, and the queue pair there.
    ///
    /// # Errors
    /// As for [`address_handle`](Self::address_handle).
    pub fn target(&self, peer: QpAddress) -> Result<Target, CardError> {
        Ok(self.address_handle(peer.gid)?.qp(peer.qpn, peer.qkey))
    }
}

/// The card of a peer, as a protection domain knows it. Clones are the same handle; it goes with the last of them, and of
/// the targets and work requests that use it.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    pub(super) inner: Arc<AhInner>,
}

#[derive(Debug)]
pub(super) struct AhInner {
    pub(super) pd: Arc<PdInner>,
    pub(super) number: u16,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // It is ours, so it is there.
        let _ = self.pd.device.nic.destroy_ah(self.pd.id, self.number);
    }
}

impl AddressHandle {
    /// A queue pair of that card.
    pub fn qp(&self, qpn: u16, qkey: u32) -> Target {
        Target { ah: self.clone(), qpn, qkey }
    }

    /// Its number, as in [`Source::ah`](super::Source::ah).
    pub fn number(&self) -> u16 {
        self.inner.number
    }
}

/// A queue pair of a peer, to send to.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) ah: AddressHandle,
    pub(super) qpn: u16,
    pub(super) qkey: u32,
}

/// All that a peer needs to know of a queue pair to reach it. How it gets there is the program's business; the text form
/// is `gid/qpn/qkey`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpAddress {
    /// The card.
    pub gid: Gid,
    /// The queue pair.
    pub qpn: u16,
    /// The key that messages to it must carry.
    pub qkey: u32,
}

impl fmt::Display for QpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:#010x}", self.gid, self.qpn, self.qkey)
    }
}

impl std::str::FromStr for QpAddress {
    type Err = CardError;

    fn from_str(text: &str) -> Result<QpAddress, CardError> {
        let parse = || {
            let mut parts = text.trim().split('/');
            let gid: std::net::Ipv6Addr = parts.next()?.parse().ok()?;
            let qpn = parts.next()?.parse().ok()?;
            let qkey = u32::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok()?;
            parts.next().is_none().then_some(QpAddress { gid: Gid(gid.octets()), qpn, qkey })
        };
        parse().ok_or(CardError::Invalid("an address of a queue pair is gid/qpn/0xqkey"))
    }
}
