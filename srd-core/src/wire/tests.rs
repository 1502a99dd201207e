//! The laws of the wire format: what is encoded decodes to the same value, what is accepted encodes to the same bytes,
//! and nothing else gets through. The golden vectors in `tests/vectors` are for other implementations, too.

use std::path::PathBuf;

use crate::repeatable::repeatable;
use proptest::prelude::*;

use super::frame::{Ack, AckPath, Advice, Refuse, Share};
use super::*;
use crate::seq::Seq;
use crate::time::Span;

/// A frame that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Fragment { message: u32, total: u32, offset: u32, header: Vec<u8>, payload: Vec<u8> },
    Ping,
    Ack { cumulative: u32, newest: u32, advice: (u32, u32), words: Vec<u64>, paths: Vec<(u8, u8, u16, u16)> },
    Refuse { pn: u32, entries: Vec<(u32, Option<u8>)> },
}

/// A packet that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
enum Whole {
    Tracked(DataHeader, Vec<Piece>, usize),
    Untracked(u8, u64, Vec<Piece>),
    Init(Init),
    Retry(Retry),
    Accept(Accept),
    Unknown(Unknown),
    Close(Close),
    Closed(Closed),
}

fn encode_pieces(pieces: &[Piece], out: &mut Vec<u8>) {
    for piece in pieces {
        match piece {
            Piece::Fragment { message, total, offset, header, payload } => {
                write_fragment_head(Seq(*message), *total, *offset, payload.len() as u16, header, out);
                out.put(payload);
            }
            Piece::Ping => write_ping(out),
            Piece::Ack { cumulative, newest, advice, words, paths } => {
                let paths = paths.iter().map(|&(path, ce, behind, residence)| AckPath {
                    path,
                    ce,
                    pn: Seq(newest.wrapping_sub(behind.into())),
                    residence: (residence != u16::MAX).then(|| Span::from_nanos(64 * u64::from(residence))),
                });
                let (cumulative, newest) = (Seq(*cumulative), Seq(*newest));
                let advice = Advice { share: Share(advice.0), start: Share(advice.1) };
                Ack::encode(cumulative, newest, advice, words.iter().copied(), paths, out);
            }
            Piece::Refuse { pn, entries } => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|&(id, status)| (Seq(id), status.map_or(Refusal::NotReady, Refusal::Refused)))
                    .collect();
                Refuse::encode(Seq(*pn), &entries, out);
            }
        }
    }
}

fn decode_pieces(bytes: &[u8], tracked: bool) -> Result<Vec<Piece>, DecodeError> {
    Frames::new(bytes, tracked)
        .map(|frame| {
            Ok(match frame? {
                Frame::Fragment { message, total, offset, header, payload } => Piece::Fragment {
                    message: message.0,
                    total,
                    offset,
                    header: header.to_vec(),
                    payload: payload.to_vec(),
                },
                Frame::Ping => Piece::Ping,
                Frame::Ack(ack) => Piece::Ack {
                    cumulative: ack.cumulative.0,
                    newest: ack.newest.0,
                    advice: (ack.advice.share.0, ack.advice.start.0),
                    words: ack.words().collect(),
                    paths: ack
                        .paths()
                        .map(|p| {
                            let residence = p.residence.map_or(u16::MAX, |r| (r.as_nanos() / 64) as u16);
                            (p.path, p.ce, ack.newest.since(p.pn) as u16, residence)
                        })
                        .collect(),
                },
                Frame::Refuse(refuse) => Piece::Refuse {
                    pn: refuse.pn.0,
                    entries: refuse
                        .entries()
                        .map(|(id, r)| {
                            let status = match r {
                                Refusal::NotReady => None,
                                Refusal::Refused(status) => Some(status),
                            };
                            (id.0, status)
                        })
                        .collect(),
                },
            })
        })
        .collect()
}

fn encode(packet: &Whole) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bits = 0;
    match packet {
        Whole::Tracked(header, pieces, padding) => {
            header.encode(&mut out);
            encode_pieces(pieces, &mut out);
            out.resize(out.len() + padding, 0);
            bits = header.flags;
        }
        Whole::Untracked(flags, cid, pieces) => {
            encode_untracked(*flags, *cid, &mut out);
            encode_pieces(pieces, &mut out);
            bits = *flags;
        }
        Whole::Init(p) => p.encode(&mut out),
        Whole::Retry(p) => p.encode(&mut out),
        Whole::Accept(p) => p.encode(&mut out),
        Whole::Unknown(p) => p.encode(&mut out),
        Whole::Close(p) => p.encode(&mut out),
        Whole::Closed(p) => p.encode(&mut out),
    }
    if bits & flags::CHECKSUM != 0 {
        seal(&mut out);
    }
    out
}

