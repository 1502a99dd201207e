//! What a card claims to be: identity, capabilities and limits, by EFA generation.
//!
//! Identities and capabilities are those of the Linux driver and its release notes; limits are typical values, since the
//! real ones come from firmware.

/// A capability of a device (`EFADV_DEVICE_ATTR_CAPS_*` of `efadv.h`).
pub mod caps {
    /// RDMA read.
    pub const RDMA_READ: u32 = 1;
    /// `rnr_retry` is an attribute of queue pairs.
    pub const RNR_RETRY: u32 = 2;
    /// Completions tell the sender's GID.
    pub const CQ_WITH_SGID: u32 = 4;
    /// RDMA write.
    pub const RDMA_WRITE: u32 = 8;
    /// Writes with immediate that consume no receive.
    pub const UNSOLICITED_WRITE_RECV: u32 = 0x10;
}

/// See the module documentation. All fields may be changed; a card takes them as they are when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// PCI device id, 0xefa0..=0xefa4.
    pub part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// Firmware version, as in `a.b.c.d`.
    pub fw_ver: [u8; 4],
    /// [`caps`].
    pub caps: u32,
    /// Longest send, in bytes (`max_msg_sz`, the device's MTU).
    pub max_msg: u32,
    /// Longest RDMA operation, in bytes.
    pub max_rdma: u32,
    /// Send work requests of a queue pair, a power of two.
    pub max_sq_wr: u32,
    /// Receive work requests of a queue pair, a power of two.
    pub max_rq_wr: u32,
    /// Buffers of a send.
    pub max_sq_sge: u16,
    /// Buffers of a receive.
    pub max_rq_sge: u16,
    /// Bytes of an inline send.
    pub max_inline: u32,
    /// Entries of a completion queue, a power of two.
    pub max_cqe: u32,
    /// Queue pairs, at most 4096.
    pub max_qp: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Memory regions, at most 262144.
    pub max_mr: u32,
    /// Address handles of all protection domains, at most 65535.
    pub max_ah: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Longest memory region, in bytes.
    pub max_mr_size: u64,
    /// Nominal speed of the port, in Gbit/s.
    pub gbps: u32,
}

/// Most buffers that any work request has.
pub const MAX_SGE: usize = 3;
/// Most buffers that a send has: there is no room for more in a work request of 64 bytes.
pub const MAX_SQ_SGE: u16 = 2;
/// Inline bytes that fit into a work request of 64 bytes. Longer ones take 128, and the send queue holds half as many.
pub const SHORT_INLINE: u32 = 32;

/// Most bytes that any work request carries inline.
pub const MAX_INLINE: usize = 80;

/// Whether requests take twice the room in their queue: those that carry so many bytes inline, or writes inline.
pub fn has_wide_requests(inline: u32, inline_write: bool) -> bool {
    // Beside the remote address there is no room for data in 64 bytes.
    inline > SHORT_INLINE || inline_write
}

impl Profile {
    /// The generation with this PCI device id; `None` if there is none.
    pub fn generation(part_id: u32) -> Option<Profile> {
        let read = caps::RDMA_READ;
        let base = caps::RNR_RETRY | caps::CQ_WITH_SGID;
        let write = read | caps::RDMA_WRITE | caps::UNSOLICITED_WRITE_RECV;
        let (caps, gbps) = match part_id {
            0xefa0 => (base, 100),
            0xefa1 => (base | read, 100),
            0xefa2 => (base | write, 200),
            0xefa3 => (base | write, 400),
            0xefa4 => (base | write, 400),
            _ => return None,
        };
        Some(Profile {
            part_id,
            hw_ver: part_id,
            fw_ver: [0, 0, (part_id & 0xf) as u8, 1],
            caps,
            max_msg: 8928,
            max_rdma: 1 << 30,
            max_sq_wr: 4096,
            max_rq_wr: 32768,
            max_sq_sge: 2,
            max_rq_sge: 3,
            // Work requests of 128 bytes came with the newest.
            max_inline: if part_id >= 0xefa4 { 80 } else { SHORT_INLINE },
            max_cqe: 65536,
            max_qp: 1024,
            max_cq: 1024,
            max_mr: 1 << 18,
            max_ah: 16384,
            max_pd: 1024,
            max_mr_size: 1 << 40,
            gbps,
        })
    }

    /// All PCI device ids.
    pub const GENERATIONS: [u32; 5] = [0xefa0, 0xefa1, 0xefa2, 0xefa3, 0xefa4];

    /// The same with no limit beyond what the card can do.
    pub(super) fn possible(self) -> Profile {
        Profile {
            max_rdma: self.max_rdma.min(1 << 30),
            max_sq_sge: self.max_sq_sge.min(MAX_SQ_SGE),
            max_rq_sge: self.max_rq_sge.min(MAX_SGE as u16),
            max_inline: self.max_inline.min(MAX_INLINE as u32),
            max_qp: self.max_qp.min(4096),
            ..self
        }
    }

    /// Depth of a send queue whose sends carry so many bytes inline, and its writes, too, if `inline_write`.
    pub fn max_sq_wr_with(&self, inline: u32, inline_write: bool) -> u32 {
        if has_wide_requests(inline, inline_write) { self.max_sq_wr / 2 } else { self.max_sq_wr }
    }

    /// Whether the device has a capability.
    pub fn has(&self, cap: u32) -> bool {
        self.caps & cap == cap
    }
}

impl Default for Profile {
    /// The second generation: the newest that perftest 4.5 knows.
    fn default() -> Profile {
        Profile::generation(0xefa1).expect("it is in the list")
    }
}
