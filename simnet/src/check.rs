//! The reference model: it knows every message that was ever posted and what may become of it.
//!
//! It stands outside of the hosts and sees the world's time. Whoever drives a host reports what happens there, and gets
//! back what was wrong with it, if anything was.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use srd_core::{Failure, RnrRetry, Time};

use crate::packet::HostId;
use crate::rng::Rng;

/// What the scenario does to the network, and so which failures of messages are legitimate. A restart of the receiver is
/// known to the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expect {
    /// Hosts may be out of each other's reach for longer than the peer timeout.
    pub outages: bool,
    /// Endpoints may be closed.
    pub closes: bool,
    /// Receivers may refuse messages.
    pub refusals: bool,
}

/// What is known of a message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The host that sends it.
    pub from: HostId,
    /// The host that it is sent to.
    pub to: HostId,
    /// Bytes of payload.
    pub len: u32,
    /// When it was posted.
    pub posted: Time,
    /// The sender's incarnation that gave it to its endpoint, and when.
    pub handed: Option<(u32, Time)>,
    /// The receiver's incarnation at which it arrived whole, and when.
    pub placed: Option<(u32, Time)>,
    /// When the receiver's application read it.
    pub read: Option<Time>,
    /// How it completed, and when.
    pub done: Option<(Result<(), Failure>, Time)>,
    /// Whether its sender died before it completed.
    pub orphaned: bool,
    rnr: RnrRetry,
    /// Header and payload, for comparison; dropped when no longer needed.
    content: Option<(Box<[u8]>, Bytes)>,
}

/// The model. Message numbers are indices: the first message of a world has number 0.
#[derive(Debug, Default)]
pub struct Model {
    /// What may fail.
    pub expect: Expect,
    messages: Vec<Message>,
    /// Per host, birth and death of every incarnation.
    lives: Vec<Vec<(Time, Option<Time>)>>,
    /// Per sender and receiver: the sender's incarnation and the latest time of handing over among all messages placed.
    newest: BTreeMap<(HostId, HostId), (u32, Time)>,
    open: u64,
    keep_content: bool,
    totals: Totals,
}

/// How many messages had which fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Posted.
    pub posted: u64,
    /// Arrived whole.
    pub placed: u64,
    /// Read by the application.
    pub read: u64,
    /// Completed well.
    pub ok: u64,
    /// Failed.
    pub failed: u64,
    /// Died with their sender.
    pub orphaned: u64,
    /// Bytes of payload that arrived whole.
    pub bytes: u64,
}

impl Model {
    /// A model that compares contents (costs a reference to each payload until it was read) or does not.
    pub fn new(compare: bool) -> Model {
        Model { keep_content: compare, ..Model::default() }
    }

