//! Odd and hostile frames, put on the cable as they are: none disturbs the driver, none of the bad ones gets through.

mod common;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use common::{PATIENCE, Side, bed, options, xdp_at};
use srd_core::Span;
use srd_xdp::XdpDriver;
use testbed::{Family, Host, Pair};

/// A socket that puts frames on the cable of a host.
struct Wire {
    socket: OwnedFd,
    index: u32,
}

impl Wire {
    fn open(host: &Host) -> Wire {
        host.enter(|| {
            let index = nix::net::if_::if_nametoindex("eth0").expect("the cable");
            // SAFETY: socket takes no pointers.
            let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            // SAFETY: the kernel has just returned this open descriptor, so nobody else owns it.
            Wire { socket: unsafe { OwnedFd::from_raw_fd(fd) }, index }
        })
        .expect("the host is there")
    }

    fn put(&self, frame: &[u8]) {
        // SAFETY: sockaddr_ll is a plain C struct of integers, for which all-zero is a value.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.index as i32;
        let len = size_of_val(&to) as u32;
        // SAFETY: both pointers come from references that outlive the call, with their true lengths.
        let sent = unsafe {
            libc::sendto(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), len)
        };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

fn mac(host: &Host) -> [u8; 6] {
    let out = host.command("cat").arg("/sys/class/net/eth0/address").output().expect("cat");
    let text = String::from_utf8(out.stdout).expect("text");
    let bytes: Vec<u8> = text.trim().split(':').map(|b| u8::from_str_radix(b, 16).expect("hexadecimal")).collect();
    bytes.try_into().expect("six bytes")
}

fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !sum as u16
}

/// A frame in the making, by another code than the driver's.
#[derive(Clone)]
struct Craft {
    macs: [[u8; 6]; 2],
    tags: Vec<[u8; 4]>,
    addresses: [IpAddr; 2],
    ports: [u16; 2],
    /// IPv4 options or IPv6 extension headers, with the number of the first.
    extra: Vec<u8>,
    next_header: u8,
    flags_fragment: u16,
    payload: Vec<u8>,
}

impl Craft {
    fn udp(&self) -> Vec<u8> {
        let len = (8 + self.payload.len()) as u16;
        let mut udp: Vec<u8> = [self.ports[0], self.ports[1], len, 0].iter().flat_map(|w| w.to_be_bytes()).collect();
        udp.extend_from_slice(&self.payload);
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let [from, to] = self.addresses.map(octets);
        let sum = checksum(&[&from, &to, &[0, 17], &len.to_be_bytes(), &udp]);
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        udp
    }

    fn link(&self, kind: u16) -> Vec<u8> {
        let mut frame = [self.macs[1], self.macs[0]].concat();
        self.tags.iter().for_each(|tag| frame.extend_from_slice(tag));
        frame.extend_from_slice(&kind.to_be_bytes());
        frame
    }

    /// `edit` changes the IP header before its checksum is computed, and everything behind it.
    fn build(&self, edit: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) -> Vec<u8> {
        let mut udp = self.udp();
        match self.addresses {
            [IpAddr::V4(from), IpAddr::V4(to)] => {
                let len = (20 + self.extra.len() + udp.len()) as u16;
                let mut ip = vec![0x45 + (self.extra.len() / 4) as u8, 2];
                ip.extend_from_slice(&len.to_be_bytes());
                ip.extend_from_slice(&[0, 1]);
                ip.extend_from_slice(&self.flags_fragment.to_be_bytes());
                ip.extend_from_slice(&[64, 17, 0, 0]);
                ip.extend_from_slice(&from.octets());
                ip.extend_from_slice(&to.octets());
                ip.extend_from_slice(&self.extra);
                edit(&mut ip, &mut udp);
                let sum = checksum(&[&ip]);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                [self.link(0x0800), ip, udp].concat()
            }
            [IpAddr::V6(from), IpAddr::V6(to)] => {
                let mut ip = vec![0x60, 0x20, 0, 0];
                ip.extend_from_slice(&((self.extra.len() + udp.len()) as u16).to_be_bytes());
                ip.extend_from_slice(&[self.next_header, 64]);
                ip.extend_from_slice(&from.octets());
                ip.extend_from_slice(&to.octets());
                ip.extend_from_slice(&self.extra);
                edit(&mut ip, &mut udp);
                [self.link(0x86dd), ip, udp].concat()
            }
            _ => unreachable!("one family"),
        }
    }

