//! The XDP program at an interface, with its maps: made by the first driver, shared by all that come later, in this process
//! and in others.
//!
//! Nothing is pinned. Whoever comes later opens the same link and maps by their ids, so the kernel detaches the program
//! when the last driver closes them, or is killed. Entries of `ports` that a killed driver leaves behind lead to no socket,
//! so the kernel treats these packets as if there were no program; the next driver removes them.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use arrayvec::ArrayVec;
use srd_udp::netlink::Netlink;

use crate::error::OpenError;
use crate::net::{Door, Link, Links};
use crate::program::assemble;
use crate::sys::{self, ArrayMap, Attached, HashMap, Loaded, MapsByName, SocketMap, Xsk};

/// Destination address (IPv4 as `::ffff:a.b.c.d`) and port in network byte order, two zeros.
type PortKey = [u8; 20];

/// Who receives what is for an address and port (eight bytes), and the frames' MAC address, two zeros, and VLAN tags (protocol and
/// number): the inner one, and the outer one, zeros for none.
type PortOwner = [u8; 24];
/// Where in it the MAC address and the tags are.
pub(crate) const MAC: i16 = 8;
pub(crate) const INNER: i16 = 16;
pub(crate) const OUTER: i16 = 20;

/// The address and port that most of its datagrams are to ([`PortKey`]), whether it wants stamps, and what `ports` says of the
/// address and port.
type QueueOwner = [u8; 48];
/// Where in it the wish for stamps is: four bytes, zero for none.
pub(crate) const STAMPS: i16 = 20;
/// Where in it is the entry of `ports`; before that is known, without a MAC address.
pub(crate) const OWNER: i16 = 24;

/// The maps of the program.
#[derive(Debug)]
pub(crate) struct Maps {
    /// To whom datagrams to an address and port go.
    pub(crate) ports: HashMap<PortKey, PortOwner>,
    /// Who receives from a queue.
    pub(crate) owners: ArrayMap<QueueOwner>,
    /// The socket of a queue.
    pub(crate) sockets: SocketMap,
    /// Index 0: first fragments dropped.
    pub(crate) counts: ArrayMap<u64>,
}

/// A driver's hold on the program.
#[derive(Debug)]
pub(crate) struct Filter {
    maps: Maps,
    _link: sys::Link,
    generic: bool,
    /// Distinguishes drivers; never 0.
    owner: u64,
    /// Our entries of `ports`.
    keys: BTreeMap<PortKey, PortOwner>,
    /// Our queues, and what the program knows of them.
    queues: Vec<(u32, QueueOwner)>,
}

/// Name of the program, and its version: programs of other versions are not shared.
const NAME: &str = "srd_xdp_4";
const PORTS: &str = "srd_ports";
const OWNERS: &str = "srd_owners";
const SOCKETS: &str = "srd_sockets";
const COUNTS: &str = "srd_counts";
/// Addresses times ports of all drivers of an interface.
const MAX_PORTS: u32 = 16_384;
/// Queues of an interface that can have a socket.
pub(crate) const MAX_QUEUES: u32 = 256;

/// Attempts while others attach and detach at the same time.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(5);

fn c(name: &str) -> std::ffi::CString {
    std::ffi::CString::new(name).expect("names are constants without zeros")
}

impl Filter {
    /// Attaches the program in the first of `places` that works, or shares the one that is there.
    pub(crate) fn open(
        netlink: &mut Netlink,
        link: &Link,
        places: &[Attached],
        max_len: Option<u32>,
    ) -> Result<Filter, OpenError> {
        let mut refused = None;
        for _ in 0..ATTEMPTS {
            let there = Links::read(netlink).map_err(|e| OpenError::os("read the interfaces", link, e))?;
            let there = there.get(link.index).and_then(|l| l.program);
            let tried = match there {
                Some(program) => share(program, link)?,
                None => attach(link, places, max_len)?,
            };
            match tried {
                Ok((held, maps)) => {
                    let now = Links::read(netlink).map_err(|e| OpenError::os("read the interfaces", link, e))?;
                    let generic = now.get(link.index).is_some_and(|l| l.generic);
                    let owner = getrandom::u64().map_err(|e| OpenError::os("draw a number", link, e.into()))?;
                    let filter = Filter {
                        maps,
                        _link: held,
                        generic,
                        owner: owner | 1,
                        keys: BTreeMap::new(),
                        queues: Vec::new(),
                    };
                    filter.sweep(link.index);
                    return Ok(filter);
                }
                Err(e) => refused = Some(e),
            }
            std::thread::sleep(PAUSE);
        }
        let e = refused.unwrap_or_else(|| io::ErrorKind::TimedOut.into());
        Err(OpenError::os("attach the program", link, e))
    }

