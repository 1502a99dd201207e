//! htsim's triggers: which connections fire them, and what the connections that they start wait for.
//!
//! In htsim a trigger is fired while the simulation runs; here a connection waits for all of a list. So files are taken
//! whose triggers say the same either way, and refused where htsim would stop, or start whoever is done first.

use simnet::experiment::Moment;

/// A connection, by its number, that fires a trigger when it has got so far.
pub(super) type Firing = (usize, Moment);

/// What a trigger does when it is fired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Starts all its connections; htsim stops if it is fired again.
    Oneshot,
    /// Starts one more of its connections each time.
    Multishot,
    /// Starts all its connections when it was fired so many times; htsim stops if it is fired again.
    Barrier(Option<u64>),
}

/// A trigger as its file has it.
#[derive(Debug, Default)]
pub(super) struct Trigger {
    /// Its line, and its kind.
    pub(super) declared: Option<(usize, Kind)>,
    pub(super) fired_by: Vec<Firing>,
    /// The connections that it starts, in the order of the file.
    pub(super) starts: Vec<usize>,
}

impl Trigger {
    /// What each of its connections waits for; the trigger is that of line `line`.
    pub(super) fn waits(&self, id: u64, line: usize, kind: Kind) -> Result<Vec<Vec<Firing>>, String> {
        let fired = self.fired_by.len();
        match kind {
            Kind::Oneshot if fired != 1 => Err(format!(
                "line {line}: oneshot trigger {id} is fired {fired} times, it takes one: make it a barrier, or several triggers"
            )),
            Kind::Barrier(Some(count)) if count != fired as u64 => {
                Err(format!("line {line}: barrier trigger {id} has a count of {count}, and is fired {fired} times"))
            }
            Kind::Oneshot | Kind::Barrier(_) => Ok(vec![self.fired_by.clone(); self.starts.len()]),
            Kind::Multishot => self.chain().ok_or_else(|| {
                format!(
                    "line {line}: multishot trigger {id} is no chain, which is what can be run: one connection fires it \
                     first, and each one that it starts fires it for the next"
                )
            }),
        }
    }

    /// What each connection of a multishot waits for, if there is only one order in which it can be fired.
    fn chain(&self) -> Option<Vec<Vec<Firing>>> {
        let mut firings = self.fired_by.iter().filter(|(c, _)| !self.starts.contains(c));
        let mut next = firings.next().copied();
        if firings.next().is_some() {
            return None;
        }
        let step = |connection: &usize| {
            let firing = next.take()?;
            let mut own = self.fired_by.iter().filter(|(c, _)| c == connection);
            next = own.next().copied();
            own.next().is_none().then(|| vec![firing])
        };
        self.starts.iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trigger(fired_by: &[usize], starts: &[usize]) -> Trigger {
        let fired_by = fired_by.iter().map(|c| (*c, Moment::Completed)).collect();
        Trigger { fired_by, starts: starts.to_vec(), ..Trigger::default() }
    }

    #[test]
    fn a_oneshot_and_a_barrier_start_all() {
        let one = vec![(0, Moment::Completed)];
        assert_eq!(trigger(&[0], &[1, 2]).waits(7, 3, Kind::Oneshot), Ok(vec![one.clone(), one.clone()]));
        let both = vec![(0, Moment::Completed), (1, Moment::Completed)];
        for count in [None, Some(2)] {
            assert_eq!(trigger(&[0, 1], &[2]).waits(7, 3, Kind::Barrier(count)), Ok(vec![both.clone()]));
        }
        let error = trigger(&[0, 1], &[2]).waits(7, 3, Kind::Oneshot).expect_err("fired twice");
        assert!(error.starts_with("line 3: oneshot trigger 7 is fired 2 times"), "{error}");
        let error = trigger(&[0, 1], &[2]).waits(7, 3, Kind::Barrier(Some(3))).expect_err("never open");
        assert!(error.contains("a count of 3, and is fired 2 times"), "{error}");
    }

    #[test]
    fn a_multishot_starts_one_each_time() {
        let waits = |fired_by: &[usize], starts: &[usize]| trigger(fired_by, starts).waits(7, 3, Kind::Multishot);
        let after = |c| vec![(c, Moment::Completed)];
        // The last firing finds nobody left.
        for fired_by in [&[0, 1, 2][..], &[2, 1, 0], &[0, 1]] {
            assert_eq!(waits(fired_by, &[1, 2]), Ok(vec![after(0), after(1)]));
        }
        // Two at once, one that starts never, one that fires twice.
        for (fired_by, starts) in [(&[0, 1][..], &[2, 3][..]), (&[0], &[1, 2]), (&[0, 1, 1], &[1, 2])] {
            let error = waits(fired_by, starts).expect_err("no chain");
            assert!(error.starts_with("line 3: multishot trigger 7 is no chain"), "{error}");
        }
    }
}
