//! A host's own clock: shifted and running at its own speed.

use srd_core::Time;

/// Turns the world's time into a host's and back. Monotonic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// What the host's clock shows at the world's time zero, in nanoseconds.
    pub offset: u64,
    /// How much faster (slower if negative) it runs, in millionths, within +-100,000.
    pub drift_ppm: i32,
}

impl Clock {
    /// What the host's clock shows when the world's time is `world`.
    pub fn local(self, world: Time) -> Time {
        let ns = world.as_nanos();
        if self.drift_ppm == 0 || world == Time::NEVER {
            return Time::from_nanos(ns.saturating_add(self.offset));
        }
        let ppm = i64::from(self.drift_ppm);
        let drift = (ns / 1_000_000) as i64 * ppm + ((ns % 1_000_000) as i64 * ppm).div_euclid(1_000_000);
        Time::from_nanos(ns.saturating_add_signed(drift).saturating_add(self.offset))
    }

    /// The first moment of the world's time at which the host's clock shows `local` or more.
    pub fn world(self, local: Time) -> Time {
        if local == Time::NEVER {
            return local;
        }
        let ns = local.as_nanos().saturating_sub(self.offset);
        if self.drift_ppm == 0 {
            return Time::from_nanos(ns);
        }
        let rate = (1_000_000 + i64::from(self.drift_ppm)) as u128;
        let mut guess = u64::try_from(u128::from(ns) * 1_000_000 / rate).unwrap_or(u64::MAX).saturating_sub(2);
        while self.local(Time::from_nanos(guess)) < local {
            guess += 1;
        }
        Time::from_nanos(guess)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn world_is_the_first_moment_that_shows_the_local_time() {
        for (offset, drift_ppm) in [(0, 0), (5_000_000_000, 200), (17, -200), (1 << 40, 99_999), (3, -50_000)] {
            let clock = Clock { offset, drift_ppm };
            for local in [offset, offset + 1, offset + 999_999, offset + 1_000_001, offset + 86_400_000_000_000] {
                let local = Time::from_nanos(local);
                let world = clock.world(local);
                assert!(clock.local(world) >= local);
                if world > Time::ZERO {
                    assert!(clock.local(Time::from_nanos(world.as_nanos() - 1)) < local, "{clock:?} {local}");
                }
            }
        }
    }

    #[test]
    fn local_is_monotonic_and_drifts() {
        let clock = Clock { offset: 0, drift_ppm: -100 };
        let mut last = Time::ZERO;
        for ns in (0..5_000_000).step_by(997) {
            let local = clock.local(Time::from_nanos(ns));
            assert!(local >= last);
            last = local;
        }
        assert_eq!(clock.local(Time::from_nanos(1_000_000_000)).as_nanos(), 999_900_000);
    }
}
