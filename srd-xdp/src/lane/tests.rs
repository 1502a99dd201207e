//! Tagged frames over a real cable, sent and received without the VLAN devices that some kernels lack.

use std::net::{IpAddr, SocketAddr};

use srd_core::{SourcePort, Span, Token, TxBatch};
use srd_udp::netlink::Netlink;
use testbed::{Family, Host, Pair};

use super::*;
use crate::filter::Filter;
use crate::net::{Hop, Links};
use crate::sys::Attached;

const MODE: Mode = Mode { zero_copy: false, multi: false };
const PORT: u16 = 4791;
const TAGS: [[u8; 4]; 2] = [[0x88, 0xa8, 0, 5], [0x81, 0, 0x20, 7]];

struct Bytes(Vec<u8>);

impl Gather for Bytes {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.0[offset as usize..][..len]
    }
}

/// The end of the cable on this host.
fn link(netlink: &mut Netlink) -> crate::net::Link {
    let links = Links::read(netlink).expect("interfaces");
    links.choose(IpAddr::from([0, 0, 0, 0]), Some("eth0")).expect("the cable").clone()
}

/// A lane that receives all that is for `at`.
fn receiver(at: SocketAddr) -> (Lane, Filter, [u8; 6], Links) {
    let mut netlink = Netlink::open().expect("netlink");
    let link = link(&mut netlink);
    let mut filter = Filter::open(&mut netlink, &link, &[Attached::Native], None).expect("the program");
    let lane = Lane::open(link.index, 0, 2048, 64, MODE).expect("a socket");
    filter.add_queue(0, lane.socket(), at).expect("the queue");
    // Frames are to be seen as they were sent.
    filter.set_stamps(false).expect("no stamps");
    let links = Links::read(&mut netlink).expect("interfaces");
    filter.receive_at(at, &links, link.index).expect("the port");
    (lane, filter, link.mac, links)
}

