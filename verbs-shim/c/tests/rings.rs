//! What programs write into rings, whatever it is.

#[path = "../src/rings/layout.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part is of interest here")]
mod layout;
#[path = "../../../srd-core/tests/support/repeatable.rs"]
mod repeatable;

use layout::{CqDoorbell, Receive, Request};
use proptest::prelude::*;
use verbs_shim::card::UNKNOWN_AH;
use verbs_shim::{Completion, Gid, Opcode, SendData, SendOp, Status};

/// A send of two buffers with immediate data.
fn send() -> Vec<u8> {
    let mut wqe = vec![0; layout::TX];
    wqe[..4].copy_from_slice(&[0x34, 0x12, 0x80 | 0x10, 0x1d]);
    wqe[4..8].copy_from_slice(&[7, 0, 2, 0]);
    wqe[8..12].copy_from_slice(&0xcafe_u32.to_ne_bytes());
    wqe[12..14].copy_from_slice(&[9, 0]);
    wqe[16..20].copy_from_slice(&0x1111_2222_u32.to_ne_bytes());
    wqe[26..32].copy_from_slice(&[1, 0, 2, 0, 3, 0]);
    for (at, addr) in [(32, 0x1_0000_0008_u64), (48, 0x20)] {
        wqe[at..at + 8].copy_from_slice(&[100, 0, 0, 0, 5, 0, 0, 0xff]);
        wqe[at + 8..at + 16].copy_from_slice(&addr.to_ne_bytes());
    }
    wqe
}

#[test]
fn a_request_is_read_field_by_field() {
    let wqe = send();
    let request = Request::read(&wqe, true).expect("it is well formed");
    let wr = request.wr();
    assert_eq!((wr.wr_id, wr.qpn, wr.ah, wr.qkey), (0x0003_0002_0001_1234, 7, 9, 0x1111_2222));
    assert_eq!(wr.op, SendOp::Send { imm: Some(0xcafe) });
    let SendData::Sges(sges) = wr.data else { panic!("{wr:?}") };
    let sges: Vec<_> = sges.iter().map(|s| (s.addr, s.len, s.lkey)).collect();
    assert_eq!(sges, [(0x1_0000_0008, 100, 5), (0x20, 100, 5)], "a key has 24 bits");
    assert_eq!(Request::read(&wqe, false).map_err(|fault| fault.status), Err(Status::QpInternal), "the other phase");
}

#[test]
fn inline_bytes_are_those_that_there_is_room_for() {
    for (bytes, most) in [(layout::TX, 32), (layout::WIDE_TX, 80)] {
        let mut wqe = send();
        wqe.resize(bytes, 0);
        wqe[2] = 0x80 | 0x20;
        for (len, fits) in [(0, true), (most, true), (most + 1, false), (0xffff, false)] {
            wqe[6..8].copy_from_slice(&(len as u16).to_ne_bytes());
            match Request::read(&wqe, true) {
                Ok(request) => assert!(fits && matches!(request.wr().data, SendData::Inline(b) if b.len() == len)),
                Err(fault) => assert!(!fits && fault.status == Status::LocalBadLength),
            }
        }
    }
}

/// Of a receive buffer: address, length, id, and what else its last word says beside the key.
fn buffer(id: u16, ctrl: u32) -> [u8; layout::RX] {
    let mut entry = [0; layout::RX];
    entry[..8].copy_from_slice(&0x1_0000_0008_u64.to_ne_bytes());
    entry[8..10].copy_from_slice(&id.to_ne_bytes());
    entry[10..12].copy_from_slice(&100_u16.to_ne_bytes());
    entry[12..].copy_from_slice(&(5 | ctrl).to_ne_bytes());
    entry
}

/// rdma-core writes the id and the mark of the first entry into the first one only, libfabric into all.
#[test]
fn a_receive_is_what_either_library_writes() {
    const FIRST: u32 = 1 << 30;
    const LAST: u32 = 1 << 31;
    for (id, ctrl) in [(0, 0), (7, FIRST), (7, 0)] {
        let mut receive = Receive::default();
        assert_eq!(receive.read(&buffer(7, FIRST)), Ok(false));
        assert_eq!(receive.read(&buffer(id, ctrl)), Ok(false));
        assert_eq!(receive.read(&buffer(id, ctrl | LAST)), Ok(true));
        assert_eq!(receive.id, 7);
        assert!(
            receive.sges.len() == 3 && receive.sges.iter().all(|s| (s.addr, s.len, s.lkey) == (0x1_0000_0008, 100, 5))
        );
    }
    assert!(Receive::default().read(&buffer(7, LAST)).is_err(), "nothing begins there");
}

