//! Applications: what posts messages on a host and reads those that arrive.

use bytes::Bytes;
use srd_core::{Failure, RnrRetry, Span, Time};

use crate::check::Model;
use crate::packet::HostId;
use crate::rng::Rng;

/// An application on a host. It survives restarts of the host and is then started again.
pub trait App {
    /// The host started.
    fn on_start(&mut self, cx: &mut AppCx<'_>) {
        let _ = cx;
    }

    /// A message arrived.
    fn on_message(&mut self, cx: &mut AppCx<'_>, from: HostId, header: &[u8], data: &[u8]) {
        let _ = (cx, from, header, data);
    }

    /// A message of this application completed.
    fn on_completion(&mut self, cx: &mut AppCx<'_>, message: u64, outcome: Result<(), Failure>) {
        let _ = (cx, message, outcome);
    }

    /// A timer that was set with [`AppCx::timer`] is due. Timers do not survive a restart.
    fn on_timer(&mut self, cx: &mut AppCx<'_>, timer: u64) {
        let _ = (cx, timer);
    }
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct Post {
    /// Its number in the world.
    pub message: u64,
    /// The receiver.
    pub to: HostId,
    /// What the application puts before its payload.
    pub header: Vec<u8>,
    /// The payload.
    pub data: Bytes,
    /// What to do when the receiver is not ready.
    pub rnr: RnrRetry,
}

/// What an application can see and do from within its methods.
#[derive(Debug)]
pub struct AppCx<'a> {
    pub(crate) host: HostId,
    pub(crate) now: Time,
    pub(crate) world_now: Time,
    pub(crate) rng: &'a mut Rng,
    pub(crate) model: &'a mut Model,
    pub(crate) posts: &'a mut Vec<Post>,
    pub(crate) timers: &'a mut Vec<(Time, u64)>,
}

impl AppCx<'_> {
    /// The host that it runs on.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// The host's clock.
    pub fn now(&self) -> Time {
        self.now
    }

    /// A source of chance.
    pub fn rng(&mut self) -> &mut Rng {
        self.rng
    }

    /// Sends a message and returns its number in the world. The header may have up to
    /// [`MAX_APP_HEADER`](crate::MAX_APP_HEADER) bytes.
    pub fn post(&mut self, to: HostId, header: &[u8], data: Bytes) -> u64 {
        let rnr = RnrRetry::Forever;
        let message = self.model.create(self.world_now, self.host, to, header, &data, rnr);
        self.posts.push(Post { message, to, header: header.to_vec(), data, rnr });
        message
    }

    /// Asks for [`App::on_timer`] after a while on the host's clock.
    pub fn timer(&mut self, after: Span, timer: u64) {
        self.timers.push((self.now + after, timer));
    }
}
