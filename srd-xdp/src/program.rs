//! The XDP program: what it takes, and what it leaves to the kernel.
//!
//! It takes whole UDP datagrams whose destination address and port are in the map `ports` with an owner, when the queue
//! they came in by belongs to the same owner, and the frame is for the interface that has the address; they go to that
//! queue's socket. The first fragment of such a datagram is dropped and counted, so that the datagram never comes to be.
//! Everything else goes to the kernel's stack as if the program were not there: ARP, ICMP, TCP, other ports, other hosts'
//! addresses, and our datagrams on a queue without a socket of ours (there a UDP socket of the owner receives them).
//!
//! A frame is for an interface if it has its MAC address, and no VLAN tags but its own. It may lack them, or the outer one:
//! devices take tags off.
//!
//! If the owner wants it ([`Stamping`](crate::stamping::Stamping)), what it takes is stamped with the time of arrival, in
//! place of the hardware addresses, which have done their work.
//!
//! Up to two VLAN tags, IPv4 with options, IPv6 without extension headers.

use std::os::fd::AsFd;

use crate::asm::{Alu, Assembler, Helper, If, Reg, Width};
use crate::filter::{INNER, MAC, Maps, OUTER, OWNER, STAMPS};
use crate::sys::Insn;

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;

// Fields of `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_QUEUE: i16 = 16;

/// Says that there is a stamp. It follows the nanoseconds of `CLOCK_MONOTONIC`, 8 bytes, both in the byte order of the host.
const STAMP_MARK: i32 = 0x5352_4421;

// On the stack: the key of `ports` (20 bytes, see `PortKey`), an index, and the tags of the frame.
const KEY: i16 = -24;
const KEY_PORT: i16 = KEY + 16;
const INDEX: i16 = -32;
const FRAME_INNER: i16 = -36;
const FRAME_OUTER: i16 = -40;

/// In r7, instead of whether to stamp: a fragment.
const FRAGMENT: i32 = 2;

const UDP: i32 = 17;
const FRAGMENT_HEADER: i32 = 44;

/// A 16-bit number of a packet as a load of two bytes sees it.
const fn net(n: u16) -> i32 {
    n.to_be() as i32
}

/// Protocol and number of a VLAN tag as a load sees it, without its priority; and the number alone.
const TAG_MASK: i32 = i32::from_ne_bytes([0xff, 0xff, 0x0f, 0xff]);
const NUMBER_MASK: i32 = i32::from_ne_bytes([0, 0, 0x0f, 0xff]);

/// Length of the Ethernet header and of a VLAN tag.
const ETHERNET: i32 = 14;
const TAG: i32 = 4;

/// The program for these maps. Packets longer than `max_len` go to the kernel, which can hand them over in one piece.
pub(crate) fn assemble(maps: &Maps, max_len: Option<u32>) -> Vec<Insn> {
    let mut a = Assembler::default();
    // r9: context. r6: packet. r3: its end. r4: the header that is looked at.
    a.alu(Alu::Mov, R9, R1);
    if let Some(max) = max_len {
        a.call(Helper::BuffLen);
        a.jump_if_imm(R0, If::Gt, max as i32, "pass");
    }
    a.load(Width::Word, R6, R9, MD_DATA);
    a.load(Width::Word, R3, R9, MD_DATA_END);
    a.alu(Alu::Mov, R4, R6);
    a.alu_imm(Alu::Add, R4, ETHERNET);
    a.jump_if(R4, If::Gt, R3, "pass");
    a.load(Width::Half, R5, R6, 12);
    a.store_imm(Width::Double, R10, FRAME_OUTER, 0);
    for (tag, noted, next) in [("tag 1", "noted 1", "after 1"), ("tag 2", "noted 2", "after 2")] {
        a.jump_if_imm(R5, If::Eq, net(0x8100), tag);
        a.jump_if_imm(R5, If::Ne, net(0x88a8), next);
        a.label(tag);
        a.alu_imm(Alu::Add, R4, TAG);
        a.jump_if(R4, If::Gt, R3, "pass");
        a.load(Width::Word, R0, R4, -6);
        a.alu_imm(Alu::And, R0, TAG_MASK);
        // Number 0 says that there is only a priority.
        a.alu(Alu::Mov, R1, R0);
        a.alu_imm(Alu::And, R1, NUMBER_MASK);
        a.jump_if_imm(R1, If::Eq, 0, noted);
        a.load(Width::Word, R1, R10, FRAME_INNER);
        a.store(Width::Word, R10, FRAME_OUTER, R1);
        a.store(Width::Word, R10, FRAME_INNER, R0);
        a.label(noted);
        a.load(Width::Half, R5, R4, -2);
        a.label(next);
    }
    a.jump_if_imm(R5, If::Eq, net(0x0800), "v4");
    a.jump_if_imm(R5, If::Eq, net(0x86dd), "v6");
    a.jump("pass");
    v4(&mut a);
    v6(&mut a);
    udp(&mut a, maps);
    a.finish()
}

