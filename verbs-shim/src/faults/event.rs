//! One event of a fault specification: what goes wrong, and when.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use srd_core::card::{ForcedStatus, Status};
use srd_core::{Faults, Share, Span, Way, Where};

use crate::options::value::{self, Text};
use crate::status;

/// What goes wrong. All shares are those of single datagrams, unless something else is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Sent datagrams vanish.
    Loss(Share),
    /// Received datagrams vanish.
    RecvLoss(Share),
    /// Sent datagrams arrive twice.
    Duplicate(Share),
    /// A bit of sent datagrams is flipped.
    Corrupt(Share),
    /// Sent datagrams are held back while later ones pass.
    Delay {
        /// How many.
        share: Share,
        /// For how long at the least.
        min: Span,
        /// For how long at the most.
        max: Span,
    },
    /// Nothing gets through.
    Dead {
        /// Where.
        place: Place,
        /// In which direction.
        way: Way,
    },
    /// Share of messages that find no receive buffer although there is one.
    Rnr(Share),
    /// Sends that fail without being sent.
    Force(ForcedStatus),
    /// Completions are held back, and released in random order.
    Shuffle {
        /// How many at once, 1..=4096.
        window: u32,
        /// For how long after the last one at the most.
        hold: Span,
    },
}

/// Where nothing gets through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Everywhere.
    All,
    /// On our paths with these numbers, in the order of their first use; they lead away from us only.
    Paths(Vec<u16>),
    /// Between us and a host.
    Host(IpAddr),
    /// Between us and a peer; see [`Where::Peer`].
    Peer(SocketAddr),
}

impl From<Place> for Where {
    fn from(place: Place) -> Where {
        match place {
            Place::All => Where::All,
            Place::Paths(numbers) => Where::Paths(numbers),
            Place::Host(ip) => Where::Host(ip),
            Place::Peer(peer) => Where::Peer(peer),
        }
    }
}

/// When something goes wrong: from `from` (inclusive) to `until` (exclusive; [`Span::MAX`] for good), counted from the moment
/// when the device was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The beginning.
    pub from: Span,
    /// The end.
    pub until: Span,
}

impl Window {
    /// All the time.
    pub const ALWAYS: Window = Window { from: Span::ZERO, until: Span::MAX };

    pub(super) fn contains(&self, time: Span) -> bool {
        self.from <= time && time < self.until
    }
}

/// Something that goes wrong at some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What.
    pub fault: Fault,
    /// When. Only faults of the network may change with time.
    pub during: Window,
}

/// What is wrong with a fault specification.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{event}' {problem}")]
pub struct FaultError {
    /// The event.
    pub event: String,
    /// The end of a sentence that begins with it.
    pub problem: String,
}

/// Names of events.
const NAMES: [&str; 11] =
    ["loss", "recv-loss", "duplicate", "corrupt", "delay", "dead", "dead-out", "dead-in", "rnr", "force", "shuffle"];
/// Most completions that are held back at once.
const MAX_SHUFFLE: u32 = 4096;
/// Longest time that anything is held back.
const MAX_HOLD: Span = Span::from_secs(10);
/// Times in a specification end here: a day.
const MAX_TIME: Span = Span::from_secs(86_400);
/// Paths have numbers below this, the largest pool of source ports.
const MAX_PATH: u16 = 1023;

