//! The checkers must find what is wrong on purpose; where they find nothing, they are dead.

mod common;

use common::{LINK, RECEIVER, SENDER, ms, post};
use simnet::{Action, HostSpec, Sabotage, SrdNode, SrdSpec, SrdWorld, pair};
use srd_core::{Config, Span};

/// Runs traffic in both directions with a restart of the receiver in the middle, and returns what was found.
fn found(sabotage: Option<Sabotage>) -> Option<String> {
    let config = Config::default().check().expect("valid");
    let node = |sabotage| SrdNode::new(SrdSpec { sabotage, ..SrdSpec::new(config.clone()) }, None);
    let mut world = SrdWorld::checked(1);
    let spec = HostSpec::default();
    pair(&mut world, (spec, node(None)), (spec, node(sabotage)), 4, &LINK, &LINK);
    for round in 0..2 {
        for _ in 0..20 {
            post(&mut world, SENDER, RECEIVER, 20_000);
            post(&mut world, RECEIVER, SENDER, 20_000);
        }
        world.run_for(Span::from_millis(20));
        if round == 0 {
            world.act(Action::Restart(RECEIVER));
        }
    }
    world.settle(ms(500));
    world.demand_settled("at the end");
    world.violation().map(|v| v.what.clone())
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(found(None), None);
}

#[test]
fn every_kind_of_sabotage_is_found() {
    for (sabotage, expected) in [
        (Sabotage::DeliverTwice, "delivered again"),
        (Sabotage::FlipBits, "first different"),
        (Sabotage::LoseMessages, "never delivered"),
        (Sabotage::ReplayAfterRestart, "delivered again"),
        (Sabotage::SwallowCompletions, "messages are open"),
        (Sabotage::CompleteTwice, "not in use"),
        (Sabotage::TimerStorm, "timer storm"),
    ] {
        let what = found(Some(sabotage)).unwrap_or_else(|| panic!("{sabotage:?} was not noticed"));
        assert!(what.contains(expected), "{sabotage:?} was noticed as: {what}");
    }
}
