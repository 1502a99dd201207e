//! What runs on the hosts of an experiment: the transport, or a model of older ones.

use srd_core::Time;

use super::ledger::Ledger;
use super::legacy::LegacyStation;
use super::srd::SrdStation;
use crate::host::{Io, Node};

/// See the module documentation.
pub(super) enum Station {
    Srd(Box<SrdStation>),
    Legacy(Box<LegacyStation>),
}

impl Node for Station {
    type Shared = Ledger;
    type Command = ();

    fn start(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        if let Station::Srd(station) = self {
            station.start(ledger, io);
        }
    }

    fn turn(&mut self, ledger: &mut Ledger, io: &mut Io<'_>) {
        match self {
            Station::Srd(station) => station.turn(ledger, io),
            Station::Legacy(station) => station.turn(ledger, io),
        }
    }

    fn command(&mut self, (): (), _ledger: &mut Ledger, _io: &mut Io<'_>) {}

    fn deadline(&self) -> Option<Time> {
        match self {
            Station::Srd(station) => station.deadline(),
            Station::Legacy(station) => station.deadline(),
        }
    }

    fn crash(&mut self, _ledger: &mut Ledger, _io: &mut Io<'_>) {}
}
