//! How long packets find the queues of links, for percentiles.
//!
//! Nothing in the network depends on it, so a hop only notes the length, and notes are counted many at a time. A count is a
//! word somewhere in megabytes: one per hop, each waits for memory by itself; many in a row wait together.

use crate::packet::LinkId;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Lengths {
    /// Per link; empty if none is measured.
    counts: Vec<Counts>,
    /// Links and lengths that are not in `counts` yet.
    notes: Vec<(LinkId, u64)>,
}

/// Lengths of a queue in 64ths of a scale, and those beyond it.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// A 64th, in bytes.
    unit: u64,
    counts: [u32; BEYOND + 1],
}

/// The count of lengths beyond the scale.
const BEYOND: usize = 65;
/// Notes that are counted together.
const NOTES: usize = 512;

impl Counts {
    fn add(&mut self, bytes: u64) {
        self.counts[bytes.div_ceil(self.unit).min(BEYOND as u64) as usize] += 1;
    }
}

impl Lengths {
    /// Counts the lengths of a link from now on, in 64ths of `scale` bytes.
    pub(crate) fn measure(&mut self, link: LinkId, scale: u64) {
        self.count();
        let i = link.0 as usize;
        if self.counts.len() <= i {
            self.counts.resize(i + 1, Counts { unit: u64::MAX, counts: [0; BEYOND + 1] });
        }
        self.counts[i] = Counts { unit: (scale / 64).max(1), counts: [0; BEYOND + 1] };
    }

    /// A packet found so many bytes in the queue of a link.
    pub(crate) fn note(&mut self, link: LinkId, bytes: u64) {
        if (link.0 as usize) < self.counts.len() {
            self.notes.push((link, bytes));
            if self.notes.len() == NOTES {
                self.count();
            }
        }
    }

    fn count(&mut self) {
        for (link, bytes) in self.notes.drain(..) {
            self.counts[link.0 as usize].add(bytes);
        }
    }

    /// The queue length in bytes that a share `q` of the packets did not find exceeded, rounded up to a 64th of the scale;
    /// `None` if it is beyond the scale.
    pub(crate) fn percentile(&self, link: LinkId, q: f64) -> Option<u64> {
        let mut lengths = *self.counts.get(link.0 as usize)?;
        self.notes.iter().filter(|note| note.0 == link).for_each(|note| lengths.add(note.1));
        let total: u64 = lengths.counts.iter().map(|c| u64::from(*c)).sum();
        let mut left = (q * total as f64).ceil() as u64;
        for (i, count) in lengths.counts[..BEYOND].iter().enumerate() {
            if u64::from(*count) >= left {
                return Some(i as u64 * lengths.unit);
            }
            left -= u64::from(*count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_what_is_only_noted() {
        let (link, other) = (LinkId(1), LinkId(0));
        let mut lengths = Lengths::default();
        lengths.note(link, 999);
        lengths.measure(link, 6_400);
        // One more than are counted together.
        for i in 0..=NOTES as u64 {
            lengths.note(link, if i % 2 == 0 { 101 } else { 300 });
            lengths.note(other, 6_400);
        }
        assert_eq!(lengths.percentile(link, 0.5), Some(200));
        assert_eq!(lengths.percentile(link, 1.0), Some(300));
        assert_eq!(lengths.percentile(LinkId(2), 0.5), None);
        lengths.note(link, 6_400);
        assert_eq!(lengths.percentile(link, 1.0), Some(6_400));
        lengths.note(link, 6_401);
        assert_eq!(lengths.percentile(link, 1.0), None);
    }
}
