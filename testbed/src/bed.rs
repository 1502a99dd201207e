//! A set of namespaces with one owner: made from a plan, gone with its value.

use std::fs::{self, File};
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::cable::Plan;
use crate::{Error, name, netns, tools};

/// Namespaces of one bed. Removes them when dropped, unless told to keep them.
#[derive(Debug)]
pub(crate) struct Bed {
    /// See [`name`].
    id: String,
    nodes: Vec<Node>,
    is_kept: bool,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The node's `/proc/.../net/dev`; it may be read from anywhere.
    counters: Option<File>,
}

impl Bed {
    /// Builds what the plan says; on an error nothing stays behind. Beds whose
    /// owner has died are removed on the way. With `ecmp_seed` routers choose
    /// among equal routes repeatably. `keep` names a bed that is to outlive
    /// this process.
    pub(crate) fn build(plan: &Plan, ecmp_seed: Option<u32>, keep: Option<&str>) -> Result<Self, Error> {
        tools::check()?;
        sweep();
        let id = match keep {
            Some(text) => name::kept(text)?,
            None => name::owned()?,
        };
        if let Some(text) = keep.filter(|_| !netns::list(|bed| bed == id).is_empty()) {
            return Err(Error::Exists(text.to_owned()));
        }
        let mut bed = Self::with_nodes(id, plan.nodes.iter().map(|n| n.name.clone()));
        let batch: String = bed.nodes.iter().map(|n| format!("netns add {}\n", n.namespace)).collect();
        tools::run("ip", &["-batch", "-"], &batch)?;
        for (number, (node, planned)) in (0..).zip(bed.nodes.iter().zip(&plan.nodes)) {
            // a seed of 0 would mean: draw one; and alike routers must not choose alike
            let seed = ecmp_seed.map(|seed| seed.wrapping_add(number).max(1)).filter(|_| planned.is_router);
            netns::enter(&node.namespace, || settings(planned.is_router, seed))??;
        }
        tools::run("ip", &["-batch", "-"], &plan.links(|node| bed.nodes[node].namespace.clone()))?;
        bed.set_up_nodes(plan)?;
        bed.nodes.iter().enumerate().try_for_each(|(index, node)| node.await_addresses(plan, index))?;
        bed.open_counters()?;
        bed.is_kept = keep.is_some();
        Ok(bed)
    }

    /// Takes hold of a kept bed without owning it.
    pub(crate) fn open(kept: &str) -> Result<Self, Error> {
        tools::check()?;
        let id = name::kept(kept)?;
        let nodes = netns::list(|bed| bed == id).into_iter().map(|(_, node)| node);
        let mut bed = Self::with_nodes(id, nodes);
        bed.is_kept = true;
        if bed.nodes.is_empty() {
            return Err(Error::NoSuchBed(kept.to_owned()));
        }
        bed.open_counters()?;
        Ok(bed)
    }

    fn with_nodes(id: String, nodes: impl Iterator<Item = String>) -> Self {
        let node = |name: String| Node { namespace: name::namespace(&id, &name), name, counters: None };
        Self { nodes: nodes.map(node).collect(), id, is_kept: false }
    }

    /// The bed's own name, as it stands in the names of its namespaces.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.nodes.iter().any(|n| n.name == name)
    }

    /// # Panics
    /// If there is no such node: callers check their numbers first.
    pub(crate) fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|n| n.name == name).unwrap_or_else(|| panic!("the bed has no node {name}"))
    }

    /// Removes the bed even if it was to be kept.
    pub(crate) fn remove(mut self) {
        self.is_kept = false;
    }

    /// Two workers, as most of the time goes into starting small programs.
    fn set_up_nodes(&self, plan: &Plan) -> Result<(), Error> {
        let every_second = |first: usize| {
            (first..self.nodes.len()).step_by(2).try_for_each(|index| self.nodes[index].set_up(plan, index))
        };
        thread::scope(|scope| {
            let odd = scope.spawn(|| every_second(1));
            let even = every_second(0);
            odd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(even)
        })
    }

    fn open_counters(&mut self) -> Result<(), Error> {
        for node in &mut self.nodes {
            let open = || File::open("/proc/thread-self/net/dev");
            let counters = netns::enter(&node.namespace, open)?;
            node.counters = Some(counters.map_err(Error::io("open /proc/thread-self/net/dev"))?);
        }
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !self.is_kept {
            let namespaces: Vec<String> = self.nodes.iter().map(|n| n.namespace.clone()).collect();
            netns::remove(&namespaces);
        }
    }
}

impl Node {
    fn set_up(&self, plan: &Plan, index: usize) -> Result<(), Error> {
        let batch = |tool, lines: &str| tools::run(tool, &["-n", &self.namespace, "-batch", "-"], lines).map(drop);
        batch("ip", &plan.addresses(index))?;
        let queues = plan.queues(index);
        if !queues.is_empty() {
            batch("tc", &queues)?;
        }
        let (plain, queues) = (plan.without_offload(index), plan.with_queues(index));
        netns::enter(&self.namespace, || {
            plain.iter().try_for_each(|device| real_frames(device))?;
            queues.iter().try_for_each(|(device, count)| {
                let count = count.to_string();
                tools::run("ethtool", &["-L", device, "rx", &count, "tx", &count], "").map(drop)
            })
        })?
    }