    /// Whether the program runs behind the device's driver, on socket buffers.
    pub(crate) fn is_generic(&self) -> bool {
        self.generic
    }

    /// Packets of our ports that come in by this queue go to the socket, which is bound to it, with stamps, once it is known
    /// what [they are](Self::receive_at); those to `local` soonest.
    pub(crate) fn add_queue(&mut self, queue: u32, socket: &Xsk, local: SocketAddr) -> io::Result<()> {
        use std::os::fd::AsFd;
        let mut value: QueueOwner = [0; 48];
        value[..20].copy_from_slice(&key(local.ip(), local.port()));
        value[STAMPS as usize] = 1;
        value[OWNER as usize..][..8].copy_from_slice(&self.owner.to_ne_bytes());
        self.maps.owners.set(queue, &value)?;
        self.queues.push((queue, value));
        self.maps.sockets.set(queue, socket.as_fd())
    }

    /// Whether packets that come in by our queues are stamped.
    pub(crate) fn set_stamps(&mut self, wanted: bool) -> io::Result<()> {
        self.queues.iter_mut().try_for_each(|(queue, value)| {
            value[STAMPS as usize] = wanted.into();
            self.maps.owners.set(*queue, value)
        })
    }

    /// Takes datagrams to `local`, or to its port at all addresses of the interface if it names none, and no others any more.
    pub(crate) fn receive_at(&mut self, local: SocketAddr, links: &Links, interface: u32) -> io::Result<()> {
        let (ip, port) = (local.ip(), local.port());
        let mut wanted = BTreeMap::new();
        if !ip.is_unspecified() {
            // Its address may be another interface's.
            let mac = links.get(interface).map_or([0; 6], |link| link.mac);
            wanted.insert(key(ip, port), port_owner(self.owner, &Door { mac, tags: ArrayVec::new() }));
        }
        for (own, door) in links.addresses(interface) {
            if own == ip || ip.is_unspecified() && own.is_ipv4() == ip.is_ipv4() {
                wanted.insert(key(own, port), port_owner(self.owner, &door));
            }
        }
        for gone in self.keys.keys().filter(|key| !wanted.contains_key(*key)) {
            self.forget(gone);
        }
        for (key, value) in wanted.iter().filter(|(key, value)| self.keys.get(*key) != Some(value)) {
            self.maps.ports.set(key, value)?;
        }
        for (queue, value) in &mut self.queues {
            let (at, entry) = value.split_at_mut(OWNER as usize);
            if let Some(wanted) = at.first_chunk().and_then(|key: &PortKey| wanted.get(key))
                && entry != wanted
            {
                entry.copy_from_slice(wanted);
                self.maps.owners.set(*queue, value)?;
            }
        }
        self.keys = wanted;
        Ok(())
    }

    /// First fragments that were dropped at this interface, for all drivers together.
    pub(crate) fn fragments(&self) -> u64 {
        self.maps.counts.get(0).unwrap_or(0)
    }

    /// Removes an entry, unless somebody else has it by now.
    fn forget(&self, key: &PortKey) {
        if self.maps.ports.get(key).is_ok_and(|value| value[..8] == self.owner.to_ne_bytes()) {
            // If it is gone already, so much the better.
            let _ = self.maps.ports.remove(key);
        }
    }

