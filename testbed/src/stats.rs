//! Counters of a bed's links.

use crate::bed::Node;
use crate::{Direction, Error, impair, tools};

/// What one leaf-spine link has carried in one direction since the bed was
/// built. Counted where it enters the cable: after the queue, before a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// The link's spine.
    pub spine: usize,
    /// The link's leaf.
    pub leaf: usize,
    /// The direction counted.
    pub direction: Direction,
    /// Bytes with Ethernet headers.
    pub bytes: u64,
    /// Frames; with offload on, a frame may hold many segments.
    pub packets: u64,
}

/// What was lost on one leaf-spine link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDrops {
    /// The link's spine.
    pub spine: usize,
    /// The link's leaf.
    pub leaf: usize,
    /// The direction counted.
    pub direction: Direction,
    /// Packets taken by losses and holes.
    pub impaired: u64,
    /// Packets that found the sender's queue full.
    pub overflow: u64,
    /// Bytes waiting in the sender's queue right now.
    pub backlog_bytes: u64,
}

/// What the cable of a host has carried and lost in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CableStats {
    /// Bytes with Ethernet headers, counted after the queue, before a hole.
    pub bytes: u64,
    /// Frames, counted there too.
    pub packets: u64,
    /// Packets taken by losses and holes.
    pub impaired: u64,
    /// Packets that found the sender's queue full.
    pub overflow: u64,
    /// Bytes waiting in the sender's queue right now.
    pub backlog_bytes: u64,
}

impl CableStats {
    /// Looks at both ends of a cable, each a node and its device.
    pub(crate) fn read(sender: (&Node, &str), receiver: (&Node, &str)) -> Result<Self, Error> {
        let (bytes, packets) = sent_by(sender.0, sender.1)?;
        let queue = queues(sender.0)?.into_iter().find(|(device, ..)| device == sender.1);
        let taken = impair::drops(receiver.0)?.into_iter().find(|(device, _)| device == receiver.1);
        let (_, overflow, backlog_bytes) = queue.unwrap_or_default();
        Ok(Self { bytes, packets, impaired: taken.unwrap_or_default().1, overflow, backlog_bytes })
    }
}

/// Bytes and packets that a node has sent out of a device, read now.
pub(crate) fn sent_by(node: &Node, device: &str) -> Result<(u64, u64), Error> {
    sent(&node.counters()?, device).ok_or_else(|| Error::invalid(format!("{} has lost its device {device}", node.name)))
}

/// Bytes and packets that a node has sent out of a device.
pub(crate) fn sent(counters: &str, device: &str) -> Option<(u64, u64)> {
    let named = |line: &'_ str| line.split_once(':').map(|(name, rest)| (name.trim().to_owned(), rest.to_owned()));
    let (_, fields) = counters.lines().filter_map(named).find(|(name, _)| name == device)?;
    // eight fields about receiving, then bytes and packets sent
    let mut numbers = fields.split_whitespace().map(str::parse::<u64>).skip(8);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Drops and backlog of a node's queues, per device.
pub(crate) fn queues(node: &Node) -> Result<Vec<(String, u64, u64)>, Error> {
    let text = tools::run("tc", &["-n", &node.namespace, "-s", "-j", "qdisc", "show"], "")?;
    let list: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Error::invalid(format!("`tc -s -j qdisc show` is not JSON: {e}")))?;
    let roots = list.as_array().into_iter().flatten().filter(|q| q["root"] == true);
    let entry = |q: &serde_json::Value| {
        Some((q["dev"].as_str()?.to_owned(), q["drops"].as_u64()?, q["backlog"].as_u64().unwrap_or(0)))
    };
    Ok(roots.filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_reads_the_right_columns() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n    \
            lo:       1       2    0    0    0     0          0         0       3       4    0    0\n   \
            s12:123456789012 6    0    0    0     0          0         0       7       8    0    0\n";
        assert_eq!(sent(text, "lo"), Some((3, 4)));
        assert_eq!(sent(text, "s12"), Some((7, 8)));
        assert_eq!(sent(text, "s1"), None);
    }
}
