//! Congestion control of a connection: how fast to send, and how much may be in flight.
//!
//! A controller sees the connection as a whole. Choosing among paths, and telling trouble of one path from congestion, is
//! done before it is asked: it gets delay as the median over paths, and loss without what a dead path explains.

mod delay;
mod fixed;

use crate::config::{CcChoice, CheckedConfig};
use crate::time::Span;

/// What newly acknowledged packets say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSample {
    /// Bytes that this acknowledgement newly covers.
    pub(crate) acked: u64,
    /// Queueing delay of the newest packet on its path, where it was measured.
    pub(crate) queue_delay: Option<Span>,
    /// Delivery rate of the round so far, bytes per second, if that has lasted long enough to tell.
    pub(crate) delivery_rate: Option<f64>,
    /// Whether rate or window held the sender back in this round or the last one.
    pub(crate) limited: bool,
    /// The receiver's advice on the rate, bytes per second.
    pub(crate) share: Option<f64>,
    /// RTT of an idle network, as far as known.
    pub(crate) min_rtt: Span,
    /// What the hosts add to it.
    pub(crate) host_delay: Span,
}

/// What a round trip's worth of acknowledgements says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundSample {
    /// Median over paths of the smallest queueing delay in this round, where there were samples.
    pub(crate) queue_delay: Option<Span>,
    /// Share of packets of this round that were lost on paths that still work, 0.0..=1.0.
    pub(crate) loss: f64,
    /// Whether most paths saw congestion marks.
    pub(crate) marked: bool,
    /// Whether rate or window held the sender back during this round.
    pub(crate) limited: bool,
    /// Bytes acknowledged in it per second.
    pub(crate) delivery_rate: f64,
    /// What the hosts add to the round trip.
    pub(crate) host_delay: Span,
    /// The receiver's advice on the rate, bytes per second.
    pub(crate) share: Option<f64>,
    /// How long it lasted.
    pub(crate) length: Span,
}

/// A congestion controller.
pub(crate) trait Controller: std::fmt::Debug + Send {
    /// Packets were acknowledged.
    fn on_ack(&mut self, ack: &AckSample);
    /// The receiver advises this share, in bytes per second. Says whether the rate is another one now.
    fn on_share(&mut self, share: Option<f64>) -> bool;
    /// A round ended.
    fn on_round(&mut self, round: &RoundSample);
    /// During the round that begins, next to nothing of what we send is to stand in queues.
    fn drain(&mut self);
    /// Something is to be sent after a pause in which everything was acknowledged.
    fn on_restart(&mut self);
    /// Until the first acknowledgement this rate will do, in bytes per second.
    fn begin(&mut self, rate: f64);
    /// Nothing was acknowledged for a whole retransmission timeout, on any path.
    fn on_timeout(&mut self);
    /// Pacing rate, bytes per second, above 0.
    fn rate(&self) -> f64;
    /// In-flight limit, bytes. May be less than a packet: one packet may always be in flight, and pacing spaces them.
    fn window(&self) -> u64;
}

/// The controller that the configuration chooses, for packets of `mtu` bytes to a receiver that advises this `share` of
/// its link, in bytes per second, to begin with; without advice, `first_window` bytes are in flight at the start.
pub(crate) fn new_controller(
    config: &CheckedConfig,
    mtu: u16,
    first_window: u32,
    share: Option<f64>,
) -> Box<dyn Controller> {
    match config.cc {
        CcChoice::Delay => Box::new(delay::Delay::new(config, mtu, first_window, share)),
        CcChoice::Fixed { rate, window } => Box::new(fixed::Fixed { rate, window }),
    }
}