    /// Removes entries of drivers that were killed: nobody holds their UDP port any more.
    fn sweep(&self, interface: u32) {
        let mut keys = Vec::new();
        while keys.len() < MAX_PORTS as usize
            && let Ok(key) = self.maps.ports.key_after(keys.last())
        {
            keys.push(key);
        }
        for key in keys.iter().filter(|key| !self.keys.contains_key(*key)) {
            if UdpSocket::bind(address(key, interface)).is_ok() {
                let _ = self.maps.ports.remove(key);
            }
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        for key in self.keys.keys() {
            self.forget(key);
        }
    }
}

/// The inner error is worth another attempt.
type Tried = Result<(sys::Link, Maps), io::Error>;

/// The maps of the program that is there; it has to be ours. The inner error is worth another attempt.
pub(crate) fn named(program: u32, link: &Link) -> Result<io::Result<MapsByName>, OpenError> {
    match sys::program_maps(program) {
        Ok((found, maps)) if found == NAME => Ok(Ok(maps)),
        Ok((found, _)) => Err(OpenError::Foreign { interface: link.name.clone(), program: found, id: program }),
        Err(e) => sorry(link, e).map(Err),
    }
}

/// Sorts why a program that is there cannot be joined.
fn sorry(link: &Link, e: io::Error) -> Result<io::Error, OpenError> {
    match e.raw_os_error() {
        Some(libc::EPERM) => Err(OpenError::NotShared { interface: link.name.clone() }),
        _ => Ok(e),
    }
}

fn share(program: u32, link: &Link) -> Result<Tried, OpenError> {
    let name = link.name.clone();
    let mut maps = match named(program, link)? {
        Ok(maps) => maps,
        Err(e) => return Ok(Err(e)),
    };
    let held = match sys::find_link(program) {
        Ok(held) => held,
        Err(e) => return sorry(link, e).map(Err),
    };
    let mut take = |name: &str| {
        let at = maps.iter().position(|(found, _)| found == name)?;
        Some(maps.swap_remove(at).1)
    };
    let found = (|| {
        Some(Maps {
            ports: take(PORTS)?.into_hash()?,
            owners: take(OWNERS)?.into_array()?,
            sockets: take(SOCKETS)?.into_sockets()?,
            counts: take(COUNTS)?.into_array()?,
        })
    })();
    match found {
        Some(maps) => Ok(Ok((held, maps))),
        None => Err(OpenError::Foreign { interface: name, program: found_name(), id: program }),
    }
}

fn found_name() -> String {
    format!("{NAME} with other maps")
}

/// The program, attached nowhere, and its maps.
pub(crate) fn load(link: &Link, max_len: Option<u32>) -> Result<(Loaded, Maps), OpenError> {
    let os = |what| move |e| OpenError::os(what, link, e);
    let maps = Maps {
        ports: HashMap::create(&c(PORTS), MAX_PORTS).map_err(os("create a map"))?,
        owners: ArrayMap::create(&c(OWNERS), MAX_QUEUES).map_err(os("create a map"))?,
        sockets: SocketMap::create(&c(SOCKETS), MAX_QUEUES).map_err(os("create a map of sockets"))?,
        counts: ArrayMap::create(&c(COUNTS), 1).map_err(os("create a map"))?,
    };
    let program = sys::load(&c(NAME), &assemble(&maps, max_len)).map_err(os("load the XDP program"))?;
    Ok((program, maps))
}

fn attach(link: &Link, places: &[Attached], max_len: Option<u32>) -> Result<Tried, OpenError> {
    let (program, maps) = load(link, max_len)?;
    let mut refused = None;
    for &place in places {
        match sys::attach(&program, link.index, place) {
            Ok(held) => return Ok(Ok((held, maps))),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Ok(Err(e)),
            Err(e) => refused = Some(e),
        }
    }
    let e = refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
    Err(OpenError::os("attach the XDP program", link, e))
}

fn key(ip: IpAddr, port: u16) -> PortKey {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut key = [0; 20];
    key[..16].copy_from_slice(&ip.octets());
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key
}

fn port_owner(owner: u64, door: &Door) -> PortOwner {
    let mut value = [0; 24];
    value[..8].copy_from_slice(&owner.to_ne_bytes());
    value[MAC as usize..][..6].copy_from_slice(&door.mac);
    for (at, tag) in [INNER, OUTER].into_iter().zip(door.tags.iter().rev()) {
        value[at as usize..][..4].copy_from_slice(tag);
    }
    value
}

fn address(key: &PortKey, interface: u32) -> SocketAddr {
    let ip = Ipv6Addr::from(*key.first_chunk::<16>().expect("keys are longer"));
    let port = u16::from_be_bytes([key[16], key[17]]);
    match ip.to_ipv4_mapped() {
        Some(ip) => (ip, port).into(),
        None => SocketAddrV6::new(ip, port, 0, if ip.is_unicast_link_local() { interface } else { 0 }).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_address_and_port() {
        for text in ["192.0.2.7:4791", "[2001:db8::1]:65535", "[fe80::1%7]:1"] {
            let addr: SocketAddr = text.parse().expect("an address");
            assert_eq!(address(&key(addr.ip(), addr.port()), 7), addr);
        }
    }
}
