//! The checksum of the Internet (RFC 1071): ones' complement sums of 16-bit words, in the byte order of the host.

/// Sum of the bytes as 16-bit words, not folded; a last odd byte is padded with zero. Sums of parts may be added if all but
/// the last have an even length. Good for 2^32 bytes and more.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    // Words of 32 bits in four lanes: the folded result is the same (2^16 = 1 in this arithmetic), and the compiler makes
    // vector instructions of it.
    let (blocks, rest) = bytes.as_chunks::<16>();
    let mut lanes = [0u64; 4];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (words, odd) = rest.as_chunks::<2>();
    let mut total: u64 = lanes.iter().sum();
    total += words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum::<u64>();
    if let [last] = odd {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// Copies bytes and returns their [`sum`], in one pass.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) fn copy_sum(out: &mut [u8], bytes: &[u8]) -> u64 {
    assert_eq!(out.len(), bytes.len(), "bytes to copy");
    // Blocks that stay in the first-level cache between the two.
    const BLOCK: usize = 512;
    out.chunks_mut(BLOCK).zip(bytes.chunks(BLOCK)).fold(0, |total, (out, bytes)| {
        out.copy_from_slice(bytes);
        total + sum(bytes)
    })
}

/// The sum in 16 bits.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let mut sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the book, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn sum_is_that_of_the_book() {
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in (0..200).chain([1399, 1400, 8999, 9000]) {
            assert_eq!(fold(sum(&bytes[..len])), naive(&bytes[..len]), "{len} bytes");
            assert_eq!(fold(sum(&vec![0xff; len])), naive(&vec![0xff; len]), "{len} bytes of ones");
        }
    }

    #[test]
    fn sums_of_parts_add_up() {
        let bytes: Vec<u8> = (0..500u32).map(|i| (i * 7) as u8).collect();
        for cut in (0..500).step_by(2) {
            assert_eq!(fold(sum(&bytes[..cut]) + sum(&bytes[cut..])), fold(sum(&bytes)));
        }
    }

    #[test]
    fn sums_at_odd_places_add_up_when_turned_round() {
        let bytes: Vec<u8> = (0..1500u32).map(|i| (i * i % 251) as u8).collect();
        for cut in (1..1500).step_by(2) {
            let mut copy = vec![0; 1500];
            let (front, back) = copy.split_at_mut(cut);
            let odd = fold(copy_sum(back, &bytes[cut..])).swap_bytes();
            let both = copy_sum(front, &bytes[..cut]) + u64::from(odd);
            assert_eq!((fold(both), &copy), (fold(sum(&bytes)), &bytes), "cut at {cut}");
        }
    }
}