    /// The messages, by number.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Messages that neither completed nor died with their sender.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Counts.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The numbers of the open messages.
    pub fn open_messages(&self) -> impl Iterator<Item = u64> + '_ {
        let open = self.messages.iter().enumerate().filter(|(_, m)| m.done.is_none() && !m.orphaned);
        open.map(|(i, _)| i as u64)
    }

    /// A message was made. Returns its number.
    pub fn create(&mut self, now: Time, from: HostId, to: HostId, header: &[u8], data: &Bytes, rnr: RnrRetry) -> u64 {
        let content = self.keep_content.then(|| (header.into(), data.clone()));
        self.messages.push(Message {
            from,
            to,
            len: data.len() as u32,
            posted: now,
            handed: None,
            placed: None,
            read: None,
            done: None,
            orphaned: false,
            rnr,
            content,
        });
        self.open += 1;
        self.totals.posted += 1;
        self.messages.len() as u64 - 1
    }

    /// A host started.
    pub fn started(&mut self, now: Time, host: HostId) {
        let i = host.0 as usize;
        if self.lives.len() <= i {
            self.lives.resize_with(i + 1, Vec::new);
        }
        self.lives[i].push((now, None));
    }

    /// A host died, and with it the messages that it had not completed.
    pub fn died(&mut self, now: Time, host: HostId) {
        let lives = &mut self.lives[host.0 as usize];
        let incarnation = lives.len() as u32 - 1;
        lives[incarnation as usize].1 = Some(now);
        for m in &mut self.messages {
            if m.from == host && m.done.is_none() && m.handed.is_some_and(|h| h.0 == incarnation) && !m.orphaned {
                m.orphaned = true;
                self.open -= 1;
                self.totals.orphaned += 1;
            }
        }
    }

    /// A message died with its sender before it was given to an endpoint.
    pub fn orphaned(&mut self, message: u64) {
        let m = &mut self.messages[message as usize];
        if !m.orphaned && m.done.is_none() {
            m.orphaned = true;
            self.open -= 1;
            self.totals.orphaned += 1;
        }
    }

    /// A message was given to an endpoint.
    pub fn handed(&mut self, now: Time, message: u64) {
        let m = &mut self.messages[message as usize];
        m.handed = Some((self.lives[m.from.0 as usize].len() as u32 - 1, now));
    }

    /// A message arrived whole at a host.
    ///
    /// # Errors
    /// The rule that this breaks.
    pub fn placed(
        &mut self,
        now: Time,
        host: HostId,
        from: Option<HostId>,
        number: u64,
        len: u32,
    ) -> Result<(), String> {
        let Some(m) = self.messages.get_mut(number as usize) else {
            return Err(format!("message {number} was delivered at h{} but never posted", host.0));
        };
        let bad = |m: &Message, what: fmt::Arguments<'_>| Err(format!("message {number} ({}) {what}", Short(m)));
        let incarnation = self.lives[host.0 as usize].len() as u32 - 1;
        if m.to != host || from != Some(m.from) {
            return bad(m, format_args!("was delivered at h{} as from {from:?}", host.0));
        }
        if m.len != len {
            return bad(m, format_args!("was delivered with {len} bytes"));
        }
        if let Some((before, at)) = m.placed {
            return bad(
                m,
                format_args!("was delivered again (first at {at}, incarnation {before}; now {incarnation})"),
            );
        }
        let Some((sender, handed)) = m.handed else {
            return bad(m, format_args!("was delivered before it was sent"));
        };
        let born = self.lives[host.0 as usize][incarnation as usize].0;
        if let Some(death) = self.lives[m.from.0 as usize][sender as usize].1
            && death < born
        {
            return bad(
                m,
                format_args!("of a sender that died at {death} was delivered at an incarnation born at {born}"),
            );
        }
        match m.done {
            Some((
                Err(why @ (Failure::Unreachable | Failure::NotReady | Failure::Refused(_) | Failure::TooLong { .. })),
                at,
            )) => {
                return bad(m, format_args!("was delivered although it had failed at {at}: {why}"));
            }
            Some((Err(why), at)) => {
                let newest = self.newest.get(&(m.from, host));
                if newest.is_some_and(|n| n.0 == sender && n.1 > at) {
                    return bad(
                        m,
                        format_args!(
                            "failed at {at} ({why}) and was delivered after one that was sent later, at {}",
                            newest.expect("just seen").1
                        ),
                    );
                }
            }
            Some((Ok(()), _)) => return bad(m, format_args!("completed before it was delivered")),
            None => {}
        }
        m.placed = Some((incarnation, now));
        self.totals.placed += 1;
        self.totals.bytes += u64::from(len);
        if self.keep_content {
            let newest = self.newest.entry((m.from, host)).or_insert((sender, handed));
            *newest = (*newest).max((sender, handed));
        }
        Ok(())
    }

    /// The application of a host read a message.
    ///
    /// # Errors
    /// The rule that this breaks.
    pub fn read(&mut self, now: Time, host: HostId, number: u64, header: &[u8], data: &[u8]) -> Result<(), String> {
        let Some(m) = self.messages.get_mut(number as usize) else {
            return Err(format!("message {number} was read at h{} but never posted", host.0));
        };
        let incarnation = self.lives[host.0 as usize].len() as u32 - 1;
        if m.read.is_some() {
            return Err(format!("message {number} ({}) was read twice", Short(m)));
        }
        if m.to != host || m.placed.is_none_or(|p| p.0 != incarnation) {
            return Err(format!("message {number} ({}) was read at h{} without delivery", Short(m), host.0));
        }
        m.read = Some(now);
        self.totals.read += 1;
        if let Some((expected_header, expected)) = m.content.take() {
            if *header != *expected_header {
                return Err(format!("message {number} ({}) has another header than was sent", Short(m)));
            }
            if data != expected {
                let at = data.iter().zip(&expected).position(|(a, b)| a != b);
                return Err(format!(
                    "message {number} ({}): {} bytes, first different at {at:?}",
                    Short(m),
                    data.len()
                ));
            }
        }
        Ok(())
    }

    /// A message completed at its sender.
    ///
    /// # Errors
    /// The rule that this breaks.
    pub fn completed(&mut self, now: Time, number: u64, outcome: Result<(), Failure>) -> Result<(), String> {
        let m = &mut self.messages[number as usize];
        if let Some((before, at)) = m.done {
            return Err(format!("message {number} ({}) completed twice: {before:?} at {at}, {outcome:?}", Short(m)));
        }
        m.done = Some((outcome, now));
        self.open -= 1;
        match outcome {
            Ok(()) => self.totals.ok += 1,
            Err(_) => self.totals.failed += 1,
        }
        let m = &self.messages[number as usize];
        if let Err(why) = self.may_complete(m, outcome) {
            return Err(format!("message {number} ({}) completed with {outcome:?}, but {why}", Short(m)));
        }
        Ok(())
    }

    fn may_complete(&self, m: &Message, outcome: Result<(), Failure>) -> Result<(), &'static str> {
        let demand = |ok: bool, why: &'static str| if ok { Ok(()) } else { Err(why) };
        let Err(failure) = outcome else { return demand(m.placed.is_some(), "it was never delivered") };
        match failure {
            Failure::Unreachable => {
                demand(self.expect.outages, "the peer could be reached")?;
                demand(m.placed.is_none(), "it was delivered")
            }
            Failure::Unresponsive => demand(self.expect.outages, "the peer could be reached"),
            Failure::PeerRestarted => {
                let (incarnation, _) = m.handed.ok_or("it was never sent")?;
                let born = self.lives[m.from.0 as usize][incarnation as usize].0;
                let peer = &self.lives[m.to.0 as usize];
                demand(peer.len() > 1, "the peer never restarted")?;
                demand(peer[peer.len() - 1].0 >= born, "the peer did not restart in the sender's life")
            }
            Failure::NotReady => {
                demand(m.rnr != RnrRetry::Forever, "it was to be retried for ever")?;
                demand(m.placed.is_none(), "it was delivered")
            }
            Failure::Refused(_) => {
                demand(self.expect.refusals, "nobody refuses messages")?;
                demand(m.placed.is_none(), "it was delivered")
            }
            Failure::TooLong { max } => {
                demand(m.len > max, "it is not longer")?;
                demand(m.placed.is_none(), "it was delivered")
            }
            Failure::PeerClosed | Failure::Closed => demand(self.expect.closes, "nobody closed an endpoint"),
            _ => Err("the model does not know this failure"),
        }
    }
}

