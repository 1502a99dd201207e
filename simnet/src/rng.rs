//! Seeded pseudo-random numbers, one generator per purpose.
//!
//! Written here instead of taken from a library so that a seed replays the same run for as long as the simulator itself
//! does not change, whatever happens to the versions of its dependencies. The generator is SplitMix64.

use srd_core::Span;

/// A stream of pseudo-random numbers. Cheap to make and to copy (one word of state).
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Spreads the bits of `x` over the whole word (the SplitMix64 output function).
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Rng {
    /// A generator from a seed.
    pub const fn new(seed: u64) -> Rng {
        Rng(mix(seed ^ 0x5eed_0f5e_ed00))
    }

    /// The generator for the `index`-th user of a `purpose`: independent of all others of the same seed, so that one more
    /// draw in one place shifts nothing elsewhere.
    pub fn derive(seed: u64, purpose: &str, index: u64) -> Rng {
        let mut h = mix(seed);
        for b in purpose.bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Rng(mix(h ^ mix(index.wrapping_add(0x9e37_79b9))))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..n`; zero when `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// If `low > high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "range {low}..={high}");
        low + self.below((high - low).saturating_add(1))
    }

    /// A number in `low..=high`, small ones as likely as large ones on a logarithmic scale. `low` must be at least 1.
    ///
    /// # Panics
    /// If `low > high` or `low == 0`.
    pub fn log_range(&mut self, low: u64, high: u64) -> u64 {
        assert!(low >= 1 && low <= high, "log range {low}..={high}");
        let octaves = u64::from((high / low).ilog2());
        let floor = low << self.range(0, octaves);
        self.range(floor, (floor.saturating_mul(2) - 1).min(high))
    }

    /// Whether an event of probability `ppm` millionths happens. Draws nothing when the answer is certain.
    pub fn chance(&mut self, ppm: u32) -> bool {
        match ppm {
            0 => false,
            1_000_000.. => true,
            _ => self.below(1_000_000) < u64::from(ppm),
        }
    }

    /// A span in `low..=high`.
    pub fn span(&mut self, low: Span, high: Span) -> Span {
        Span::from_nanos(self.range(low.as_nanos(), high.as_nanos()))
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Thirty-two random bytes, the kind of seed that an endpoint wants.
    pub fn seed32(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        self.fill(&mut out);
        out
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derive_differs_by_seed_purpose_and_index() {
        let firsts = [
            Rng::derive(1, "loss", 0).next_u64(),
            Rng::derive(2, "loss", 0).next_u64(),
            Rng::derive(1, "jitter", 0).next_u64(),
            Rng::derive(1, "loss", 1).next_u64(),
        ];
        for (i, a) in firsts.iter().enumerate() {
            assert!(firsts[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(firsts[0], Rng::derive(1, "loss", 0).next_u64());
    }

    #[test]
    fn chance_meets_its_rate() {
        let mut rng = Rng::new(7);
        let hits = (0..100_000).filter(|_| rng.chance(30_000)).count();
        assert!((2_700..3_300).contains(&hits), "{hits} of 100000 at 3 %");
        assert!(!rng.chance(0) && rng.chance(1_000_000));
    }

    #[test]
    fn ranges_stay_inside() {
        let mut rng = Rng::new(8);
        for _ in 0..10_000 {
            assert!((3..=5).contains(&rng.range(3, 5)));
            assert!((2..=1_000_000).contains(&rng.log_range(2, 1_000_000)));
        }
        assert_eq!(rng.range(9, 9), 9);
        assert_eq!(rng.log_range(1, 1), 1);
    }
}
