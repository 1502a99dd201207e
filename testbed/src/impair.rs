//! Loss and holes: packet filters at the receiving end of a link.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bed::{Bed, Node};
use crate::{Error, tools};

/// A direction on a link between a leaf and a spine, or a host and its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Away from the hosts: host to leaf, leaf to spine.
    Up,
    /// Towards the hosts: spine to leaf, leaf to host.
    Down,
}

impl Direction {
    /// Both directions, to loop over.
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}

/// When a hole opens: a whole second of the wall clock, as packet filters know
/// no finer ones. Holes of the same moment open together, to the microsecond,
/// which separate commands never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The first one that is at least `lead` away.
    #[must_use]
    pub fn after(lead: Duration) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + lead;
        Self(at.as_secs() + 1)
    }

    /// The same on the monotonic clock, right as long as nobody sets the other.
    #[must_use]
    pub fn instant(self) -> Instant {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let at = UNIX_EPOCH + Duration::from_secs(self.0);
        match at.duration_since(wall) {
            Ok(ahead) => now + ahead,
            Err(passed) => now.checked_sub(passed.duration()).unwrap_or(now),
        }
    }
}

/// Which packets a loss or hole is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Traffic {
    /// Everything.
    #[default]
    All,
    /// UDP only.
    Udp,
    /// TCP only.
    Tcp,
    /// Packets longer than this many bytes with their IP header: data, while
    /// acknowledgements pass.
    LongerThan(u16),
}

impl Traffic {
    fn filter(self) -> String {
        match self {
            Self::All => String::new(),
            Self::Udp => "meta l4proto udp".into(),
            Self::Tcp => "meta l4proto tcp".into(),
            Self::LongerThan(bytes) => format!("meta length > {bytes}"),
        }
    }
}

impl FromStr for Traffic {
    type Err = Error;

    /// `all`, `udp`, `tcp`, or a number of bytes for [`Traffic::LongerThan`].
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "all" => Ok(Self::All),
            "udp" => Ok(Self::Udp),
            "tcp" => Ok(Self::Tcp),
            _ => text.parse().map(Self::LongerThan).map_err(|_| {
                Error::invalid(format!("`{text}` names no traffic: write all, udp, tcp or a length in bytes"))
            }),
        }
    }
}

/// Drops a random share of what comes in on a device, in place of what was set
/// there before; from a moment on, or at once. The count of drops goes on.
pub(crate) fn set(
    node: &Node,
    device: &str,
    traffic: Traffic,
    percent: f64,
    from: Option<Moment>,
) -> Result<(), Error> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(Error::invalid(format!("a loss of {percent} % is out of range: choose 0 to 100")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e6 by the check above")]
    let share = (percent / 100.0 * f64::from(PARTS)).round() as u32;
    let dice = if share < PARTS { format!("numgen random mod {PARTS} < {share}") } else { String::new() };
    let filter = traffic.filter();
    let when = from.map_or(String::new(), |Moment(second)| format!("meta time >= {second}"));
    let rule = match share {
        0 => String::new(),
        _ => format!("add rule netdev {TABLE} {device} {when} {filter} {dice} counter name \"{device}\" drop\n"),
    };
    // multicast is only the kernel's own reports about groups, which would blur the counts
    let script = format!(
        "add table netdev {TABLE}\n\
         add counter netdev {TABLE} {device}\n\
         add chain netdev {TABLE} {device} {{ type filter hook ingress device \"{device}\" priority 0; }}\n\
         flush chain netdev {TABLE} {device}\n\
         add rule netdev {TABLE} {device} meta pkttype multicast accept\n{rule}"
    );
    nft(node, &["-f", "-"], &script).map(drop)
}

/// Undoes every loss and hole of the bed; drop counts stay.
pub(crate) fn heal(bed: &Bed) -> Result<(), Error> {
    // a table without rules lets everything pass, and need not exist before
    let script = format!("add table netdev {TABLE}\nflush table netdev {TABLE}\n");
    bed.nodes().iter().try_for_each(|node| nft(node, &["-f", "-"], &script).map(drop))
}

/// Packets dropped so far by [`set`], per device of this node.
pub(crate) fn drops(node: &Node) -> Result<Vec<(String, u64)>, Error> {
    let text = nft(node, &["-j", "list", "counters"], "")?;
    let list: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Error::invalid(format!("`nft -j list counters` is not JSON: {e}")))?;
    let counters = list["nftables"].as_array().into_iter().flatten().filter_map(|item| item.get("counter"));
    let ours = counters.filter(|c| c["table"] == TABLE);
    let pair = |c: &serde_json::Value| Some((c["name"].as_str()?.to_owned(), c["packets"].as_u64()?));
    Ok(ours.filter_map(pair).collect())
}

fn nft(node: &Node, args: &[&str], script: &str) -> Result<String, Error> {
    tools::run("ip", &[&["netns", "exec", &node.namespace, "nft"], args].concat(), script)
}

const TABLE: &str = "bed";
/// Granularity of a loss: one in a million.
const PARTS: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_reads_what_people_write() {
        assert_eq!("udp".parse::<Traffic>().unwrap(), Traffic::Udp);
        assert_eq!("200".parse::<Traffic>().unwrap(), Traffic::LongerThan(200));
        assert!("icmp".parse::<Traffic>().is_err());
    }
}