    fn plain(&self) -> Vec<u8> {
        self.build(|_, _| ())
    }
}

struct Scene {
    bed: Pair,
    wire: Wire,
    victim: Side<XdpDriver>,
    craft: Craft,
}

/// `None` where there are no test beds.
fn scene(family: Family) -> Option<Scene> {
    let bed = bed(Pair::builder().mtu(1500))?;
    let (a, b) = (bed.host(0), bed.host(1));
    // A NIC keeps back what is tagged for VLANs that the host does not have, unless it is to let everything through.
    let open = b.command("ip").args(["link", "set", "eth0", "promisc", "on"]).status();
    assert!(open.is_ok_and(|status| status.success()), "ip link set");
    let victim = xdp_at(b, (b.ip(family), 0).into(), options());
    let craft = Craft {
        macs: [mac(a), mac(b)],
        tags: Vec::new(),
        addresses: [a.ip(family), b.ip(family)],
        ports: [50_000, victim.addr().port()],
        extra: Vec::new(),
        next_header: 17,
        flags_fragment: 0,
        payload: b"a payload of some bytes".to_vec(),
    };
    Some(Scene { wire: Wire::open(a), victim, craft, bed })
}

impl Scene {
    /// What has come through of everything that is on the cable: then a marked datagram follows, and comes last.
    fn arrivals(&mut self) -> Vec<Vec<u8>> {
        let marker = Craft { payload: b"the end".to_vec(), ..self.craft.clone() };
        self.wire.put(&marker.plain());
        let mut got: Vec<Vec<u8>> = Vec::new();
        while got.last().is_none_or(|last| last != b"the end") {
            let next = self.victim.receive_until(1, PATIENCE);
            assert!(!next.is_empty(), "the marker does not arrive");
            got.extend(next.into_iter().map(|(_, bytes)| bytes));
        }
        got.pop();
        got
    }
}

#[test]
fn sound_frames_of_all_kinds_arrive() {
    for family in [Family::V4, Family::V6] {
        let Some(mut scene) = scene(family) else { return };
        let plain = scene.craft.clone();
        let payload = plain.payload.clone();
        let mut kinds = vec![
            ("plain", plain.plain()),
            ("a priority", Craft { tags: vec![[0x81, 0, 0xe0, 0]], ..plain.clone() }.plain()),
            ("two priorities", Craft { tags: vec![[0x88, 0xa8, 0, 0], [0x81, 0, 0x20, 0]], ..plain.clone() }.plain()),
            ("padding", [plain.plain(), vec![0xee; 30]].concat()),
        ];
        if family == Family::V4 {
            for words in 1..=10 {
                // No-operation options, then end of list.
                let extra = [vec![1; 4 * words - 1], vec![0]].concat();
                kinds.push(("options", Craft { extra, ..plain.clone() }.plain()));
            }
            kinds.push(("no checksum", plain.build(|_, udp| udp[6..8].fill(0))));
        }
        for (kind, frame) in kinds {
            let before = scene.victim.stats().rx_datagrams;
            scene.wire.put(&frame);
            assert_eq!(scene.arrivals(), [&payload[..]], "{kind}");
            assert_eq!(scene.victim.stats().rx_datagrams, before + 2, "{kind} by AF_XDP");
        }
        let empty = Craft { payload: vec![], ..plain };
        scene.wire.put(&empty.plain());
        assert_eq!(scene.arrivals(), [b""], "an empty datagram");
    }
}

