//! Traffic of an adversarial world.

use std::fmt;

use srd_core::{RnrRetry, Span, Time};

use super::{Scene, any_host};
use crate::app::{App, AppCx};
use crate::check::payload;
use crate::packet::HostId;
use crate::rng::Rng;
use crate::srd::MAX_APP_HEADER;
use crate::srd_world::SrdWorld;

/// A message to be posted.
#[derive(Clone, Debug)]
pub(super) struct Shot {
    pub(super) at: Time,
    pub(super) from: HostId,
    pub(super) to: HostId,
    header: Vec<u8>,
    len: usize,
    rnr: RnrRetry,
}

impl Shot {
    pub(super) fn post(self, world: &mut SrdWorld) {
        let data = payload(world.shared().messages().len() as u64, self.len);
        world.post_with(self.from, self.to, &self.header, data, self.rnr);
    }
}

impl fmt::Display for Shot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{} posts {} B to h{}, {:?}", self.from.0, self.len, self.to.0, self.rnr)
    }
}

/// The first byte of headers that want an answer.
const ASK: u8 = 1;

/// Answers the messages that ask for it.
#[derive(Debug)]
pub(super) struct Echo;

impl App for Echo {
    fn on_message(&mut self, cx: &mut AppCx<'_>, from: HostId, header: &[u8], data: &[u8]) {
        if header.first() == Some(&ASK) {
            let answer = payload(data.len() as u64 ^ 0xa5, data.len() / 2);
            cx.post(from, &[0, header.len() as u8], answer);
        }
    }
}

/// All ordered pairs of hosts.
pub(super) fn pairs(hosts: usize) -> Vec<(HostId, HostId)> {
    let hosts = 0..hosts as u32;
    hosts.clone().flat_map(|a| hosts.clone().filter(move |b| *b != a).map(move |b| (HostId(a), HostId(b)))).collect()
}

/// Posts a message of middling size.
pub(super) fn probe(world: &mut SrdWorld, from: HostId, to: HostId) {
    let number = world.shared().messages().len() as u64;
    world.post(from, to, b"probe", payload(number, 3_000));
}

/// Draws the messages, ordered by time.
pub(super) fn draw(scene: &Scene) -> Vec<Shot> {
    let mut rng = scene.rng("traffic");
    let rng = &mut rng;
    let duration = Span::from_micros(rng.log_range(2_000, 2_000_000));
    let bursts: Vec<Time> = (0..rng.range(1, 6)).map(|_| Time::ZERO + rng.span(Span::ZERO, duration)).collect();
    let opening = rng.chance(500_000);
    let one_pair = rng.chance(400_000);
    let (mut huge, asking) = (1, rng.below(300_000) as u32);
    let mut shots: Vec<Shot> = (0..rng.log_range(1, 60))
        .map(|_| {
            let at = match rng.below(4) {
                0 if opening => Time::ZERO,
                0 | 1 => Time::ZERO + rng.span(Span::ZERO, duration),
                _ => *rng.pick(&bursts),
            };
            let from = if one_pair { HostId(0) } else { any_host(rng, scene) };
            let mut to = any_host(rng, scene);
            if to == from {
                to = HostId((to.0 + 1) % scene.hosts.len() as u32);
            }
            let len = length(rng, &mut huge);
            let mut header = vec![0; rng.range(1, MAX_APP_HEADER as u64) as usize];
            rng.fill(&mut header);
            header[0] = u8::from(rng.chance(asking));
            let rnr = if rng.chance(100_000) { RnrRetry::Times(rng.below(6) as u8) } else { RnrRetry::Forever };
            Shot { at, from, to, header, len, rnr }
        })
        .collect();
    shots.sort_by_key(|s| s.at);
    shots
}

fn length(rng: &mut Rng, huge: &mut u32) -> usize {
    match rng.below(100) {
        0..5 => 0,
        5..45 => rng.range(1, 512) as usize,
        45..65 => rng.range(400, 9_500) as usize,
        65..97 => rng.log_range(512, 200_000) as usize,
        _ if *huge > 0 => {
            *huge -= 1;
            rng.range(500_000, 1_000_000) as usize
        }
        _ => 1,
    }
}
