//! Tests of fault specifications.

use crate::repeatable::repeatable;
use proptest::prelude::*;
use srd_core::card::{ForcedStatus, Status};
use srd_core::{Way, Where};

use super::*;

fn spec(text: &str) -> FaultSpec {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}

#[test]
fn nothing_asked_nothing_wrong() {
    for text in ["", " , \n", "# a comment\n\n"] {
        assert!(spec(text).is_empty() && spec(text).plan().is_none());
        assert_eq!(spec(text).card(7), CardFaults { seed: 7, ..CardFaults::default() });
    }
}

#[test]
fn events_of_the_network() {
    let plan = spec("loss=1%, duplicate=2%,corrupt=3%, delay=4%:5us-6ms, recv-loss=7ppm").plan().unwrap();
    let want = Faults {
        loss: Share::percent(1),
        duplicate: Share::percent(2),
        corrupt: Share::percent(3),
        delay: Share::percent(4),
        delay_min: Span::from_micros(5),
        delay_max: Span::from_millis(6),
        recv_loss: Share::per_million(7),
        ..Faults::default()
    };
    assert_eq!(plan, FaultPlan::from(want));
    assert!(spec("corrupt=1ppm").corrupts() && !spec("corrupt=0,loss=1").corrupts());
}

#[test]
fn events_of_the_card() {
    let faults = spec("rnr=10%,force=rnr/100,shuffle=64:1ms").card(3);
    let want = CardFaults {
        seed: 3,
        rnr: Share::percent(10),
        force: Some(ForcedStatus { every: 100, status: Status::Rnr.code() }),
        shuffle: 64,
        hold: Span::from_millis(1),
    };
    assert_eq!(faults, want);
    assert_eq!(spec("rnr=10%").plan(), None);
}

#[test]
fn a_schedule_lays_events_over_each_other() {
    let text = "# a bad minute\nloss=1%\nloss=50%@100ms-200ms\nduplicate=5%@150ms-\ndead=peer:10.0.0.2@1s-2s\n";
    let plan = spec(text).plan().unwrap();
    let base = Faults { loss: Share::percent(1), ..Faults::default() };
    let bad = Faults { loss: Share::percent(50), ..base };
    let both = |faults| Faults { duplicate: Share::percent(5), ..faults };
    assert_eq!(plan.first, base);
    assert_eq!(plan.changes, [(ms(100), bad), (ms(150), both(bad)), (ms(200), both(base))]);
    let what = Where::Host("10.0.0.2".parse().unwrap());
    assert_eq!(plan.holes, [BlackHole { what, way: Way::Both, from: ms(1000), until: ms(2000) }]);
}

#[test]
fn dead_places() {
    let holes = spec("dead=all@1s,dead=path:0+3,dead-in=peer:::1,dead-out=peer:[::1]:7").plan().unwrap().holes;
    let hole = |what, way, from| BlackHole { what, way, from, until: Time::NEVER };
    let want = [
        hole(Where::All, Way::Both, ms(1000)),
        hole(Where::Paths(vec![0, 3]), Way::Both, ms(0)),
        hole(Where::Host("::1".parse().unwrap()), Way::In, ms(0)),
        hole(Where::Peer("[::1]:7".parse().unwrap()), Way::Out, ms(0)),
    ];
    assert_eq!(holes, want);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    for (text, says) in [
        ("loss", "NAME=VALUE"),
        ("lost=1%", "known are loss, recv-loss"),
        ("loss=200%", "0% to 100%"),
        ("loss=1%@soon", "@2s"),
        ("loss=1%@3s-1s", "ends before"),
        ("loss=1%@1s-1s", "ends before"),
        ("delay=1%:2ms-1ms", "shortest time above the longest"),
        ("delay=1%:1h", "200us"),
        ("dead=moon", "needs a place"),
        ("loss=1% dead=all", "by commas"),
        ("dead=path:1024", "0 to 1023"),
        ("dead=path:0-3", "0+1+2"),
        ("dead=peer:host", "no IP address"),
        ("dead=peer:10.0.0.2:0", "port 0, at which no device is"),
        ("dead-in=path:1", "dead-out"),
        ("force=rnr", "STATUS/N"),
        ("force=ok/5", "success"),
        ("force=16/5", "srd explain"),
        ("force=bad-length/5", "write its number"),
        ("force=rnr/0", "from 1"),
        ("shuffle=0", "from 1"),
        ("rnr=1%@1s", "all the time"),
        ("loss=1%,,nonsense=3", "nonsense=3"),
    ] {
        let error = text.parse::<FaultSpec>().expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let many = vec!["loss=1%"; MAX_EVENTS + 1].join("\n");
    assert!(many.parse::<FaultSpec>().is_err());
}

fn share() -> impl Strategy<Value = Share> {
    (0..=1_000_000_u32).prop_map(Share::per_million)
}

fn span(max_ms: u64) -> impl Strategy<Value = Span> {
    (0..=max_ms * 1_000_000).prop_map(Span::from_nanos)
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Out), Just(Way::In), Just(Way::Both)]
}