fn seal(out: &mut Vec<u8>) {
    let sum = crc32c::crc32c(out);
    out.put(&sum.to_be_bytes());
}

fn decode(bytes: &[u8]) -> Result<Whole, DecodeError> {
    Ok(match decode_packet(bytes)? {
        Packet::Tracked(header, rest) => {
            let pieces = decode_pieces(rest, true)?;
            let mut again = Vec::new();
            encode_pieces(&pieces, &mut again);
            Whole::Tracked(header, pieces, rest.len() - again.len())
        }
        Packet::Untracked { flags, cid, frames } => Whole::Untracked(flags, cid, decode_pieces(frames, false)?),
        Packet::Init(p) => Whole::Init(p),
        Packet::Retry(p) => Whole::Retry(p),
        Packet::Accept(p) => Whole::Accept(p),
        Packet::Unknown(p) => Whole::Unknown(p),
        Packet::Close(p) => Whole::Close(p),
        Packet::Closed(p) => Whole::Closed(p),
    })
}

/// Numbers with the wrap among them.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), 0..4u32, (u32::MAX - 3)..=u32::MAX]
}

fn fragment() -> impl Strategy<Value = Piece> {
    let header = || prop::collection::vec(any::<u8>(), 0..=crate::MAX_HEADER);
    let whole =
        (number(), header(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(message, header, payload)| {
            Piece::Fragment { message, total: payload.len() as u32, offset: 0, header, payload }
        });
    // Some blocks from somewhere in a longer message, or its end.
    let inner =
        (number(), header(), 0..1000u32, 1..5u32, 1..1000u32).prop_map(|(message, header, at, blocks, more)| {
            let (offset, len) = (at * BLOCK, blocks * BLOCK);
            let payload = (0..len).map(|i| i as u8).collect();
            Piece::Fragment { message, total: offset + len + more, offset, header, payload }
        });
    let end = (number(), header(), 1..1000u32, 1..300u32).prop_map(|(message, header, at, len)| {
        let payload = (0..len).map(|i| i as u8).collect();
        Piece::Fragment { message, total: at * BLOCK + len, offset: at * BLOCK, header, payload }
    });
    prop_oneof![whole, inner, end]
}

fn answer() -> impl Strategy<Value = Piece> {
    let path = (any::<u8>(), any::<u8>(), any::<u16>(), any::<u16>());
    let lists = (prop::collection::vec(any::<u64>(), 0..8), prop::collection::vec(path, 0..6));
    let ack =
        (number(), number(), any::<(u32, u32)>(), lists).prop_map(|(cumulative, newest, advice, (words, paths))| {
            Piece::Ack { cumulative, newest, advice, words, paths }
        });
    let refuse = (number(), prop::collection::vec((number(), any::<Option<u8>>()), 0..8))
        .prop_map(|(pn, entries)| Piece::Refuse { pn, entries });
    prop_oneof![ack, refuse]
}

fn hello() -> impl Strategy<Value = Hello> {
    let window = || (6..=15u32).prop_map(|shift| 1 << shift);
    let sizes = (crate::MIN_DATAGRAM..=u16::MAX, window(), window(), any::<u32>(), 1..=u32::MAX);
    ((any::<u64>(), any::<u64>(), any::<u32>()), sizes, (number(), number(), any::<u32>(), any::<u32>())).prop_map(
        |(
            (cid, incarnation, features),
            (max_datagram, packet_window, message_window, max_message, max_partials),
            (pn, id, us, share),
        )| {
            Hello {
                cid,
                incarnation,
                features,
                max_datagram,
                packet_window,
                message_window,
                max_message,
                max_partials,
                first_pn: Seq(pn),
                first_message: Seq(id),
                max_ack_delay_us: us,
                share: Share(share),
            }
        },
    )
}

fn data_packet() -> impl Strategy<Value = Whole> {
    let header = (0..=flags::ALL, any::<u16>(), any::<u64>(), number(), number(), any::<u16>(), any::<u8>()).prop_map(
        |(flags, span, cid, pn, floor, port, path)| DataHeader {
            flags,
            span,
            cid,
            pn: Seq(pn),
            floor: Seq(floor),
            port,
            path,
        },
    );
    let frame = prop_oneof![3 => fragment(), 1 => answer(), 1 => Just(Piece::Ping)];
    let tracked = (header, prop::collection::vec(frame, 0..6), prop_oneof![Just(0), 1..200usize])
        .prop_map(|(header, pieces, padding)| Whole::Tracked(header, pieces, padding));
    let untracked = (0..=flags::ALL, any::<u64>(), prop::collection::vec(answer(), 0..4))
        .prop_map(|(flags, cid, pieces)| Whole::Untracked(flags, cid, pieces));
    prop_oneof![2 => tracked, 1 => untracked]
}

fn control_packet() -> impl Strategy<Value = Whole> {
    let (id, port) = (any::<u64>, any::<u16>);
    prop_oneof![
        (1..=u16::MAX, id(), hello()).prop_map(|(port, cookie, hello)| Whole::Init(Init { port, cookie, hello })),
        (id(), id()).prop_map(|(to, cookie)| Whole::Retry(Retry { to, cookie })),
        (id(), hello()).prop_map(|(to, hello)| Whole::Accept(Accept { to, hello })),
        (id(), id(), port()).prop_map(|(cid, incarnation, port)| Whole::Unknown(Unknown { cid, incarnation, port })),
        (id(), number(), any::<bool>(), port()).prop_map(|(cid, pn, shutdown, port)| Whole::Close(Close {
            cid,
            next_pn: Seq(pn),
            shutdown,
            port
        })),
        (id(), port()).prop_map(|(cid, port)| Whole::Closed(Closed { cid, port })),
    ]
}

fn packet() -> impl Strategy<Value = Whole> {
    prop_oneof![data_packet(), control_packet()]
}

fn has_checksum(bytes: &[u8]) -> bool {
    bytes[1] & flags::CHECKSUM != 0
}

/// The law for any bytes: nothing panics, and what is accepted encodes to the same bytes.
fn accepted_bytes_are_canonical(bytes: &[u8]) -> Result<(), TestCaseError> {
    let dissected = dissect(bytes);
    match decode(bytes) {
        Ok(packet) => {
            prop_assert_eq!(encode(&packet), bytes);
            prop_assert!(dissected.is_ok());
        }
        Err(why) => prop_assert!(dissected.unwrap_err().to_string().contains(&why.to_string())),
    }
    Ok(())
}

proptest! {
    #![proptest_config(repeatable())]

    #[test]
    fn what_is_encoded_decodes_to_the_same(packet in packet()) {
        let bytes = encode(&packet);
        let decoded = decode(&bytes);
        prop_assert_eq!(decoded.as_ref(), Ok(&packet));
        let line = dissect(&bytes).unwrap();
        prop_assert!(!line.contains('\n'));
    }

    #[test]
    fn truncated_packets_are_refused_or_end_between_frames(packet in packet()) {
        let bytes = encode(&packet);
        for len in 0..bytes.len() {
            let cut = decode(&bytes[..len]);
            if has_checksum(&bytes) {
                prop_assert!(cut.is_err(), "{len} of {} bytes", bytes.len());
                continue;
            }
            // Without a checksum a data packet may end after any frame: the remaining ones are as the sender made them.
            // That the datagram is whole is the business of UDP, and of drivers that must not hand in truncated ones.
            match (cut, &packet) {
                (Ok(Whole::Tracked(header, pieces, _)), Whole::Tracked(h, all, _)) => {
                    prop_assert_eq!(&header, h);
                    prop_assert!(all.starts_with(&pieces));
                }
                (Ok(Whole::Untracked(flags, cid, pieces)), Whole::Untracked(f, c, all)) => {
                    prop_assert_eq!((flags, cid), (*f, *c));
                    prop_assert!(all.starts_with(&pieces));
                }
                (Ok(other), _) => prop_assert!(false, "became {other:?}"),
                (Err(_), _) => {}
            }
        }
    }

    #[test]
    fn flipped_bits_are_noticed_where_there_is_a_checksum(mut packet in packet()) {
        if let Whole::Tracked(DataHeader { flags, .. }, ..) | Whole::Untracked(flags, ..) = &mut packet {
            *flags |= flags::CHECKSUM;
        }
        let bytes = encode(&packet);
        let data = matches!(packet, Whole::Tracked(..) | Whole::Untracked(..));
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let without = bit == 8 && data;
            // The bit that says that there is a checksum cannot be protected by it: a data packet without it is refused
            // by the connection that agreed on checksums.
            prop_assert!(decode_packet(&flipped).is_err() != without, "bit {bit}");
        }
    }

    #[test]
    fn accepted_mutations_encode_to_the_same_bytes(
        packet in packet(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = encode(&packet);
        if has_checksum(&bytes) {
            bytes.truncate(bytes.len() - CHECKSUM_LEN);
        }
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(2 + cut.index(bytes.len() - 1));
        }
        // With the checksum of a sender that means it, so that the rest of the decoder is reached.
        if has_checksum(&bytes) {
            seal(&mut bytes);
        }
        accepted_bytes_are_canonical(&bytes)?;
    }

    #[test]
    fn random_bytes_are_harmless(
        kind in prop::option::of(0..8u8),
        bits in prop::option::of(0..=flags::ALL),
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Some(kind) = kind && !bytes.is_empty() {
            bytes[0] = (VERSION << 4) | kind;
        }
        if let Some(bits) = bits && bytes.len() > 1 {
            bytes[1] = bits;
            if bits & flags::CHECKSUM != 0 {
                seal(&mut bytes);
            }
        }
        accepted_bytes_are_canonical(&bytes)?;
    }
}