    /// Waits until the node takes packets. The kernel says that it has the addresses, and has them when it has the time to
    /// notice that the other ends of the cables are there: the last sign of that is the local route of IPv6.
    fn await_addresses(&self, plan: &Plan, index: usize) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        let has_all = || -> io::Result<bool> {
            let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
            let has = |address: Ipv6Addr| routes.lines().any(|line| is_local_route(line, address));
            Ok(plan.v6_addresses(index).all(has))
        };
        netns::enter(&self.namespace, || {
            while !has_all().map_err(Error::io("read /proc/thread-self/net/ipv6_route"))? {
                if Instant::now() > end {
                    return Err(Error::invalid(format!("the links of {} do not come up", self.name)));
                }
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })?
    }

    /// What `/proc/net/dev` says about this node.
    pub(crate) fn counters(&self) -> Result<String, Error> {
        let file = self.counters.as_ref().expect("opened when the bed was built or opened");
        let mut text = vec![0; 16 << 10];
        let mut filled = 0;
        loop {
            let count =
                file.read_at(&mut text[filled..], filled as u64).map_err(Error::io("read the link counters"))?;
            filled += count;
            match (count, filled == text.len()) {
                (0, _) => break,
                (_, true) => text.resize(2 * text.len(), 0),
                _ => {}
            }
        }
        text.truncate(filled);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Removes the kept bed of this name, whole or not, and kills what runs inside.
///
/// # Errors
/// If there is none.
pub fn remove_kept(name: &str) -> Result<(), Error> {
    Bed::open(name).map(Bed::remove)
}

/// Removes the beds of processes that are gone, as every build does first.
/// Returns how many namespaces went.
pub fn sweep() -> usize {
    let stale = netns::list(name::is_stale);
    let namespaces: Vec<String> = stale.iter().map(|(bed, node)| name::namespace(bed, node)).collect();
    netns::remove(&namespaces);
    namespaces.len()
}

/// The names of the beds that were built with `keep` and still exist.
#[must_use]
pub fn keep_names() -> Vec<String> {
    let kept = netns::list(|bed| name::kept_name(bed).is_some());
    let mut names: Vec<String> = kept.iter().filter_map(|(bed, _)| name::kept_name(bed)).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether a line of `/proc/net/ipv6_route` is that by which a host takes what is for this address.
fn is_local_route(line: &str, address: Ipv6Addr) -> bool {
    const RTF_LOCAL: u32 = 0x8000_0000;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [destination, "80", .., flags, _device] = fields[..] else { return false };
    destination == format!("{:032x}", address.to_bits())
        && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_LOCAL != 0)
}

/// Makes a device carry frames as a real link does: no segmentation offload
/// and no checksum left for a card to fill in.
fn real_frames(device: &str) -> Result<(), Error> {
    let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off"];
    tools::run("ethtool", &[&["-K", device], &off[..]].concat(), "").map(drop)
}

/// Kernel settings of the node this thread is in. Called before there are
/// links, as these take over the defaults.
fn settings(is_router: bool, ecmp_seed: Option<u32>) -> Result<(), Error> {
    let set = |setting: &str, value: &str| {
        let path = format!("/proc/sys/net/{setting}");
        fs::write(&path, value).map_err(Error::io(format!("write {value} to {path}")))
    };
    for scope in ["all", "default"] {
        set(&format!("ipv4/conf/{scope}/rp_filter"), "0")?; // replies may come another way
        set(&format!("ipv6/conf/{scope}/accept_dad"), "0")?; // addresses work at once
        set(&format!("ipv6/conf/{scope}/accept_ra"), "0")?;
    }
    // no packets but the tests' own: no link-local addresses, and multicast reports (after the first) put off
    set("ipv6/conf/default/addr_gen_mode", "1")?;
    set("ipv6/conf/default/mldv2_unsolicited_report_interval", "2000000000")?;
    if is_router {
        set("ipv4/ip_forward", "1")?;
        set("ipv6/conf/all/forwarding", "1")?;
        // Equal-cost routes are chosen by what a switch sees. Policy 1 would do so
        // only at first sight: it trusts the hash that the sending socket has put
        // beside the packet, which crosses namespaces, is drawn per socket, and is
        // drawn again by TCP after a timeout, so that TCP would flee a dead spine.
        for family in ["ipv4", "ipv6"] {
            set(&format!("{family}/fib_multipath_hash_policy"), "3")?;
            set(&format!("{family}/fib_multipath_hash_fields"), FIVE_TUPLE)?;
        }
    }
    if let Some(seed) = ecmp_seed {
        set("ipv4/fib_multipath_hash_seed", &seed.to_string())
            .map_err(|_| Error::invalid("an ECMP seed needs Linux 6.11 or later: build the bed without one"))?;
    }
    Ok(())
}

/// Longer than any link needs to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Source and destination address, protocol, source and destination port, as
/// the bits 0, 1, 2, 4 and 5 of `fib_multipath_hash_fields`.
const FIVE_TUPLE: &str = "55";