/// Writes the destination to the key, sets r4 to the UDP header, and r7 to whether this is a (first) fragment.
fn v4(a: &mut Assembler) {
    a.label("v4");
    a.alu(Alu::Mov, R0, R4);
    a.alu_imm(Alu::Add, R0, 20);
    a.jump_if(R0, If::Gt, R3, "pass");
    a.load(Width::Byte, R1, R4, 9);
    a.jump_if_imm(R1, If::Ne, UDP, "pass");
    a.load(Width::Byte, R0, R4, 0);
    a.load(Width::Half, R7, R4, 6);
    a.alu(Alu::Mov, R1, R7);
    a.alu_imm(Alu::And, R1, net(0x1fff));
    a.jump_if_imm(R1, If::Ne, 0, "pass");
    a.alu_imm(Alu::And, R7, net(0x2000));
    // ::ffff:a.b.c.d
    a.store_imm(Width::Double, R10, KEY, 0);
    a.store_imm(Width::Word, R10, KEY + 8, 0x0000_ffff_u32.to_be() as i32);
    a.load(Width::Word, R1, R4, 16);
    a.store(Width::Word, R10, KEY + 12, R1);
    // One branch per header length: without CAP_PERFMON the verifier permits no variable distance.
    const WORDS: [&str; 11] = ["5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];
    for (version_words, words) in (0x45..).zip(WORDS) {
        a.jump_if_imm(R0, If::Eq, version_words, words);
    }
    a.jump("pass");
    for (bytes, words) in (20..).step_by(4).zip(WORDS) {
        a.label(words);
        a.alu_imm(Alu::Add, R4, bytes);
        a.jump("udp");
    }
}

fn v6(a: &mut Assembler) {
    a.label("v6");
    a.alu(Alu::Mov, R0, R4);
    a.alu_imm(Alu::Add, R0, 40);
    a.jump_if(R0, If::Gt, R3, "pass");
    for word in 0..4 {
        a.load(Width::Word, R1, R4, 24 + 4 * word);
        a.store(Width::Word, R10, KEY + 4 * word, R1);
    }
    a.load(Width::Byte, R1, R4, 6);
    a.alu_imm(Alu::Add, R4, 40);
    a.alu_imm(Alu::Mov, R7, 0);
    a.jump_if_imm(R1, If::Eq, UDP, "udp");
    a.jump_if_imm(R1, If::Ne, FRAGMENT_HEADER, "pass");
    a.alu(Alu::Mov, R0, R4);
    a.alu_imm(Alu::Add, R0, 8);
    a.jump_if(R0, If::Gt, R3, "pass");
    a.load(Width::Byte, R1, R4, 0);
    a.jump_if_imm(R1, If::Ne, UDP, "pass");
    a.load(Width::Half, R1, R4, 2);
    a.alu_imm(Alu::And, R1, net(0xfff8));
    a.jump_if_imm(R1, If::Ne, 0, "pass");
    a.alu_imm(Alu::Mov, R7, 1);
    a.alu_imm(Alu::Add, R4, 8);
    a.jump("udp");
}

fn udp(a: &mut Assembler, maps: &Maps) {
    a.label("udp");
    a.alu(Alu::Mov, R0, R4);
    a.alu_imm(Alu::Add, R0, 8);
    a.jump_if(R0, If::Gt, R3, "pass");
    a.load(Width::Half, R1, R4, 2);
    a.store(Width::Half, R10, KEY_PORT, R1);
    a.store_imm(Width::Half, R10, KEY_PORT + 2, 0);
    a.jump_if_imm(R7, If::Ne, 0, "fragment");
    a.load(Width::Word, R1, R9, MD_QUEUE);
    a.store(Width::Word, R10, INDEX, R1);
    lookup(a, maps.owners.as_fd(), INDEX);
    a.load(Width::Double, R8, R0, OWNER);
    a.load(Width::Word, R7, R0, STAMPS);
    // Most packets are for the address that the queue's owner names: to know that needs no hash. Parts as they were stored,
    // or the loads would wait for the stores.
    for part in 0..4 {
        a.load(Width::Word, R1, R0, 4 * part);
        a.load(Width::Word, R2, R10, KEY + 4 * part);
        a.jump_if(R1, If::Ne, R2, "another");
    }
    a.load(Width::Half, R1, R0, 16);
    a.load(Width::Half, R2, R10, KEY_PORT);
    a.jump_if(R1, If::Ne, R2, "another");
    a.alu_imm(Alu::Add, R0, OWNER.into());
    a.jump("whose");
    a.label("another");
    lookup(a, maps.ports.as_fd(), KEY);
    a.load(Width::Double, R1, R0, 0);
    a.jump_if(R1, If::Ne, R8, "pass");

    // r0: the entry of `ports`.
    a.label("whose");
    for (width, at) in [(Width::Word, 0), (Width::Half, 4)] {
        a.load(width, R1, R0, MAC + at);
        a.load(width, R2, R6, at);
        a.jump_if(R1, If::Ne, R2, "pass");
    }
    for (of_frame, wanted) in [(FRAME_INNER, INNER), (FRAME_OUTER, OUTER)] {
        a.load(Width::Word, R1, R10, of_frame);
        a.jump_if_imm(R1, If::Eq, 0, "ours");
        a.load(Width::Word, R2, R0, wanted);
        a.jump_if(R1, If::Ne, R2, "pass");
    }
    a.label("ours");
    a.jump_if_imm(R7, If::Eq, FRAGMENT, "drop");
    a.map(R1, maps.sockets.as_fd());
    a.load(Width::Word, R2, R9, MD_QUEUE);
    a.alu_imm(Alu::Mov, R3, XDP_PASS);
    a.call(Helper::RedirectMap);
    // What goes to the kernel, as the socket is gone, stays as it is.
    a.jump_if_imm(R0, If::Ne, XDP_REDIRECT, "unstamped");
    a.jump_if_imm(R7, If::Eq, 0, "unstamped");
    a.call(Helper::KtimeNs);
    a.store(Width::Double, R6, 0, R0);
    a.store_imm(Width::Word, R6, 8, STAMP_MARK);
    a.alu_imm(Alu::Mov, R0, XDP_REDIRECT);
    a.label("unstamped");
    a.exit();

    a.label("fragment");
    lookup(a, maps.ports.as_fd(), KEY);
    a.alu_imm(Alu::Mov, R7, FRAGMENT);
    a.jump("whose");
    a.label("drop");
    a.store_imm(Width::Word, R10, INDEX, 0);
    lookup(a, maps.counts.as_fd(), INDEX);
    a.alu_imm(Alu::Mov, R1, 1);
    a.atomic_add(R0, R1);
    a.alu_imm(Alu::Mov, R0, XDP_DROP);
    a.exit();

    a.label("pass");
    a.alu_imm(Alu::Mov, R0, XDP_PASS);
    a.exit();
}

/// The time of a stamp, if the frame has one.
pub(crate) fn read_stamp(frame: &[u8]) -> Option<u64> {
    let (time, rest) = frame.split_first_chunk()?;
    (*rest.first_chunk()? == STAMP_MARK.to_ne_bytes()).then_some(u64::from_ne_bytes(*time))
}

/// r0 = the value of the map at a key on the stack; without one, the packet goes to the kernel.
fn lookup(a: &mut Assembler, map: std::os::fd::BorrowedFd<'_>, key: i16) {
    a.map(R1, map);
    a.alu(Alu::Mov, R2, R10);
    a.alu_imm(Alu::Add, R2, key.into());
    a.call(Helper::MapLookup);
    a.jump_if_imm(R0, If::Eq, 0, "pass");
}
