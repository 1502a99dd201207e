//! Worlds whose hosts all run SRD: posting, waiting for completions, checks of the world as a whole.

use bytes::Bytes;
use srd_core::{RnrRetry, Span, Time};

use crate::app::Post;
use crate::check::Model;
use crate::packet::HostId;
use crate::srd::{Command, SrdNode};
use crate::world::World;

/// A world whose hosts all run SRD.
pub type SrdWorld = World<SrdNode>;

impl World<SrdNode> {
    /// An empty world with a model that compares what arrives with what was sent.
    pub fn checked(seed: u64) -> SrdWorld {
        World::new(seed, Model::new(true))
    }

    /// Sends a message from one host to another, now or as soon as the sender runs. Returns the message's number.
    pub fn post(&mut self, from: HostId, to: HostId, header: &[u8], data: Bytes) -> u64 {
        self.post_with(from, to, header, data, RnrRetry::Forever)
    }

    /// Like [`post`](World::post), with a limit on attempts while the receiver is not ready.
    pub fn post_with(&mut self, from: HostId, to: HostId, header: &[u8], data: Bytes, rnr: RnrRetry) -> u64 {
        let now = self.now();
        let message = self.shared_mut().create(now, from, to, header, &data, rnr);
        self.command(from, Command::Post(Post { message, to, header: header.to_vec(), data, rnr }));
        message
    }

    /// Lets time pass until every message has completed, at most until `limit`. Returns whether all have.
    pub fn settle(&mut self, limit: Time) -> bool {
        self.run_while(limit, |w| w.shared().open() == 0)
    }

    /// Lets time pass for `span` and returns how many packets all hosts sent in it.
    pub fn packets_during(&mut self, span: Span) -> u64 {
        let before = self.counters().packets;
        self.run_for(span);
        self.counters().packets - before
    }

    /// Ends the run with a violation that names the messages that are still open, if there are any.
    pub fn demand_settled(&mut self, why: &str) {
        let open: Vec<u64> = self.shared().open_messages().take(8).collect();
        if !open.is_empty() {
            let total = self.shared().open();
            self.net_mut().violate(format!("{total} messages are open {why}, among them {open:?}"));
        }
    }
}
