//! Faults of the network at set times, and routing that learns about them late or never.

use std::collections::BTreeSet;
use std::rc::Rc;

use srd_core::{Span, Time};

use super::station::Station;
use crate::cabling::Cabling;
use crate::packet::LinkId;
use crate::part::{Part, PartKind};
use crate::world::{Action, World};

/// What goes wrong with cables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Trouble {
    /// They swallow everything. With a time, routing avoids them so long after the beginning, and uses them again so long
    /// after the end; without one it never notices.
    Dead(Option<Span>),
    /// Their rate falls to so many bits per second.
    Slow(u64),
    /// They lose this share of packets, in millionths.
    Lossy(u32),
}

/// A fault.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// The cables that it concerns, by their index in the plan.
    pub cables: Vec<usize>,
    /// The direction: from a to b, from b to a.
    pub directions: (bool, bool),
    /// What happens.
    pub trouble: Trouble,
    /// From when, after the start of the experiment.
    pub from: Span,
    /// Until when; `None` for ever.
    pub until: Option<Span>,
}

/// Puts a fault into the schedule of an experiment that began at `start`.
pub(super) fn schedule(world: &mut World<Station>, cabling: &Rc<Cabling>, fault: &Fault, start: Time) {
    let links =
        |back: bool| fault.cables.iter().map(move |c| if back { cabling.links[*c].1 } else { cabling.links[*c].0 });
    let mut ids: Vec<LinkId> = Vec::new();
    if fault.directions.0 {
        ids.extend(links(false));
    }
    if fault.directions.1 {
        ids.extend(links(true));
    }
    let begin = start + fault.from;
    let end = fault.until.map(|until| start + until);
    match fault.trouble {
        Trouble::Dead(reconvergence) => {
            world.at(begin, Action::Set(ids.clone(), Part::Blackhole));
            if let Some(end) = end {
                world.at(end, Action::Clear(ids, PartKind::Blackhole));
            }
            let Some(delay) = reconvergence else { return };
            reroute(world, cabling, &fault.cables, begin + delay, true);
            if let Some(end) = end {
                reroute(world, cabling, &fault.cables, end + delay, false);
            }
        }
        Trouble::Lossy(ppm) => {
            world.at(begin, Action::Set(ids.clone(), Part::Loss(ppm)));
            if let Some(end) = end {
                world.at(end, Action::Clear(ids, PartKind::Loss));
            }
        }
        Trouble::Slow(rate) => {
            for (cable, (there, back)) in fault.cables.iter().map(|c| (*c, cabling.links[*c])) {
                let usual = cabling.plan.cables[cable].rate;
                for link in [there, back].into_iter().filter(|l| ids.contains(l)) {
                    world.at(begin, set_rate(link, rate));
                    if let Some(end) = end {
                        world.at(end, set_rate(link, usual));
                    }
                }
            }
        }
    }
}

/// Changes the rate of a link and leaves its buffer as it is.
fn set_rate(link: LinkId, rate: u64) -> Action<Station> {
    let change = move |world: &mut World<Station>| {
        let link = world.net_mut().link_mut(link);
        let queue = link.parts().iter().find_map(|p| if let Part::Queue(q) = p { Some(*q) } else { None });
        if let Some(queue) = queue {
            link.set(Part::Queue(crate::part::Queue { rate, ..queue }));
        }
    };
    Action::Call("change a rate", Box::new(change))
}

/// Routing learns that cables are dead, or alive again.
fn reroute(world: &mut World<Station>, cabling: &Rc<Cabling>, cables: &[usize], at: Time, dead: bool) {
    let (cabling, cables) = (Rc::clone(cabling), cables.to_vec());
    let learn = move |world: &mut World<Station>| {
        let known = &mut world.shared_mut().dead;
        for cable in cables {
            let faults = known.entry(cable).or_default();
            *faults = if dead { *faults + 1 } else { faults.saturating_sub(1) };
        }
        let avoid: BTreeSet<usize> = known.iter().filter(|(_, n)| **n > 0).map(|(c, _)| *c).collect();
        cabling.route(world.net_mut(), &avoid);
    };
    world.at(at, Action::Call("routing converges", Box::new(learn)));
}
