//! Sets of paths.

/// A set of path indices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathBits([u64; 4]);

impl PathBits {
    pub(crate) fn insert(&mut self, path: u8) {
        self.0[usize::from(path / 64)] |= 1 << (path % 64);
    }

    pub(crate) fn contains(&self, path: u8) -> bool {
        self.0[usize::from(path / 64)] & (1 << (path % 64)) != 0
    }

    /// Its members in rising order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u8> + use<> {
        let (words, mut word) = (self.0, 0);
        let mut bits = words[0];
        std::iter::from_fn(move || {
            while bits == 0 && word < 3 {
                word += 1;
                bits = words[word];
            }
            let bit = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some((word * 64) as u8 + bit as u8)
        })
    }
}
