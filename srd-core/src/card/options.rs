//! How a card behaves, and what it does wrong on request.

use super::profile::Profile;
use crate::faulty::Share;
use crate::time::Span;

/// A completion that is forced to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForcedStatus {
    /// Every how many work requests, at least 1.
    pub every: u32,
    /// [`Status::code`](super::Status::code) of what they get. That of [`Status::Ok`](super::Status::Ok) forces nothing.
    pub status: u8,
}

/// What the card does wrong on request. The default is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardFaults {
    /// All chance comes from it.
    pub seed: u64,
    /// Attempts of messages that find no receive buffer although there is one.
    pub rnr: Share,
    /// Sends that fail without being sent.
    pub force: Option<ForcedStatus>,
    /// Completions that are held back, and released in random order; 0 for none.
    pub shuffle: u32,
    /// How long after the last one they are released at the latest.
    pub hold: Span,
}

impl Default for CardFaults {
    fn default() -> CardFaults {
        CardFaults { seed: 0, rnr: Share::NEVER, force: None, shuffle: 0, hold: Span::from_micros(200) }
    }
}

/// How a card behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardOptions {
    /// Identity, capabilities and limits.
    pub profile: Profile,
    /// RDMA is refused to peers for which we have no address handle, as EFA does.
    pub strict_peers: bool,
    /// What goes wrong on request.
    pub faults: CardFaults,
}

impl Default for CardOptions {
    fn default() -> CardOptions {
        CardOptions { profile: Profile::default(), strict_peers: true, faults: CardFaults::default() }
    }
}
