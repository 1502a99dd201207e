//! A queue of small numbers in which each is at most once.

use std::collections::VecDeque;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct OnceQueue {
    queue: VecDeque<usize>,
    queued: Vec<bool>,
}

impl OnceQueue {
    /// Adds a number at the end, unless it is in the queue.
    pub(crate) fn push(&mut self, n: usize) {
        if n >= self.queued.len() {
            self.queued.resize(n + 1, false);
        }
        if !std::mem::replace(&mut self.queued[n], true) {
            self.queue.push_back(n);
        }
    }

    /// Takes the number at the front.
    pub(crate) fn pop(&mut self) -> Option<usize> {
        let n = self.queue.pop_front()?;
        self.queued[n] = false;
        Some(n)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