/// A message for people.
struct Short<'a>(&'a Message);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{} B, h{} -> h{}, posted {}", m.len, m.from.0, m.to.0, m.posted)
    }
}

/// A number for an outcome, for the log: 0 is success.
pub(crate) fn outcome_code(outcome: Result<(), Failure>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(Failure::Unreachable) => 1,
        Err(Failure::Unresponsive) => 2,
        Err(Failure::PeerRestarted) => 3,
        Err(Failure::PeerClosed) => 4,
        Err(Failure::NotReady) => 5,
        Err(Failure::Refused(_)) => 6,
        Err(Failure::Closed) => 7,
        Err(Failure::TooLong { .. }) => 8,
        Err(_) => 255,
    }
}

/// Longest payload that [`payload`] makes, in bytes.
pub const MAX_PAYLOAD: usize = 8 << 20;

/// A payload of `len` bytes that differs from that of every other `number`, made without copying: a window of a fixed
/// random text. A piece in the wrong place does not go unnoticed.
///
/// # Panics
/// If `len` is above [`MAX_PAYLOAD`].
pub fn payload(number: u64, len: usize) -> Bytes {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    const STARTS: usize = 1 << 16;
    assert!(len <= MAX_PAYLOAD, "payload of {len} bytes, at most {MAX_PAYLOAD}");
    let text = TEXT.get_or_init(|| {
        let mut text = vec![0; MAX_PAYLOAD + STARTS];
        Rng::new(0x7e87).fill(&mut text);
        text.into()
    });
    // An odd factor visits every start before it comes back to the first.
    let start = (number as usize).wrapping_mul(0x9e37_79b1) % STARTS;
    text.slice(start..start + len)
}

#[cfg(test)]
mod tests;