fn refused(bytes: &[u8]) -> DecodeError {
    decode(bytes).expect_err("must be refused")
}

/// A tracked packet with these frame bytes.
fn tracked(frames: &[u8]) -> Vec<u8> {
    let mut out = encode(&Whole::Tracked(header(0), Vec::new(), 0));
    out.put(frames);
    out
}

fn header(flags: u8) -> DataHeader {
    DataHeader { flags, span: 3, cid: 0x1122_3344_5566_0002, pn: Seq(1000), floor: Seq(70), port: 4000, path: 5 }
}

#[test]
fn bad_values_are_refused_by_name() {
    let value = DecodeError::Value;
    let part = |len: u16, total: u32, offset: u32| {
        let mut b = vec![2, 0];
        b.put(&len.to_be_bytes());
        b.put(&7u32.to_be_bytes());
        b.put(&total.to_be_bytes());
        b.put(&offset.to_be_bytes());
        b.resize(b.len() + usize::from(len), 9);
        tracked(&b)
    };
    assert_eq!(refused(&part(0, 64, 0)), value("fragment range"), "empty part");
    assert_eq!(refused(&part(64, 64, 0)), value("fragment range"), "a whole message as a part");
    assert_eq!(refused(&part(64, 127, 64)), value("fragment range"), "beyond the end");
    assert_eq!(refused(&part(64, 200, 32)), value("fragment range"), "offset between blocks");
    assert_eq!(refused(&part(65, 200, 0)), value("fragment range"), "odd length inside");
    assert_eq!(refused(&part(128, 4096, u32::MAX - 63)), value("fragment range"), "offset + length overflows");
    assert!(decode(&part(8, 200, 192)).is_ok(), "odd length at the end");
    assert_eq!(refused(&tracked(&[1, 65, 0, 0, 0, 0, 0, 1])), value("header length"));
    assert_eq!(refused(&tracked(&[0, 0, 1])), value("padding"));
    assert_eq!(refused(&tracked(&[6])), DecodeError::FrameType(6));
    assert_eq!(refused(&tracked(&[5, 1, 0, 0, 0, 1, 0, 0, 0, 2, 2, 0])), value("refusal"));
    assert_eq!(refused(&tracked(&[5, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1])), value("refusal"));
    for kind in 0..4 {
        let mut untracked = encode(&Whole::Untracked(0, 1, Vec::new()));
        untracked.put(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(refused(&untracked), DecodeError::FrameType(kind), "not in an untracked packet");
    }
    assert_eq!(refused(&[0x20, 0]), DecodeError::Version(2));
    assert_eq!(refused(&[0x18, 0]), DecodeError::Kind(8));
    assert_eq!(refused(&[0x10, 4]), value("flags"));
    let mut hasty = vec![0x13, 3];
    hasty.resize(18, 0);
    seal(&mut hasty);
    for control in [&[0x12, 0][..], &hasty] {
        assert_eq!(refused(control), value("flags of a control packet"));
    }
    assert_eq!(refused(&[]), DecodeError::Truncated("first byte"));
}

#[test]
fn bad_hellos_are_refused_by_name() {
    let good = golden_hello();
    let with = |change: &dyn Fn(&mut Hello)| {
        let mut hello = good;
        change(&mut hello);
        decode(&encode(&Whole::Init(Init { port: 1, cookie: 0, hello })))
    };
    assert!(with(&|_| ()).is_ok());
    assert!(with(&|h| h.features = u32::MAX).is_ok(), "unknown features are left to later versions");
    assert_eq!(with(&|h| h.max_datagram = 511), Err(DecodeError::Value("max datagram")));
    for window in [0, 32, 63, 65, 65536] {
        assert_eq!(with(&|h| h.packet_window = window), Err(DecodeError::Value("window")));
        assert_eq!(with(&|h| h.message_window = window), Err(DecodeError::Value("window")));
    }
    assert_eq!(with(&|h| h.max_partials = 0), Err(DecodeError::Value("max partials")));
    let portless = Init { port: 0, cookie: 0, hello: good };
    assert_eq!(decode(&encode(&Whole::Init(portless))), Err(DecodeError::Value("port")));
    let mut long = encode(&Whole::Retry(Retry { to: 1, cookie: 2 }));
    long.truncate(18);
    long.push(0);
    seal(&mut long);
    assert_eq!(refused(&long), DecodeError::Value("length"));
    let mut close = encode(&Whole::Close(Close { cid: 1, next_pn: Seq(1), shutdown: true, port: 1 }));
    close.truncate(17);
    close[14] = 2;
    seal(&mut close);
    assert_eq!(refused(&close), DecodeError::Value("shutdown"));
}

fn golden_hello() -> Hello {
    Hello {
        cid: 0x0123_4567_89ab_0001,
        incarnation: 0xfeed_face_cafe_f00d,
        features: features::CHECKSUM,
        max_datagram: 8972,
        packet_window: 4096,
        message_window: 16384,
        max_message: 1 << 30,
        max_partials: 1024,
        first_pn: Seq(u32::MAX),
        first_message: Seq(0x8000_0000),
        max_ack_delay_us: 25,
        share: Share(260_000),
    }
}

/// The golden vectors: file, description, value. `BLESS=1 cargo test -p srd-core golden` writes them.
fn golden() -> Vec<(&'static str, &'static str, Whole)> {
    let hello = golden_hello();
    let whole = |message, text: &str| Piece::Fragment {
        message,
        total: text.len() as u32,
        offset: 0,
        header: vec![0xa1, 0xa2],
        payload: text.as_bytes().to_vec(),
    };
    let part = |offset: u32, len: u32| Piece::Fragment {
        message: 72,
        total: 200,
        offset,
        header: vec![0xb1],
        payload: (offset..offset + len).map(|i| i as u8).collect(),
    };
    let ack = Piece::Ack {
        cumulative: 500,
        newest: 565,
        advice: (12_300_000, 260_000),
        words: vec![0b1101, 0b11],
        paths: vec![(3, 255, 0, 47), (9, 0, 62, u16::MAX)],
    };
    let wrapped = DataHeader { pn: Seq(1), span: 4, floor: Seq(u32::MAX), path: 255, ..header(flags::ACK_NOW) };
    let wrapped_ack = Piece::Ack {
        cumulative: u32::MAX - 1,
        newest: 3,
        advice: (0, 0),
        words: vec![0b11_1010],
        paths: vec![(0, 0, 5, 0), (255, 1, 0, 65534)],
    };
    vec![
        (
            "init",
            "INIT with a cookie; the first packet number and message id are about to wrap.",
            Whole::Init(Init { port: 4000, cookie: 0xc00c_1e00_c00c_1e00, hello }),
        ),
        (
            "init-first",
            "INIT without a cookie, smallest limits.",
            Whole::Init(Init {
                port: 65535,
                cookie: 0,
                hello: Hello {
                    features: 0,
                    max_datagram: 512,
                    packet_window: 64,
                    message_window: 64,
                    max_message: 0,
                    max_partials: 1,
                    max_ack_delay_us: 0,
                    share: Share(0),
                    ..hello
                },
            }),
        ),
        ("retry", "RETRY: a cookie for an INIT that had none.", Whole::Retry(Retry { to: hello.cid, cookie: 77 })),
        (
            "accept",
            "ACCEPT; feature bits that this version does not know are set.",
            Whole::Accept(Accept { to: 9, hello: Hello { features: 0x8000_0002, ..hello } }),
        ),
        (
            "unknown",
            "UNKNOWN: a packet for connection id 0x1122334455660002 met no connection.",
            Whole::Unknown(Unknown { cid: 0x1122_3344_5566_0002, incarnation: 0xfeed_face_cafe_f00d, port: 4000 }),
        ),
        (
            "close-idle",
            "CLOSE of an idle connection.",
            Whole::Close(Close { cid: 1 << 63, next_pn: Seq(u32::MAX), shutdown: false, port: 4000 }),
        ),
        (
            "close-shutdown",
            "CLOSE by an endpoint that shuts down.",
            Whole::Close(Close { cid: 42, next_pn: Seq(0), shutdown: true, port: 1 }),
        ),
        ("closed", "CLOSED.", Whole::Closed(Closed { cid: 42, port: 4000 })),
        (
            "tracked-whole",
            "Two whole messages, the second one empty and without a header, in one packet.",
            Whole::Tracked(
                header(flags::ACK_NOW),
                vec![
                    whole(70, "hello, fabric"),
                    Piece::Fragment { message: 71, total: 0, offset: 0, header: Vec::new(), payload: Vec::new() },
                ],
                0,
            ),
        ),
        (
            "tracked-parts",
            "The end of a message of 200 bytes, then its beginning, then padding.",
            Whole::Tracked(header(0), vec![part(128, 72), part(0, 64)], 7),
        ),
        ("tracked-ping", "A PING, padded.", Whole::Tracked(header(flags::ACK_NOW), vec![Piece::Ping], 12)),
        ("tracked-empty", "No frame at all: acknowledged like a PING.", Whole::Tracked(header(0), Vec::new(), 0)),
        (
            "tracked-checksum",
            "An acknowledgement rides with a message; the packet carries a checksum.",
            Whole::Tracked(header(flags::CHECKSUM), vec![ack.clone(), whole(70, "checked")], 0),
        ),
        (
            "tracked-wrap",
            "Packet numbers and message ids across the wrap: 4294967293 is the oldest unresolved packet.",
            Whole::Tracked(wrapped, vec![wrapped_ack, whole(0, "after"), whole(u32::MAX, "before")], 0),
        ),
        (
            "untracked-ack",
            "Everything before 500 arrived, and 500, 502, 503, 564, 565; two paths have news, one without a time; the share is \
             12.3 GB/s, and 260 MB/s to begin with.",
            Whole::Untracked(0, 0x1122_3344_5566_0002, vec![ack]),
        ),
        (
            "untracked-refuse",
            "Of packet 4294967295 one message met no buffer, one was refused with status 9; then the acknowledgement.",
            Whole::Untracked(
                flags::CHECKSUM,
                0x1122_3344_5566_0002,
                vec![
                    Piece::Refuse { pn: u32::MAX, entries: vec![(u32::MAX, None), (0, Some(9))] },
                    Piece::Ack {
                        cumulative: u32::MAX,
                        newest: u32::MAX - 1,
                        advice: (u32::MAX, u32::MAX),
                        words: Vec::new(),
                        paths: Vec::new(),
                    },
                ],
            ),
        ),
    ]
}

fn vectors() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "vectors"].iter().collect()
}

