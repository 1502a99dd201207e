//! Opening: which interface, which mode, which queues.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use srd_udp::netlink::Netlink;

use crate::error::OpenError;
use crate::filter::{Filter, MAX_QUEUES};
use crate::lane::{self, Lane};
use crate::net::{Link, Links, Table};
use crate::options::{Attach, XdpOptions, ZeroCopy};
use crate::sys::{self, Attached, Mode};

/// All that a driver consists of, beside the UDP driver.
pub(crate) struct Opened {
    pub(crate) link: Link,
    pub(crate) table: Table,
    pub(crate) filter: Filter,
    /// By queue; at least one.
    pub(crate) lanes: Vec<(u32, Lane)>,
    pub(crate) interface_queues: u32,
}

/// Pauses while a queue is taken or too much memory is locked: the kernel lets go of those of a closed socket a little later,
/// of the one that was tried just before, too.
const PAUSES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// Opens lanes at the interface with the address `local`.
pub(crate) fn open(local: SocketAddr, options: &XdpOptions) -> Result<Opened, OpenError> {
    let mut ask = Netlink::open().map_err(OpenError::netlink)?;
    let links = Links::read(&mut ask).map_err(OpenError::netlink)?;
    let link = links.choose(local.ip(), options.interface.as_deref()).map_err(OpenError::Interface)?.clone();
    if options.zero_copy == ZeroCopy::Require && (link.veth || link.bond) {
        // Known without disturbing the interface.
        return Err(OpenError::NoZeroCopy { interface: link.name });
    }
    let table = Table::open(link.index).map_err(OpenError::netlink)?;
    let count = sys::queues(&link.name).map_err(|e| OpenError::os("ask for the queues", &link, e))?;
    let count = count.min(MAX_QUEUES);
    if options.first_queue >= count {
        let problem =
            format!("is {}, must be below {count}, the number of queues of {}", options.first_queue, link.name);
        return Err(OpenError::Option { option: "first_queue", problem });
    }

    let places: &[Attached] = match options.attach {
        // See `Attach::Generic`.
        Attach::Auto if link.veth => &[Attached::Native],
        Attach::Auto if link.bond => &[Attached::Generic],
        Attach::Native if link.bond => &[],
        Attach::Auto => &[Attached::Native, Attached::Generic],
        Attach::Native => &[Attached::Native],
        Attach::Generic => &[Attached::Generic],
    };
    let copy: &[bool] = match options.zero_copy {
        // To try would take memory that is locked for a while longer.
        ZeroCopy::Auto if link.veth || link.bond => &[false],
        ZeroCopy::Auto => &[true, false],
        ZeroCopy::Require => &[true],
        ZeroCopy::Off => &[false],
    };
    let fits = link.mtu + 22 <= lane::capacity(lane::LARGEST_FRAME);
    let multi: &[bool] = if fits || !options.jumbo { &[false] } else { &[true, false] };
    let mut modes = multi.iter().flat_map(|&multi| copy.iter().map(move |&zero_copy| Mode { zero_copy, multi }));

    let mut filter: Option<(bool, Filter)> = None;
    let mut next = modes.next();
    while let Some(mode) = next {
        // The program first: drivers of NICs set up their queues by it.
        if filter.as_ref().is_none_or(|(multi, _)| *multi != mode.multi) {
            drop(filter.take());
            // Even if all fits now: the MTU may grow.
            let smallest = lane::frame_size(link.mtu, false);
            let max_len = (!mode.multi).then_some(lane::capacity(smallest));
            filter = Some((mode.multi, Filter::open(&mut ask, &link, places, max_len)?));
        }
        let frame = lane::frame_size(link.mtu, mode.zero_copy);
        // A device that wrote into our memory would know nothing of a program behind its driver.
        let opened = if mode.zero_copy && filter.as_ref().is_some_and(|(_, filter)| filter.is_generic()) {
            Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
        } else {
            open_lanes(&link, options, count, frame, mode)
        };
        match opened {
            Ok(lanes) => {
                let Some((_, mut filter)) = filter else { break };
                for (queue, lane) in &lanes {
                    let added = filter.add_queue(*queue, lane.socket(), local);
                    added.map_err(|e| OpenError::os("register an AF_XDP socket", &link, e))?;
                }
                return Ok(Opened { link, table, filter, lanes, interface_queues: count });
            }
            Err(e) => {
                next = modes.next();
                let unsupported = matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL));
                // Where the kernel copies, smaller frames may do.
                let may_be_smaller = mode.zero_copy && lacks_memory(&e);
                if (unsupported || may_be_smaller) && next.is_some() {
                    continue;
                }
                return Err(match e.raw_os_error() {
                    _ if unsupported && mode.zero_copy => OpenError::NoZeroCopy { interface: link.name },
                    Some(libc::EBUSY) => OpenError::QueuesTaken { interface: link.name, queues: count },
                    _ if lacks_memory(&e) => {
                        let queues = options.queues.min(count - options.first_queue);
                        OpenError::Memory { bytes: u64::from(queues) * lane::locked_bytes(frame, options.frames) }
                    }
                    _ => OpenError::os("bind an AF_XDP socket", &link, e),
                });
            }
        }
    }
    Err(OpenError::NoKernelSupport)
}

/// Lanes on all queues that are free, up to the number that is asked for.
///
/// # Errors
/// Why there is not even one.
fn open_lanes(link: &Link, options: &XdpOptions, count: u32, frame: u32, mode: Mode) -> io::Result<Vec<(u32, Lane)>> {
    let mut pauses = PAUSES;
    let mut lanes = Vec::new();
    for queue in options.first_queue..count {
        if lanes.len() == options.queues as usize {
            break;
        }
        let opened = loop {
            match Lane::open(link.index, queue, frame, options.frames, mode) {
                Err(e) if pauses > 0 && (e.raw_os_error() == Some(libc::EBUSY) || lacks_memory(&e)) => {
                    pauses -= 1;
                    std::thread::sleep(PAUSE);
                }
                result => break result,
            }
        };
        match opened {
            Ok(lane) => {
                if let Some(us) = options.busy_poll_us {
                    lane.socket().busy_poll(us)?;
                }
                lanes.push((queue, lane));
            }
            // Somebody else's; whatever comes in by it goes through the kernel.
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(e),
        }
    }
    if lanes.is_empty() { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Ok(lanes) }
}

/// Whether the kernel refused to lock (so much more) memory.
fn lacks_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}
