//! Counters that others can read while a program runs: under EFA's own names, one small file per process and device.
//!
//! A [`Publisher`] replaces its file as a whole, so that readers never see half of it; it keeps no descriptor open, because a
//! program that closes all of its descriptors and opens others would find them written over. What dead processes leave is
//! added to what was counted [`before`](Registry) on this host, so that sums never go down.

mod file;
mod pci;
mod registry;
mod sysfs;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::nic::NicCounters;

pub use file::Record;
pub use registry::{Device, Registry};
pub use sysfs::{Identity, SHOWN, node_guid, write_counters, write_gid, write_tree};

/// Counters of the port, in the order in which the driver of EFA has them.
pub const PORT: [&str; 22] = [
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "rx_drops",
    "send_bytes",
    "send_wrs",
    "recv_bytes",
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rdma_read_resp_bytes",
    "rdma_write_wrs",
    "rdma_write_bytes",
    "rdma_write_wr_err",
    "rdma_write_recv_bytes",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
];

/// Counters of the device. Some stay zero: nothing in software corresponds to them.
pub const DEVICE: [&str; 12] = [
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "alloc_pd_err",
    "create_qp_err",
    "create_cq_err",
    "reg_mr_err",
    "alloc_ucontext_err",
    "create_ah_err",
    "mmap_err",
];

/// Values of all counters at one moment, in the order of [`PORT`] and [`DEVICE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Values {
    /// Of the port.
    pub port: [u64; PORT.len()],
    /// Of the device.
    pub device: [u64; DEVICE.len()],
}

impl Values {
    /// All counters by name: first the port's, then the device's.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let port = PORT.into_iter().zip(self.port);
        port.chain(DEVICE.into_iter().zip(self.device))
    }

    /// The counter of this name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut u64> {
        let index = |names: &[&str]| names.iter().position(|n| *n == name);
        if let Some(k) = index(&PORT) { Some(&mut self.port[k]) } else { index(&DEVICE).map(|k| &mut self.device[k]) }
    }

    /// Adds `other`; counters wrap as those of hardware do.
    pub fn add(&mut self, other: &Values) {
        let pairs = self.port.iter_mut().zip(&other.port).chain(self.device.iter_mut().zip(&other.device));
        pairs.for_each(|(a, b)| *a = a.wrapping_add(*b));
    }
}

impl From<&NicCounters> for Values {
    fn from(counters: &NicCounters) -> Values {
        let transport = &counters.transport;
        let packets = [
            ("tx_bytes", transport.tx_bytes),
            ("tx_pkts", transport.tx_packets),
            ("rx_bytes", transport.rx_bytes),
            ("rx_pkts", transport.rx_packets),
            ("retrans_pkts", transport.retransmits),
            ("retrans_bytes", transport.retransmit_bytes),
            // EFA counts timeouts that made it change the path, and connections that were slowed down because nothing came
            // back at all.
            ("retrans_timeout_events", transport.paths_replaced),
            ("impaired_remote_conn_events", transport.timeouts),
        ];
        let mut values = Values::default();
        for (name, value) in packets.into_iter().chain(counters.port.named()).chain(counters.device.named()) {
            if let Some(counter) = values.get_mut(name) {
                *counter = value;
            }
        }
        values
    }
}

/// Publishes the counters of one device of this process.
#[derive(Debug)]
pub struct Publisher {
    registry: Registry,
    record: Record,
    path: PathBuf,
    /// A tree of files that may have the device, see [`SHOWN`].
    tree: PathBuf,
}

impl Publisher {
    /// Begins to publish in `dir` (see [`Options::runtime_dir`](crate::Options::runtime_dir)), and where [`SHOWN`] has the device,
    /// there, too.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(dir: &Path, identity: Identity) -> std::io::Result<Publisher> {
        let record = Record::of_this_process(identity)?;
        let path = dir.join(record.file_name());
        record.write(&path)?;
        let publisher = Publisher { registry: Registry::new([dir]), record, path, tree: SHOWN.into() };
        // It may be another user's, to whom it shows nothing then.
        let _ = publisher.show();
        Ok(publisher)
    }

    /// Replaces what is published. Costs some tens of microseconds: for a few times a second. Does nothing in a process that
    /// was forked from the one that began.
    ///
    /// # Errors
    /// A file cannot be written; the next attempt may succeed. [`WouldBlock`](std::io::ErrorKind::WouldBlock): only the
    /// [`SHOWN`] files are not up to date, because another process was at them.
    pub fn publish(&mut self, values: &Values) -> std::io::Result<()> {
        if !self.record.is_of_this_process() {
            return Ok(());
        }
        self.record.values = *values;
        self.record.write(&self.path)?;
        self.show()
    }

    /// Brings the files up to date that `srd run --device-files` has made for this device, if it has.
    fn show(&self) -> std::io::Result<()> {
        let Identity { device, .. } = &self.record.identity;
        if !sysfs::has(&self.tree, device) {
            return Ok(());
        }
        self.registry.with_total(device, |total| {
            write_gid(&self.tree, device, self.record.identity.gid())?;
            write_counters(&self.tree, device, total)
        })
    }
}

impl Drop for Publisher {
    /// Adds what was counted to what was counted before, and takes the file away.
    fn drop(&mut self) {
        if self.record.is_of_this_process() && self.registry.retire(&self.path).is_err() {
            // The next reader does it. Where there is no room to say so, the file stays as it is.
            let _ = self.record.leave(&self.path);
        }
    }
}