fn render(about: &str, bytes: &[u8]) -> String {
    let mut text = format!("# {about}\n= {}\n", dissect(bytes).unwrap());
    for line in bytes.chunks(16) {
        let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        text += &hex.join(" ");
        text.push('\n');
    }
    text
}

fn parse(text: &str) -> Vec<u8> {
    let hex = text.lines().filter(|l| !l.starts_with(['#', '=']));
    hex.flat_map(str::split_whitespace).map(|b| u8::from_str_radix(b, 16).expect("hex")).collect()
}

#[test]
fn golden_vectors_hold_both_ways() {
    let mut names: Vec<String> = Vec::new();
    for (name, about, packet) in golden() {
        let path = vectors().join(name).with_extension("txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, render(about, &encode(&packet))).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let bytes = parse(&text);
        assert_eq!(decode(&bytes), Ok(packet.clone()), "{name} decodes to something else");
        assert_eq!(encode(&packet), bytes, "{name} encodes to something else");
        assert_eq!(text, render(about, &bytes), "{name}: its description does not match");
        names.push(format!("{name}.txt"));
    }
    let mut files: Vec<String> =
        std::fs::read_dir(vectors()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    files.retain(|f| f != "README.md");
    names.sort();
    files.sort();
    assert_eq!(names, files, "every vector has a test");
}