#[test]
fn bad_frames_do_not_arrive() {
    for family in [Family::V4, Family::V6] {
        let Some(mut scene) = scene(family) else { return };
        let plain = scene.craft.clone();
        let v4 = family == Family::V4;
        let header = if v4 { 20 } else { 40 };
        let mut kinds = vec![
            ("bad UDP checksum", plain.build(|_, udp| udp[6] ^= 0x55)),
            ("changed payload", plain.build(|_, udp| udp[20] ^= 1)),
            ("UDP length beyond the packet", plain.build(|_, udp| udp[4..6].copy_from_slice(&999u16.to_be_bytes()))),
            ("UDP length of 7", plain.build(|_, udp| udp[4..6].copy_from_slice(&7u16.to_be_bytes()))),
            ("UDP length of 0", plain.build(|_, udp| udp[4..6].fill(0))),
            ("source port 0", Craft { ports: [0, plain.ports[1]], ..plain.clone() }.plain()),
            ("another port", Craft { ports: [1, 9], ..plain.clone() }.plain()),
            ("version 5", plain.build(|ip, _| ip[0] = 0x50 | ip[0] & 15)),
            ("cut in the payload", plain.plain()[..14 + header + 8 + 3].to_vec()),
            ("cut in the UDP header", plain.plain()[..14 + header + 5].to_vec()),
            ("cut in the IP header", plain.plain()[..14 + header - 3].to_vec()),
            ("cut in a tag", Craft { tags: vec![[0x81, 0, 0, 9]], ..plain.clone() }.plain()[..16].to_vec()),
            ("three tags", Craft { tags: vec![[0x81, 0, 0, 9]; 3], ..plain.clone() }.plain()),
        ];
        if v4 {
            let packet = |edit: fn(&mut Vec<u8>)| plain.build(|ip, _| edit(ip));
            let mut sum = plain.plain();
            sum[14 + 10] ^= 0x11;
            kinds.extend([
                ("bad header checksum", sum),
                ("header length of 16", packet(|ip| ip[0] = 0x44)),
                ("header length of 60", packet(|ip| ip[0] = 0x4f)),
                ("total length beyond the frame", packet(|ip| ip[2..4].copy_from_slice(&1400u16.to_be_bytes()))),
                ("total length of 19", packet(|ip| ip[2..4].copy_from_slice(&19u16.to_be_bytes()))),
                ("a later fragment", Craft { flags_fragment: 5, ..plain.clone() }.plain()),
            ]);
        } else {
            kinds.extend([
                ("no checksum", plain.build(|_, udp| udp[6..8].fill(0))),
                ("payload length beyond the frame", plain.build(|ip, _| ip[4..6].fill(4))),
                ("payload length of 0", plain.build(|ip, _| ip[4..6].fill(0))),
            ]);
        }
        for (kind, frame) in kinds {
            scene.wire.put(&frame);
            assert_eq!(scene.arrivals(), Vec::<Vec<u8>>::new(), "{kind}");
        }
        let stats = scene.victim.stats();
        assert!(stats.rx_malformed >= 3 && stats.rx_bad_checksums >= 2, "{stats:?}");
    }
}

/// The kernel refuses such senders ('martians'). An answer would go to programs on this host that trust it, or to a crowd.
#[test]
fn frames_from_nobody_on_the_cable_are_refused() {
    for family in [Family::V4, Family::V6] {
        let Some(mut scene) = scene(family) else { return };
        let plain = scene.craft.clone();
        let senders = match family {
            Family::V4 => ["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9", "224.0.0.1", "239.9.9.9", "255.255.255.255"],
            Family::V6 => ["::", "::1", "ff02::1", "ff0e::9", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "ff01::1"],
        };
        let senders = senders.map(|ip| ip.parse().expect("an address"));
        for from in [&senders[..], &[plain.addresses[1]]].concat() {
            let before = scene.victim.stats();
            scene.wire.put(&Craft { addresses: [from, plain.addresses[1]], ..plain.clone() }.plain());
            assert_eq!(scene.arrivals(), Vec::<Vec<u8>>::new(), "from {from}");
            let after = scene.victim.stats();
            assert_eq!(after.rx_malformed, before.rx_malformed + 1, "from {from}");
        }
    }
}

