//! Faults of the network at set times, and routing that learns about them late or never.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use srd_core::{Span, Time};

use super::station::Station;
use crate::cabling::Cabling;
use crate::link::Link;
use crate::packet::LinkId;
use crate::part::{Part, PartKind};
use crate::plan::Cable;
use crate::world::{Action, World};

/// What goes wrong with cables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Trouble {
    /// They swallow everything, and what is on them or waits to be. With a time, routing avoids them so long after the
    /// beginning, and uses them again so long after the end; without one it never notices.
    Dead(Option<Span>),
    /// Their rate falls to so many bits per second, at which what waits leaves, too.
    Slow(u64),
    /// They lose this share of packets, in millionths.
    Lossy(u32),
}

/// A fault. Faults of the same cable may overlap.
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
    let begin = start + fault.from;
    let end = fault.until.map(|until| start + until);
    edge(world, cabling, fault, begin, true);
    if let Some(end) = end {
        edge(world, cabling, fault, end, false);
    }
    if let Trouble::Dead(Some(delay)) = fault.trouble {
        reroute(world, cabling, &fault.cables, begin + delay, true);
        if let Some(end) = end {
            reroute(world, cabling, &fault.cables, end + delay, false);
        }
    }
}

/// A fault begins or ends. Several may be going on at a link, so what it is made of is worked out from all of them.
fn edge(world: &mut World<Station>, cabling: &Rc<Cabling>, fault: &Fault, at: Time, begins: bool) {
    let (cabling, trouble) = (Rc::clone(cabling), fault.trouble);
    let both = fault.cables.iter().flat_map(|c| {
        let (there, back) = cabling.links[*c];
        [(*c, there, fault.directions.0), (*c, back, fault.directions.1)]
    });
    let links: Vec<(usize, LinkId)> = both.filter(|l| l.2).map(|l| (l.0, l.1)).collect();
    let change = move |world: &mut World<Station>| {
        let (mut cut, mut rates) = (BTreeSet::new(), BTreeMap::new());
        for (cable, id) in links {
            let troubles = world.shared_mut().troubles.entry(id).or_default();
            if begins {
                troubles.push(trouble);
            } else if let Some(i) = troubles.iter().position(|t| *t == trouble) {
                troubles.remove(i);
            }
            let state = State::of(&cabling.plan.cables[cable], troubles);
            let link = world.net_mut().link_mut(id);
            if state.dead && !link.parts().contains(&Part::Blackhole) {
                cut.insert(id);
            }
            if link.queue().is_some_and(|q| q.rate != state.rate) {
                rates.insert(id, state.rate);
            }
            state.put(link);
        }
        // Nothing is looked through for nothing.
        if !cut.is_empty() {
            world.net_mut().cut(&cut);
        }
        if !rates.is_empty() {
            world.net_mut().set_rate(&rates);
        }
    };
    world.at(at, Action::Call("a fault begins or ends", Box::new(change)));
}

/// What faults leave of a link.
struct State {
    dead: bool,
    rate: u64,
    /// Share of packets that it loses, in millionths.
    loss: u32,
}

impl State {
    /// Dead if any fault says so, at the rate of the slowest, and losing what the cable and each of the faults lose.
    fn of(cable: &Cable, troubles: &[Trouble]) -> State {
        let rates = troubles.iter().filter_map(|t| if let Trouble::Slow(rate) = t { Some(*rate) } else { None });
        let both = |a: u32, b: u32| a + b - (u64::from(a) * u64::from(b) / 1_000_000) as u32;
        let losses = troubles.iter().filter_map(|t| if let Trouble::Lossy(ppm) = t { Some(*ppm) } else { None });
        State {
            dead: troubles.iter().any(|t| matches!(t, Trouble::Dead(_))),
            rate: rates.fold(cable.rate, u64::min),
            loss: losses.fold(cable.loss_ppm, both),
        }
    }

    /// Gives a link all of it but the rate.
    fn put(&self, link: &mut Link) {
        match self.dead {
            true => link.set(Part::Blackhole),
            false => link.clear(PartKind::Blackhole),
        }
        match self.loss {
            0 => link.clear(PartKind::Loss),
            loss => link.set(Part::Loss(loss)),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Port;

    #[test]
    fn troubles_add_up() {
        let (a, b) = (Port::Server(0), Port::Switch(0));
        let cable = Cable { a, b, rate: 100, delay: Span::ZERO, loss_ppm: 1_000 };
        let of = |troubles: &[Trouble]| {
            let state = State::of(&cable, troubles);
            (state.dead, state.rate, state.loss)
        };
        assert_eq!(of(&[]), (false, 100, 1_000));
        let dead = Trouble::Dead(None);
        assert_eq!(of(&[dead, Trouble::Slow(20), Trouble::Slow(50), dead]), (true, 20, 1_000));
        // A cable is not faster for being slow.
        assert_eq!(of(&[Trouble::Slow(200)]), (false, 100, 1_000));
        assert_eq!(of(&[Trouble::Lossy(500_000), Trouble::Lossy(500_000)]), (false, 100, 750_250));
        assert_eq!(of(&[Trouble::Lossy(1_000_000)]), (false, 100, 1_000_000));
    }
}
