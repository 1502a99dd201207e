//! A constant rate and window.

use super::{AckSample, Controller, RoundSample};

#[derive(Debug)]
pub(super) struct Fixed {
    /// Bytes per second.
    pub(super) rate: u64,
    /// Bytes.
    pub(super) window: u64,
}

impl Controller for Fixed {
    fn on_ack(&mut self, _: &AckSample) {}
    fn on_share(&mut self, _: Option<f64>) -> bool {
        false
    }
    fn on_round(&mut self, _: &RoundSample) {}
    fn drain(&mut self) {}
    fn on_restart(&mut self) {}
    fn begin(&mut self, _: f64) {}
    fn on_timeout(&mut self) {}
    fn rate(&self) -> f64 {
        self.rate.max(1) as f64
    }
    fn window(&self) -> u64 {
        self.window
    }
}