/// What the kernel would not take, or would in another way, is not taken.
#[test]
fn frames_for_others_are_left_alone() {
    for family in [Family::V4, Family::V6] {
        let Some(mut scene) = scene(family) else { return };
        let plain = scene.craft.clone();
        let [from, mut to] = plain.macs;
        let mut first = to;
        to[5] ^= 1;
        first[1] ^= 1;
        let other = Craft { macs: [from, to], ..plain.clone() };
        let kinds = [
            ("another hardware address", other.clone()),
            ("one of which only the end is ours", Craft { macs: [from, first], ..plain.clone() }),
            ("a VLAN that is not ours", Craft { tags: vec![[0x81, 0, 0, 9]], ..plain.clone() }),
            ("one in another", Craft { tags: vec![[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 8]], ..plain.clone() }),
            ("a fragment for another", Craft { flags_fragment: 0x2000, ..other.clone() }),
        ];
        for (kind, craft) in &kinds {
            let before = scene.victim.stats().rx_datagrams;
            if craft.flags_fragment == 0 || family == Family::V4 {
                scene.wire.put(&craft.plain());
            }
            assert_eq!(scene.arrivals(), Vec::<Vec<u8>>::new(), "{kind}");
            let stats = scene.victim.stats();
            assert_eq!((stats.rx_datagrams, stats.rx_fragments), (before + 1, 0), "{kind}: only the marker");
        }
        // The kernel takes what is for everybody on the cable.
        scene.wire.put(&Craft { macs: [from, [0xff; 6]], ..plain.clone() }.plain());
        let got = scene.victim.receive(1).remove(0).1;
        assert_eq!((got, scene.victim.stats().udp.rx_datagrams), (plain.payload.clone(), 1), "by the kernel");
        // The interface gets the other address.
        let text = to.map(|b| format!("{b:02x}")).join(":");
        let set = ["link", "set", "eth0", "address", &text];
        assert!(scene.bed.host(1).command("ip").args(set).status().is_ok_and(|status| status.success()), "ip link set");
        scene.victim.receive_until(1, Span::from_millis(5));
        scene.craft.macs = other.macs;
        let before = scene.victim.stats().rx_datagrams;
        scene.wire.put(&plain.plain());
        assert_eq!(scene.arrivals(), Vec::<Vec<u8>>::new(), "for the old one");
        scene.wire.put(&other.plain());
        assert_eq!(scene.arrivals(), [&plain.payload[..]], "for the new one");
        assert_eq!(scene.victim.stats().rx_datagrams, before + 3, "by AF_XDP");
    }
}

#[test]
fn fragments_are_refused_and_counted() {
    for family in [Family::V4, Family::V6] {
        let Some(mut scene) = scene(family) else { return };
        let plain = Craft { payload: (0..64).collect(), ..scene.craft.clone() };
        let whole = plain.plain();
        let (first, second) = if family == Family::V4 {
            let part = |flags: u16, udp: std::ops::Range<usize>| {
                Craft { flags_fragment: flags, ..plain.clone() }.build(|ip, all| {
                    ip[2..4].copy_from_slice(&(20 + udp.len() as u16).to_be_bytes());
                    *all = all[udp].to_vec();
                })
            };
            (part(0x2000, 0..40), part(5, 40..72))
        } else {
            let part = |more: u16, udp: std::ops::Range<usize>| {
                let offset = (udp.start as u16) | more;
                let [a, b] = offset.to_be_bytes();
                let extra = vec![17, 0, a, b, 0, 0, 0, 77];
                Craft { extra, next_header: 44, ..plain.clone() }.build(|ip, all| {
                    ip[4..6].copy_from_slice(&(8 + udp.len() as u16).to_be_bytes());
                    *all = all[udp].to_vec();
                })
            };
            (part(1, 0..40), part(0, 40..72))
        };
        scene.wire.put(&first);
        scene.wire.put(&second);
        assert_eq!(scene.arrivals(), Vec::<Vec<u8>>::new());
        assert_eq!(scene.victim.stats().rx_fragments, 1);
        scene.wire.put(&whole);
        assert_eq!(scene.arrivals(), [&plain.payload[..]]);
    }
}

#[test]
fn mutated_frames_never_change_a_payload() {
    for family in [Family::V4, Family::V6] {
        let Some(mut scene) = scene(family) else { return };
        let payload = scene.craft.payload.clone();
        let frame = scene.craft.plain();
        let mut state = 42u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut arrived = 0;
        for _ in 0..100 {
            for _ in 0..50 {
                let mut frame = frame.clone();
                // Behind the addresses: a frame to somebody else is not ours to judge.
                let at = 12 + random(frame.len() - 12);
                frame[at] = random(256) as u8;
                scene.wire.put(&frame);
            }
            let got = scene.arrivals();
            arrived += got.len();
            assert!(got.iter().all(|g| *g == payload), "a changed payload arrived: {got:?}");
        }
        assert!(arrived > 0 && arrived < 5000, "{arrived} of 5000 arrived");
        assert!(scene.victim.receive_until(1, Span::from_millis(1)).is_empty());
    }
}
