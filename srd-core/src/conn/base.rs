//! What the smallest RTT is worth: it may be that of a shorter route than today's, of a shorter path than most, or of a queue.

use super::{Conn, Cx};
use crate::time::Span;

/// A queue that stands for so many rounds while our rate falls to this part is none: the route has become longer.
const STANDING_ROUNDS: u32 = 8;
const STANDING_FALL: f64 = 4.0;
/// Rounds between two looks at the network without our part of the queue, if packets get lost meanwhile and if not. Who came
/// when the queue of others was full has never seen the smallest RTT, and takes a full queue for an idle network.
const LOOK_ROUNDS: u32 = 64;
const LOOK_ROUNDS_LOSSLESS: u32 = 256;
/// Share of lost packets that makes doubt the smallest RTT.
const DOUBTFUL_LOSS: f64 = 0.01;

/// What the rounds so far say of the smallest RTT.
#[derive(Debug, Default)]
pub(super) struct BaseDoubt {
    standing: Option<Standing>,
    /// Rounds since the last look, and the share of packets that were lost over about [`LOOK_ROUNDS`].
    rounds: u32,
    loss: f64,
    /// The smallest RTT when it was forgotten last.
    forgotten: Option<Span>,
}

/// A queue that does not fall however little we send.
#[derive(Clone, Copy, Debug)]
struct Standing {
    rounds: u32,
    /// The queue and our rate when it was first seen.
    queue: Span,
    rate: f64,
}

impl Conn {
    /// A round has ended in which this queue stood and this share of packets was lost on paths that work; whether rate or
    /// window was what `limited` us.
    pub(super) fn doubt_base(&mut self, cx: &Cx<'_>, queue: Span, loss: f64, limited: bool) {
        self.look_for_longer_route(cx, queue, loss);
        let doubt = &mut self.doubt;
        doubt.rounds += 1;
        doubt.loss += (loss - doubt.loss) / f64::from(LOOK_ROUNDS);
        let lossy = doubt.loss > DOUBTFUL_LOSS;
        let due = if lossy { LOOK_ROUNDS } else { LOOK_ROUNDS_LOSSLESS };
        // Where the receiver says what is fair, less depends on the smallest RTT.
        if (lossy || limited) && self.share.is_none() && doubt.rounds >= due {
            doubt.rounds = 0;
            if lossy {
                self.paths.doubt_detours();
            }
            self.cc.drain();
        }
    }

    /// A longer route looks like a queue, but for one thing: it stays however little is sent. A full queue of others stays, too,
    /// but takes packets with it.
    fn look_for_longer_route(&mut self, cx: &Cx<'_>, queue: Span, loss: f64) {
        let rate = self.cc.rate();
        self.doubt.standing = match self.doubt.standing {
            _ if loss > 0.0 || queue <= cx.config.target_delay => None,
            Some(s) if queue >= s.queue * 3 / 4 => {
                if s.rounds >= STANDING_ROUNDS && rate * STANDING_FALL <= s.rate {
                    let (least, target) = (self.rtt.min(), cx.config.target_delay);
                    let same = self.doubt.forgotten.replace(least).is_some_and(|f| least <= f + target / 2);
                    // Forgotten, and the same again: some paths are that short, but not those that most packets take.
                    if !(same && self.paths.find_detours(least + target)) {
                        self.rtt.forget_min();
                        self.paths.forget_min();
                    }
                    self.cc.on_restart();
                    None
                } else {
                    Some(Standing { rounds: s.rounds + 1, rate: s.rate.max(rate), ..s })
                }
            }
            _ => Some(Standing { rounds: 1, queue, rate }),
        };
    }
}
