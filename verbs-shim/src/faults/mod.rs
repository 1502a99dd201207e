//! Faults on request: what `--fault` and `SRD_FAULT` may say, and what comes of it.
//!
//! A specification is a list of events, separated by commas or line ends; `#` begins a comment. `docs/faults.md` explains them:
//!
//! ```text
//! loss=SHARE            datagrams sent that vanish        dead=WHERE      nothing gets through, both ways
//! recv-loss=SHARE       datagrams received that vanish    dead-out=WHERE  nothing that is sent
//! duplicate=SHARE       datagrams sent that arrive twice  dead-in=WHERE   nothing that is received
//! corrupt=SHARE         datagrams with a flipped bit      rnr=SHARE       messages find the receiver not ready
//! delay=SHARE[:MIN[-MAX]]  datagrams that are overtaken   force=STATUS/N  every N-th send fails
//! WHERE = all | path:K[+K..] | peer:ADDRESS               shuffle=N[:TIME]  completions held back and shuffled
//! ```
//!
//! Any event of the network may be followed by `@FROM`, `@FROM-` or `@FROM-UNTIL`, times since the device was opened.

mod event;
#[cfg(test)]
mod tests;

use std::fmt;

use srd_core::card::CardFaults;
use srd_core::{BlackHole, FaultPlan, Faults, Share, Span, Time};

pub use event::{Event, Fault, FaultError, Place, Window};

/// Events of a specification at most.
const MAX_EVENTS: usize = 1000;

/// A fault specification that makes sense.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultSpec {
    events: Vec<Event>,
}

impl std::str::FromStr for FaultSpec {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<FaultSpec, FaultError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let items = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|item| !item.is_empty());
        let events: Vec<Event> = items.map(str::parse).collect::<Result<_, _>>()?;
        if events.len() > MAX_EVENTS {
            let problem = format!("is one of {} events; {MAX_EVENTS} are permitted", events.len());
            return Err(FaultError { event: events[MAX_EVENTS].to_string(), problem });
        }
        Ok(FaultSpec { events })
    }
}

impl fmt::Display for FaultSpec {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, event) in self.events.iter().enumerate() {
            write!(f, "{}{event}", if k == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl From<Vec<Event>> for FaultSpec {
    fn from(events: Vec<Event>) -> FaultSpec {
        FaultSpec { events }
    }
}

impl FaultSpec {
    /// Whether nothing goes wrong.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether datagrams may be damaged: then packets need checksums of their own, because the damage is done before the
    /// kernel computes that of UDP.
    pub fn corrupts(&self) -> bool {
        self.events.iter().any(|e| matches!(e.fault, Fault::Corrupt(share) if share > Share::NEVER))
    }

    /// What the network does; `None` if it does nothing wrong.
    pub fn plan(&self) -> Option<FaultPlan> {
        let holes = self.events.iter().filter_map(hole).collect();
        let mut times: Vec<Span> = self.events.iter().flat_map(|e| [e.during.from, e.during.until]).collect();
        times.retain(|&t| t > Span::ZERO && t < Span::MAX);
        times.sort_unstable();
        times.dedup();
        let first = self.at(Span::ZERO);
        let mut last = first;
        let mut changes = Vec::new();
        for time in times {
            let faults = self.at(time);
            if faults != last {
                changes.push((Time::ZERO + time, faults));
                last = faults;
            }
        }
        let plan = FaultPlan { first, changes, holes };
        (plan != FaultPlan::default()).then_some(plan)
    }

    /// What the card does; all its chance comes from `seed`.
    pub fn card(&self, seed: u64) -> CardFaults {
        let mut faults = CardFaults { seed, ..CardFaults::default() };
        for event in &self.events {
            match event.fault {
                Fault::Rnr(share) => faults.rnr = share,
                Fault::Force(forced) => faults.force = Some(forced),
                Fault::Shuffle { window, hold } => (faults.shuffle, faults.hold) = (window, hold),
                _ => {}
            }
        }
        faults
    }

    /// What happens to single datagrams at one time; of two events of one kind the later in the list counts.
    fn at(&self, time: Span) -> Faults {
        let mut faults = Faults::default();
        for event in self.events.iter().filter(|e| e.during.contains(time)) {
            match event.fault {
                Fault::Loss(share) => faults.loss = share,
                Fault::RecvLoss(share) => faults.recv_loss = share,
                Fault::Duplicate(share) => faults.duplicate = share,
                Fault::Corrupt(share) => faults.corrupt = share,
                Fault::Delay { share, min, max } => {
                    (faults.delay, faults.delay_min, faults.delay_max) = (share, min, max);
                }
                _ => {}
            }
        }
        faults
    }
}

fn hole(event: &Event) -> Option<BlackHole> {
    let Fault::Dead { place, way } = &event.fault else { return None };
    let Window { from, until } = event.during;
    let until = if until == Span::MAX { Time::NEVER } else { Time::ZERO + until };
    Some(BlackHole { what: place.clone().into(), way: *way, from: Time::ZERO + from, until })
}
