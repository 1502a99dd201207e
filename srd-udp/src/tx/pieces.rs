//! Cutting a gather list at datagram boundaries, without copying bytes.

use std::io::IoSlice;

use arrayvec::ArrayVec;

/// Most entries of a gather list; the kernel would take 1,024 (`UIO_MAXIOV`). A burst in more pieces is copied, which is cheaper for
/// pieces that are as short as they are then. The lists are on the stack of a thread of the program, which may have little.
pub(super) const MAX_PIECES: usize = 256;

/// A position in a gather list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'a> {
    list: &'a [IoSlice<'a>],
    /// Bytes of the first entry that are behind us.
    offset: usize,
    left: usize,
}

impl<'a> Pieces<'a> {
    /// The start of `list`, which has `len` bytes.
    pub(super) fn new(list: &'a [IoSlice<'a>], len: usize) -> Pieces<'a> {
        debug_assert_eq!(list.iter().map(|s| s.len()).sum::<usize>(), len, "length of the burst");
        Pieces { list, offset: 0, left: len }
    }

    /// Bytes ahead.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Moves up to `max` bytes ahead, appends what lies between to `out`, and returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is too small. Cutting `n` times adds at most `n` entries to those of the list.
    pub(super) fn take<const N: usize>(&mut self, max: usize, out: &mut ArrayVec<IoSlice<'a>, N>) -> usize {
        let bytes = max.min(self.left);
        let mut wanted = bytes;
        while wanted > 0 {
            let rest = &self.list[0][self.offset..];
            let piece = &rest[..wanted.min(rest.len())];
            if !piece.is_empty() {
                out.push(IoSlice::new(piece));
            }
            wanted -= piece.len();
            if piece.len() == rest.len() {
                self.list = &self.list[1..];
                self.offset = 0;
            } else {
                self.offset += piece.len();
            }
        }
        self.left -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_cuts_anywhere_and_loses_nothing() {
        let bytes: Vec<u8> = (0..100).collect();
        for piece in 1..=100 {
            let list: Vec<IoSlice<'_>> = bytes.chunks(piece).map(IoSlice::new).collect();
            for step in 1..=100 {
                let mut pieces = Pieces::new(&list, bytes.len());
                let mut seen = Vec::new();
                while pieces.left() > 0 {
                    let mut out = ArrayVec::<_, 101>::new();
                    let n = pieces.take(step, &mut out);
                    assert_eq!(n, step.min(100 - seen.len()), "bytes per step");
                    out.iter().for_each(|s| seen.extend_from_slice(s));
                }
                assert_eq!(seen, bytes, "pieces of {piece}, steps of {step}");
            }
        }
    }
}