/// The next frame, as it is, with what is before it. Bounded in time.
fn next_frame(lane: &mut Lane) -> Vec<u8> {
    for _ in 0..60_000 {
        lane.look();
        if let Some(piece) = lane.xsk.receive() {
            let frame = lane.xsk.bytes(&piece.frame)[piece.offset..][..piece.len].to_vec();
            lane.xsk.fill(piece.frame);
            lane.xsk.release_receive();
            lane.xsk.publish_fill();
            return frame;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("no frame arrives");
}

fn on<R: Send>(host: &Host, what: impl FnOnce() -> R + Send) -> R {
    host.enter(what).expect("the host is there")
}

#[test]
fn tags_are_sent_and_taken() {
    // Where there is no hardware to leave checksums to, the kernel completes them behind the tags.
    for offload in [true, false] {
        for family in [Family::V4, Family::V6] {
            let Some(bed) = Pair::builder().mtu(1500).offload(offload).for_test() else { return };
            let partial = offload && bed.is_virtual();
            let [from, to] = [0, 1].map(|i| bed.host(i).ip(family));
            let to = SocketAddr::new(to, PORT);
            // A NIC keeps back what is tagged for VLANs that the host does not have, unless it is to let everything through.
            let open = bed.host(1).command("ip").args(["link", "set", "eth0", "promisc", "on"]).status();
            assert!(open.is_ok_and(|status| status.success()), "ip link set");
            let (mut receiver, mut filter, to_mac, links) = on(bed.host(1), || receiver(to));
            let (mut sender, from_mac) = on(bed.host(0), || {
                let link = link(&mut Netlink::open().expect("netlink"));
                (Lane::open(link.index, 0, 2048, 64, MODE).expect("a socket"), link.mac)
            });
            let payload = Bytes((0..1000u32).map(|i| (i * i % 251) as u8).collect());
            for count in 0..=2 {
                let tags: ArrayVec<_, 2> = TAGS[2 - count..].iter().copied().collect();
                let mut links = links.clone();
                let index = links.choose(to.ip(), None).expect("the cable").index;
                // Priorities belong to frames.
                let vlans: Vec<[u8; 4]> = tags.iter().map(|&[a, b, c, d]| [a, b, c & 0x0f, d]).collect();
                links.move_to_vlan(to.ip(), index, &vlans);
                filter.receive_at(to, &links, index).expect("the port");
                let hop = Hop { source: from, from_mac, to_mac, tags: tags.clone(), mtu: 1500 };
                let headers = Headers::new(&hop, 50_000, to, true).expect("one family");
                let mut batch = TxBatch::new();
                let mut burst = batch.burst(to, SourcePort(0), 400);
                burst.payload(Token(0), 0, 1000);
                burst.finish();
                for burst in batch.bursts() {
                    sender.send(&headers, &burst, &payload);
                }
                sender.flush();
                for part in payload.0.chunks(400) {
                    let frame = next_frame(&mut receiver);
                    let sent = [&to_mac[..], &from_mac[..], &tags.concat()[..]].concat();
                    assert_eq!(frame[..sent.len()], sent, "{count} tags, {family:?}");
                    let origin = Origin { interface: 1, partial_checksums: partial };
                    let parsed = parse(&frame, origin).expect("a sound frame");
                    assert_eq!((parsed.from, parsed.to), (SocketAddr::new(from, 50_000), to));
                    assert_eq!(&frame[parsed.payload], part);
                    assert_eq!(parsed.partial, partial && sender.socket().completes_checksums());
                }
            }
            // Devices take tags off, the outer one or both. Others say that a frame is for another VLAN.
            let [outer, inner] = TAGS;
            let tagged: [(&[_], bool); 6] = [
                (&[outer], false),
                (&[], true),
                (&[inner, outer], false),
                (&[inner], true),
                (&[[0x81, 0, 0, 5], inner], false),
                (&[outer, inner], true),
            ];
            for (tags, taken) in tagged {
                let tags: ArrayVec<_, 2> = tags.iter().copied().collect();
                let hop = Hop { source: from, from_mac, to_mac, tags: tags.clone(), mtu: 1500 };
                let headers = Headers::new(&hop, 50_000, to, true).expect("one family");
                let mut batch = TxBatch::new();
                let mut burst = batch.burst(to, SourcePort(0), 400);
                burst.inline(b"tagged");
                burst.finish();
                batch.bursts().for_each(|burst| sender.send(&headers, &burst, &payload));
                sender.flush();
                // What is not taken would come before the next one.
                if taken {
                    let sent = [&to_mac[..], &from_mac[..], &tags.concat()[..]].concat();
                    assert_eq!(next_frame(&mut receiver)[..sent.len()], sent, "{tags:?}, {family:?}");
                }
            }
            // The same by the way of all datagrams.
            let now = Time::ZERO + Span::from_secs(1);
            let tags: ArrayVec<_, 2> = TAGS.into_iter().collect();
            let hop = Hop { source: from, from_mac, to_mac, tags, mtu: 1500 };
            let headers = Headers::new(&hop, 50_000, to, true).expect("one family");
            let mut batch = TxBatch::new();
            let mut burst = batch.burst(to, SourcePort(0), 400);
            burst.inline(b"tagged twice");
            burst.finish();
            batch.bursts().for_each(|burst| sender.send(&headers, &burst, &payload));
            sender.flush();
            let mut got = Vec::new();
            for _ in 0..5000 {
                receiver.look();
                let origin = Origin { interface: 1, partial_checksums: partial };
                receiver.recv(origin, &|_: &[u8]| now, &mut |meta, bytes| got.push((*meta, bytes.to_vec())));
                if !got.is_empty() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let [(meta, bytes)] = &got[..] else { panic!("it arrives once, not {} times", got.len()) };
            assert_eq!((meta.from.port(), meta.at, &bytes[..]), (50_000, now, &b"tagged twice"[..]));
        }
    }
}