impl std::str::FromStr for Event {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Event, FaultError> {
        parse(text.trim()).map_err(|problem| FaultError { event: text.trim().to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Event, String> {
    let (name, rest) = text.split_once('=').ok_or("is no event: write NAME=VALUE, such as loss=1%")?;
    if rest.contains('=') {
        return Err("is more than one event: separate them by commas".to_owned());
    }
    let (value, when) = match rest.split_once('@') {
        Some((value, when)) => (value.trim(), Some(window(when.trim())?)),
        None => (rest.trim(), None),
    };
    let fault = match name.trim() {
        "loss" => Fault::Loss(value::share(value)?),
        "recv-loss" => Fault::RecvLoss(value::share(value)?),
        "duplicate" => Fault::Duplicate(value::share(value)?),
        "corrupt" => Fault::Corrupt(value::share(value)?),
        "delay" => delay(value)?,
        "dead" => dead(value, Way::Both)?,
        "dead-out" => dead(value, Way::Out)?,
        "dead-in" => dead(value, Way::In)?,
        "rnr" => Fault::Rnr(value::share(value)?),
        "force" => force(value)?,
        "shuffle" => shuffle(value)?,
        _ => return Err(format!("has an unknown name; known are {}", NAMES.join(", "))),
    };
    if when.is_some() && matches!(fault, Fault::Rnr(_) | Fault::Force(_) | Fault::Shuffle { .. }) {
        return Err("cannot have a time: what the card does wrong, it does all the time".to_owned());
    }
    Ok(Event { fault, during: when.unwrap_or(Window::ALWAYS) })
}

fn window(text: &str) -> Result<Window, String> {
    let wanted =
        || "needs a time after '@': FROM, FROM- or FROM-UNTIL up to a day, such as @2s or @500ms-3s".to_owned();
    let (from, until) = text.split_once('-').unwrap_or((text, ""));
    let point = |t: &str| value::span(t.trim()).filter(|&t| t <= MAX_TIME).ok_or_else(wanted);
    let from = point(from)?;
    let until = if until.is_empty() { Span::MAX } else { point(until)? };
    if from < until { Ok(Window { from, until }) } else { Err("ends before it begins".to_owned()) }
}

fn delay(text: &str) -> Result<Fault, String> {
    let usual = Faults::default();
    let (share, times) = text.split_once(':').map_or((text, None), |(share, times)| (share, Some(times)));
    let share = value::share(share)?;
    let point = |t: &str| value::time(t.trim(), Span::ZERO..=MAX_HOLD);
    let (min, max) = match times.map(|t| t.split_once('-').unwrap_or((t, t))) {
        Some((min, max)) => (point(min)?, point(max)?),
        None => (usual.delay_min, usual.delay_max),
    };
    if min > max {
        return Err("has a shortest time above the longest".to_owned());
    }
    Ok(Fault::Delay { share, min, max })
}

fn dead(text: &str, way: Way) -> Result<Fault, String> {
    let wanted = "needs a place: all, path:NUMBER[+NUMBER...], or peer:ADDRESS[:PORT]";
    let place = match text.split_once(':') {
        None if text == "all" => Place::All,
        Some(("path", numbers)) => {
            if way == Way::In {
                return Err("asks for the peer's paths: give the peer this fault as dead-out".to_owned());
            }
            let numbers = numbers.split('+').map(|n| value::number(n.trim(), 0..=MAX_PATH));
            Place::Paths(
                numbers
                    .collect::<Result<_, _>>()
                    .map_err(|e| format!("has a bad path: each {e}, and several are 0+1+2"))?,
            )
        }
        Some(("peer", addr)) => match (addr.parse(), addr.parse::<SocketAddr>()) {
            (Ok(ip), _) => Place::Host(ip),
            (_, Ok(peer)) if peer.port() == 0 => return Err("has port 0, at which no device is".to_owned()),
            (_, Ok(peer)) => Place::Peer(peer),
            _ => return Err(format!("has no IP address, nor one with a port, after 'peer:' but '{addr}'")),
        },
        _ => return Err(wanted.to_owned()),
    };
    Ok(Fault::Dead { place, way })
}

fn force(text: &str) -> Result<Fault, String> {
    let (status, every) = text.rsplit_once('/').ok_or("needs STATUS/N, such as rnr/100: every 100th send fails")?;
    let status = match status::find(status)[..] {
        [Status::Ok] => return Err("would report success for what was never sent".to_owned()),
        [status] => status.code(),
        [] => return Err(format!("has no status '{status}'; 'srd explain' lists them")),
        _ => return Err(format!("has '{status}', which several statuses are called; write its number")),
    };
    let every = value::number(every.trim(), 1..=u32::MAX)?;
    Ok(Fault::Force(ForcedStatus { every, status }))
}

fn shuffle(text: &str) -> Result<Fault, String> {
    let usual = srd_core::card::CardFaults::default().hold;
    let (window, hold) = text.split_once(':').map_or((text, None), |(window, hold)| (window, Some(hold)));
    let hold = hold.map_or(Ok(usual), |t| value::time(t.trim(), Span::from_micros(1)..=MAX_HOLD))?;
    Ok(Fault::Shuffle { window: value::number(window.trim(), 1..=MAX_SHUFFLE)?, hold })
}

impl fmt::Display for Event {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ppm = Share::as_per_million;
        match &self.fault {
            Fault::Loss(share) => write!(f, "loss={}ppm", ppm(*share)),
            Fault::RecvLoss(share) => write!(f, "recv-loss={}ppm", ppm(*share)),
            Fault::Duplicate(share) => write!(f, "duplicate={}ppm", ppm(*share)),
            Fault::Corrupt(share) => write!(f, "corrupt={}ppm", ppm(*share)),
            Fault::Delay { share, min, max } => write!(f, "delay={}ppm:{}-{}", ppm(*share), Text(*min), Text(*max)),
            Fault::Dead { place, way } => {
                let name = match way {
                    Way::Both => "dead",
                    Way::Out => "dead-out",
                    Way::In => "dead-in",
                };
                write!(f, "{name}={place}")
            }
            Fault::Rnr(share) => write!(f, "rnr={}ppm", ppm(*share)),
            Fault::Force(ForcedStatus { every, status }) => write!(f, "force={status}/{every}"),
            Fault::Shuffle { window, hold } => write!(f, "shuffle={window}:{}", Text(*hold)),
        }?;
        match self.during {
            Window::ALWAYS => Ok(()),
            Window { from, until: Span::MAX } => write!(f, "@{}", Text(from)),
            Window { from, until } => write!(f, "@{}-{}", Text(from), Text(until)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::All => f.write_str("all"),
            Place::Paths(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(u16::to_string).collect();
                write!(f, "path:{}", numbers.join("+"))
            }
            Place::Host(ip) => write!(f, "peer:{ip}"),
            Place::Peer(addr) => write!(f, "peer:{addr}"),
        }
    }
}
