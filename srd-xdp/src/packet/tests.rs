//! What is written can be read, and what cannot be read is refused.

use arrayvec::ArrayVec;

use super::*;

const HERE: Origin = Origin { interface: 7, partial_checksums: false };
const VETH: Origin = Origin { interface: 7, partial_checksums: true };

fn hop(source: IpAddr, tags: &[[u8; 4]]) -> Hop {
    let tags: ArrayVec<_, 2> = tags.iter().copied().collect();
    Hop { source, from_mac: [2, 0, 0, 0, 0, 1], to_mac: [2, 0, 0, 0, 0, 2], tags, mtu: 1500 }
}

const TAGS: [[u8; 4]; 2] = [[0x88, 0xa8, 0, 5], [0x81, 0, 0x0f, 0xff]];

/// Frames of both families with 0 to 2 tags.
fn frames(payload: &[u8], ect: bool) -> Vec<(Vec<u8>, SocketAddr, SocketAddr)> {
    let mut all = Vec::new();
    for (from, to) in [("10.0.0.1", "10.0.0.2:4791"), ("fd00::1", "[fd00::2]:4791")] {
        for tags in 0..=2 {
            let source: IpAddr = from.parse().expect("an address");
            let to: SocketAddr = to.parse().expect("an address");
            let headers = Headers::new(&hop(source, &TAGS[..tags]), 50_000, to, ect).expect("one family");
            let mut frame = vec![0xee; MAX_HEADERS];
            headers.write(&mut frame, payload.len());
            headers.complete(&mut frame, payload.len(), sum(payload));
            frame.truncate(headers.len());
            frame.extend_from_slice(payload);
            all.push((frame, SocketAddr::new(source, 50_000), to));
        }
    }
    all
}

#[test]
fn written_frames_are_read() {
    for len in [0, 1, 2, 63, 64, 1400, 8900] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
        for ect in [false, true] {
            for (frame, from, to) in frames(&payload, ect) {
                let parsed = parse(&frame, HERE).expect("a sound frame");
                assert_eq!((parsed.from, parsed.to, parsed.partial), (from, to, false));
                assert_eq!(parsed.ecn, if ect { Ecn::Ect } else { Ecn::NotEct });
                assert_eq!(&frame[parsed.payload], payload);
                assert_eq!(frame.len() % 2, len % 2, "headers are of even length");
            }
        }
    }
}

#[test]
fn families_do_not_mix() {
    let hop = hop("10.0.0.1".parse().expect("an address"), &[]);
    assert!(Headers::new(&hop, 1, "[fd00::2]:1".parse().expect("an address"), true).is_none());
}

#[test]
fn padding_is_no_payload() {
    for (mut frame, ..) in frames(b"ab", true) {
        frame.resize(90, 0xee);
        let parsed = parse(&frame, HERE).expect("a sound frame");
        assert_eq!(&frame[parsed.payload], b"ab");
    }
}

#[test]
fn every_truncation_is_refused() {
    for (frame, ..) in frames(&[9; 40], true) {
        for len in 0..frame.len() {
            assert!(parse(&frame[..len], VETH).is_err(), "{len} of {} bytes", frame.len());
        }
    }
}

#[test]
fn every_flipped_bit_beyond_ethernet_is_noticed() {
    for (frame, from, to) in frames(&[9; 40], true) {
        for bit in 14 * 8..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // Traffic class, flow label and hop limit of IPv6 are covered by no checksum, nor are tags.
            if let Ok(parsed) = parse(&bad, HERE) {
                assert_eq!((parsed.from, parsed.to, &bad[parsed.payload]), (from, to, &[9; 40][..]), "bit {bit}");
            }
        }
    }
}

#[test]
fn partial_checksums_are_taken_from_virtual_cables_only() {
    for (mut frame, ..) in frames(&[9; 40], true) {
        let at = frame.len() - 48;
        let parsed = parse(&frame, HERE).expect("a sound frame");
        let pseudo = match (parsed.from.ip(), parsed.to.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => sum(&a.octets()) + sum(&b.octets()),
            (IpAddr::V6(a), IpAddr::V6(b)) => sum(&a.octets()) + sum(&b.octets()),
            _ => unreachable!("one family"),
        };
        let partial = fold(pseudo + u64::from(17u16.to_be()) + u64::from(48u16.to_be()));
        frame[at + 6..at + 8].copy_from_slice(&partial.to_ne_bytes());
        assert_eq!(parse(&frame, HERE), Err(Bad::Checksum));
        assert!(parse(&frame, VETH).expect("from a virtual cable").partial);
    }
}

#[test]
fn without_checksum_only_ipv4_is_taken() {
    for (mut frame, _, to) in frames(&[9; 40], true) {
        let at = frame.len() - 48;
        frame[at + 6..at + 8].fill(0);
        assert_eq!(parse(&frame, VETH).is_ok(), to.is_ipv4());
    }
}

#[test]
fn noise_is_refused() {
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let sound = frames(&[9; 40], true);
    for round in 0..200_000 {
        let mut frame: Vec<u8> = (0..noise()).map(|_| noise()).collect();
        // Half of them begin like a sound frame.
        let (template, ..) = &sound[round % sound.len()];
        let keep = usize::from(noise()).min(template.len()).min(frame.len());
        if round % 2 == 0 {
            frame[..keep].copy_from_slice(&template[..keep]);
        }
        if let Ok(parsed) = parse(&frame, VETH) {
            assert!(parsed.payload.end <= frame.len());
        }
    }
}