fn network() -> impl Strategy<Value = Fault> {
    prop_oneof![
        share().prop_map(Fault::Loss),
        share().prop_map(Fault::RecvLoss),
        share().prop_map(Fault::Duplicate),
        share().prop_map(Fault::Corrupt),
        (share(), span(10_000), span(10_000)).prop_map(|(share, a, b)| Fault::Delay {
            share,
            min: a.min(b),
            max: a.max(b)
        }),
        way().prop_map(|way| Fault::Dead { place: Place::All, way }),
        (any::<std::net::IpAddr>(), way()).prop_map(|(ip, way)| Fault::Dead { place: Place::Host(ip), way }),
        (any::<std::net::IpAddr>(), 1..=u16::MAX, way())
            .prop_map(|(ip, port, way)| Fault::Dead { place: Place::Peer((ip, port).into()), way }),
        proptest::collection::vec(0..1024_u16, 1..5)
            .prop_map(|numbers| Fault::Dead { place: Place::Paths(numbers), way: Way::Both }),
    ]
}

fn card() -> impl Strategy<Value = Fault> {
    let failures: Vec<u8> = Status::all().filter(|&s| s != Status::Ok).map(Status::code).collect();
    prop_oneof![
        share().prop_map(Fault::Rnr),
        (1..=u32::MAX, proptest::sample::select(failures))
            .prop_map(|(every, status)| Fault::Force(ForcedStatus { every, status })),
        (1..=4096_u32, (1_000..=10_000_000_000_u64).prop_map(Span::from_nanos))
            .prop_map(|(window, hold)| Fault::Shuffle { window, hold }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let window = (span(80_000), prop_oneof![Just(Span::MAX), (1..1_000_000_u64).prop_map(Span::from_micros)]);
    let timed = (network(), window).prop_map(|(fault, (from, long))| Event {
        fault,
        during: Window { from, until: if long == Span::MAX { long } else { from + long } },
    });
    prop_oneof![timed, card().prop_map(|fault| Event { fault, during: Window::ALWAYS })]
}

proptest! {
    #![proptest_config(repeatable())]

    #[test]
    fn what_is_written_is_read_back(events in proptest::collection::vec(event(), 0..20)) {
        let spec = FaultSpec::from(events);
        prop_assert_eq!(&spec.to_string().parse::<FaultSpec>().map_err(|e| e.to_string()), &Ok(spec));
    }

    #[test]
    fn the_plan_is_right_at_every_time(events in proptest::collection::vec(event(), 0..20), at in 0..90_000_u64) {
        let spec = FaultSpec::from(events);
        let plan = spec.plan().unwrap_or_default();
        let in_force = plan.changes.iter().rfind(|c| c.0 <= ms(at)).map_or(plan.first, |c| c.1);
        prop_assert_eq!(in_force, spec.at(Span::from_millis(at)));
        prop_assert!(plan.changes.is_sorted_by_key(|c| c.0));
    }

    #[test]
    fn no_text_makes_it_panic(text in "[a-z0-9=%:@+,./# \\-\n\\[\\]µ]{0,60}") {
        if let Ok(spec) = text.parse::<FaultSpec>() {
            let _ = (spec.plan(), spec.card(0), spec.to_string());
        }
    }
}
