//! The checkers, checked.

use super::*;

const A: HostId = HostId(0);
const B: HostId = HostId(1);

fn at(ns: u64) -> Time {
    Time::from_nanos(ns)
}

/// A model with two hosts, started at 0.
fn model() -> Model {
    let mut m = Model::new(true);
    m.started(at(0), A);
    m.started(at(0), B);
    m
}

/// Posts and hands over message from A to B at `now`.
fn send(m: &mut Model, now: u64) -> u64 {
    let number = m.create(at(now), A, B, b"h", &payload(7, 100), RnrRetry::Forever);
    m.handed(at(now), number);
    number
}

#[test]
fn placed_twice_is_noticed_also_after_a_restart() {
    let mut m = model();
    let x = send(&mut m, 1);
    m.placed(at(5), B, Some(A), x, 100).expect("first delivery");
    m.read(at(6), B, x, b"h", &payload(7, 100)).expect("as sent");
    assert!(m.placed(at(7), B, Some(A), x, 100).is_err());
    m.died(at(8), B);
    m.started(at(9), B);
    assert!(m.placed(at(10), B, Some(A), x, 100).is_err());
}

#[test]
fn placed_from_a_sender_that_died_before_the_receiver_was_born_is_noticed() {
    let mut m = model();
    let x = send(&mut m, 1);
    m.died(at(2), A);
    assert_eq!(m.totals().orphaned, 1);
    let mut overlapping = Model { messages: m.messages.clone(), lives: m.lives.clone(), ..Model::default() };
    overlapping.placed(at(3), B, Some(A), x, 100).expect("B was there when A died");
    m.died(at(3), B);
    m.started(at(4), B);
    assert!(m.placed(at(5), B, Some(A), x, 100).is_err());
}

#[test]
fn placed_after_failure_and_a_later_message_is_noticed() {
    let mut m = model();
    m.expect.outages = true;
    let x = send(&mut m, 1);
    m.completed(at(10), x, Err(Failure::Unresponsive)).expect("outages are expected");
    let y = send(&mut m, 11);
    m.placed(at(12), B, Some(A), y, 100).expect("fine");
    assert!(m.placed(at(13), B, Some(A), x, 100).is_err());
}

#[test]
fn completed_needs_delivery_and_happens_once() {
    let mut m = model();
    let x = send(&mut m, 1);
    assert!(m.completed(at(2), x, Ok(())).is_err());
    let y = send(&mut m, 1);
    m.placed(at(2), B, Some(A), y, 100).expect("fine");
    m.completed(at(3), y, Ok(())).expect("fine");
    assert!(m.completed(at(4), y, Ok(())).is_err());
    assert_eq!(m.open(), 0);
}

#[test]
fn completed_failures_need_a_reason() {
    for failure in [
        Failure::Unreachable,
        Failure::Unresponsive,
        Failure::PeerRestarted,
        Failure::PeerClosed,
        Failure::NotReady,
        Failure::Refused(1),
        Failure::Closed,
    ] {
        let mut m = model();
        let x = send(&mut m, 1);
        assert!(m.completed(at(2), x, Err(failure)).is_err(), "{failure:?}");
    }
    let mut m = model();
    m.died(at(1), B);
    m.started(at(2), B);
    let x = send(&mut m, 1);
    m.completed(at(3), x, Err(Failure::PeerRestarted)).expect("it did restart");
}

#[test]
fn read_compares_header_and_bytes() {
    let mut m = model();
    for (header, number, ok) in [(b"h", 7, true), (b"g", 7, false), (b"h", 8, false)] {
        let x = send(&mut m, 1);
        m.placed(at(2), B, Some(A), x, 100).expect("fine");
        assert_eq!(m.read(at(3), B, x, header, &payload(number, 100)).is_ok(), ok);
    }
    let x = send(&mut m, 1);
    assert!(m.read(at(3), B, x, b"h", &payload(7, 100)).is_err(), "read without delivery");
}

#[test]
fn payload_differs_between_numbers_and_offsets() {
    assert_ne!(payload(1, 64), payload(2, 64));
    assert_ne!(payload(1, 64)[..32], payload(1, 64)[32..]);
    assert_eq!(payload(1, 64), payload(1, 128)[..64]);
}
