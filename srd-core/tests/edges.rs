//! Two endpoints in situations that are rare, or that somebody has made.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use srd_core::*;
use support::*;

/// A connection that has carried a message.
fn connected(config: Config) -> Pair {
    let mut pair = Pair::new(config);
    pair.send(0, pattern(0, 100));
    pair.run_until(Span::from_millis(5), |p| !p.sides[0].completed.is_empty());
    pair
}

/// Hands a datagram to a host as if it came from the other.
fn inject(pair: &mut Pair, to: usize, bytes: &[u8]) {
    let meta = RxMeta { from: pair.sides[1 - to].addr, to: None, ecn: Ecn::NotEct, at: pair.now };
    let now = pair.now;
    let side = &mut pair.sides[to];
    side.endpoint.handle_datagram(now, &meta, bytes, &mut side.mailbox);
}

/// Keeps copies of what `from` sends from now on.
fn capture(pair: &mut Pair, from: usize) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let captured: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let copies = Rc::clone(&captured);
    pair.wire = Box::new(move |side, _, _, bytes| {
        if side == from {
            copies.borrow_mut().push(bytes.clone());
        }
        Deliver::Once
    });
    captured
}

#[test]
fn strangers_that_ask_without_an_end_do_not_silence_connections() {
    let mut pair = connected(Config::default());
    let captured = capture(&mut pair, 0);
    pair.send(0, pattern(1, 100));
    pair.run(Span::from_millis(1));
    // A packet of no connection, which is answered.
    let mut stray = captured.borrow()[0].clone();
    stray[4] ^= 0xff;
    pair.send(1, pattern(2, 2000));
    for _ in 0..500 {
        inject(&mut pair, 1, &stray);
    }
    let side = &mut pair.sides[1];
    let mut batch = TxBatch::new();
    assert!(side.endpoint.poll_transmit(pair.now, &mut side.mailbox, &mut batch));
    let lens: Vec<_> = batch.bursts().map(|b| b.len).collect();
    assert!(lens.len() == 2 && lens[1] > 2000, "an answer and the message: {lens:?}");
    pair.run(Span::from_millis(1));
    assert!(pair.sides[1].endpoint.stats().tx_packets > 500, "each was answered");
}
