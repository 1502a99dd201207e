//! Experiments: flows over a network, with faults, run to their end and measured.
//!
//! An [`Experiment`] is a value that says everything; [`Experiment::run`] gives an [`Outcome`]. Stations are hosts of the
//! world: the cards of a server share its cable. SRD stations run the unchanged transport in its own connections, which a
//! greeting has opened before the clock starts (as a barrier does); the models of older transports need none.

mod control;
mod faults;
mod ledger;
mod legacy;
mod outcome;
mod run;
mod srd;
mod station;
mod storey;
mod tally;
mod tcp;
#[cfg(test)]
mod tests;
mod verbs;

use srd_core::{CheckedConfig, Span};

use crate::cabling::Buffers;
use crate::plan::Plan;

pub use control::TcpControl;
pub use faults::{Fault, Trouble};
pub use ledger::{Moment, Progress};
pub use outcome::{FlowOutcome, LinkOutcome, Outcome};
pub use run::Status;
pub use srd::Messages;
pub use tcp::TcpConfig;

/// What carries a flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Transport {
    /// The transport of this project.
    Srd,
    /// The TCP model.
    Tcp(TcpConfig),
    /// Packets of this MTU at the flow's rate; nothing is answered or repeated.
    Constant {
        /// Their MTU.
        mtu: u32,
    },
}

/// A flow of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowSpec {
    /// Sending server and the card on it.
    pub from: (usize, usize),
    /// Receiving server and the card on it.
    pub to: (usize, usize),
    /// Payload; `None` sends for ever.
    pub bytes: Option<u64>,
    /// Start, from the beginning of the experiment or from when all of `after` has come.
    pub start: Span,
    /// Flows that must have got somewhere before.
    pub after: Vec<(usize, Moment)>,
    /// Bits per second at which the application makes data; a flow of a constant rate must have it.
    pub rate: Option<u64>,
    /// What carries it.
    pub transport: Transport,
    /// Background: the experiment ends without it.
    pub background: bool,
    /// A switch, by its index in the plan, that it is to pass: its source port is chosen so that it hashes there. For older
    /// transports, which have one path.
    pub via: Option<usize>,
}

impl FlowSpec {
    /// A flow of so many bytes between the first cards of two servers, by the transport of this project, all of it there from
    /// the beginning.
    pub fn between(from: usize, to: usize, bytes: u64) -> FlowSpec {
        FlowSpec {
            from: (from, 0),
            to: (to, 0),
            bytes: Some(bytes),
            start: Span::ZERO,
            after: Vec::new(),
            rate: None,
            transport: Transport::Srd,
            background: false,
            via: None,
        }
    }
}

/// Hosts that are descheduled now and then: everything on a server stops together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Descheduling {
    /// Mean time between two stops of a server (exponentially distributed).
    pub every: Span,
    /// Shortest and longest stop (evenly distributed).
    pub length: (Span, Span),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// All chance comes from it.
    pub seed: u64,
    /// The network.
    pub plan: Plan,
    /// Its buffers.
    pub buffers: Buffers,
    /// Whether all switches hash alike, so that what one tier splits the next does not split again.
    pub polarised: bool,
    /// MTU of the servers' interfaces.
    pub mtu: u32,
    /// The traffic.
    pub flows: Vec<FlowSpec>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Whether hosts are descheduled.
    pub descheduling: Option<Descheduling>,
    /// Bits per second that a host can take in, and datagrams that wait meanwhile; `None` for a host that takes no time.
    pub drain: Option<(u64, usize)>,
    /// Configuration of the transport.
    pub srd: CheckedConfig,
    /// Whether cards know the rate of their server's cable, whatever the configuration says of it.
    pub cable_rates: bool,
    /// How flows become messages of the transport.
    pub messages: Messages,
    /// Whether connections are open before the clock starts.
    pub warm: bool,
    /// The experiment ends after this time, if not before.
    pub limit: Span,
    /// Throughput is sampled this often.
    pub sample: Option<Span>,
}