#[test]
fn completions_say_of_each_queue_what_it_has() {
    let sgid = Gid([7; 16]);
    let sent = Completion { wr_id: 0x1122_3344_5566_7788, qpn: 3, opcode: Opcode::RdmaRead, ..Completion::EMPTY };
    let cqe = layout::completion(&Completion { status: Status::Rnr, ..sent });
    assert_eq!(cqe[..4], [0x88, 0x77, 10, 1 << 4 | 1 << 1]);
    assert_eq!(cqe[4..16], [3, 0, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0]);
    let came = Completion { opcode: Opcode::Recv, byte_len: 0x1_0203, src_qpn: 5, sgid, ..sent };
    let cqe = layout::completion(&Completion { ah: UNKNOWN_AH, ..came });
    assert_eq!((cqe[3], &cqe[6..12], &cqe[16..]), (2 << 1, &[3, 2, 0xff, 0xff, 5, 0][..], &[7; 16][..]));
    let known = layout::completion(&Completion { ah: 4, ..came });
    assert_eq!(known[16..], [0; 16], "who has a number needs no address");
    let imm = Completion { opcode: Opcode::RecvRdmaWithImm, imm: Some(1), unsolicited: true, ..came };
    let cqe = layout::completion(&imm);
    assert_eq!((cqe[3], &cqe[16..18]), (1 << 7 | 2 << 4 | 1 << 3 | 2 << 1, &[1, 0][..]));
    for phase in [false, true] {
        let first = u64::from_ne_bytes(*cqe.first_chunk().expect("a word"));
        assert_eq!(layout::with_phase(first, phase).to_ne_bytes()[3] & 1, u8::from(phase));
    }
}

proptest! {
    #![proptest_config(repeatable::repeatable())]

    /// Nothing that stands in a ring makes the device read beyond it, or more than it has room for.
    #[test]
    fn any_request_is_read_or_refused(mut wqe in prop::collection::vec(any::<u8>(), layout::WIDE_TX), wide: bool, plain: bool) {
        if plain {
            // Far enough to be looked at.
            wqe[2] = 0x80 | wqe[2] & 0x3f;
            wqe[3] = 0x1c | wqe[3] & 1;
            let count = u16::from(wqe[6] % 90);
            wqe[6..8].copy_from_slice(&count.to_ne_bytes());
        }
        let wqe = &wqe[..if wide { layout::WIDE_TX } else { layout::TX }];
        for phase in [false, true] {
            let _ = layout::opcode(wqe);
            match Request::read(wqe, phase) {
                Ok(request) => {
                    prop_assert_eq!(request.wr().wr_id, layout::id(wqe));
                    prop_assert_eq!(wqe[3] & 1 == 1, phase);
                    match request.wr().data {
                        SendData::Sges(sges) => prop_assert!(sges.len() <= 2 && sges.iter().all(|s| s.lkey < 1 << 24)),
                        SendData::Inline(bytes) => {
                            let room = if wide { 80 } else { 32 };
                            prop_assert!(bytes.len() <= room);
                        }
                    }
                }
                Err(fault) => prop_assert_ne!(fault.status, Status::Ok),
            }
        }
    }

    /// A receive ends, one way or the other, after as many entries as it may have.
    #[test]
    fn any_receive_is_read_or_refused(entries in prop::collection::vec(any::<[u8; layout::RX]>(), 8), word: u32) {
        let mut receive = Receive::default();
        let ended = entries.iter().position(|entry| receive.read(entry) != Ok(false));
        prop_assert!(ended.is_some_and(|n| n <= verbs_shim::card::profile::MAX_SGE));
        let doorbell = CqDoorbell::read(word);
        prop_assert_eq!((doorbell.consumed, doorbell.arm), (word as u16, word & 1 << 31 != 0));
    }
}
