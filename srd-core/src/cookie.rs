//! Secrets: numbers that nobody can guess, and stateless cookies, which prove that a peer receives at the address that it
//! sends from, at no cost to us before it is given.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::SocketAddr;

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::time::{Span, Time};

/// A keyed hash (SipHash-2-4) of a counter: connection ids and incarnations tell a peer nothing about those of others, as
/// the output of a fast generator would.
#[derive(Debug)]
pub(crate) struct Secrets {
    key: [u64; 2],
    drawn: u64,
}

impl Secrets {
    pub(crate) fn new(key: [u64; 2]) -> Secrets {
        Secrets { key, drawn: 0 }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        self.drawn.hash(&mut hasher);
        hasher.finish()
    }
}

/// For tables by address: strangers who do not know the key cannot choose addresses that meet in one place.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash {
    key: [u64; 2],
}

impl KeyedHash {
    pub(crate) fn new(key: [u64; 2]) -> KeyedHash {
        KeyedHash { key }
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key[0], self.key[1])
    }
}

/// Makes and checks cookies: a keyed hash of address, salt and a coarse time.
#[derive(Debug)]
pub(crate) struct Cookies {
    key: [u64; 2],
}

/// A cookie is good in the period in which it was made and in the next one.
const PERIOD: Span = Span::from_secs(16);

impl Cookies {
    pub(crate) fn new(key: [u64; 2]) -> Cookies {
        Cookies { key }
    }

    /// A cookie for `addr`, never 0. `salt` ties it to a state of affairs.
    pub(crate) fn make(&self, now: Time, addr: SocketAddr, salt: u64) -> u64 {
        self.hash(now.as_nanos() / PERIOD.as_nanos(), addr, salt)
    }

    /// Whether `cookie` was made for this address and salt of late.
    // [HS-5]
    pub(crate) fn check(&self, now: Time, addr: SocketAddr, salt: u64, cookie: u64) -> bool {
        let period = now.as_nanos() / PERIOD.as_nanos();
        cookie != 0 && [period, period.wrapping_sub(1)].iter().any(|&p| self.hash(p, addr, salt) == cookie)
    }

    fn hash(&self, period: u64, addr: SocketAddr, salt: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        (period, addr, salt).hash(&mut hasher);
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_a_period_at_least_and_two_at_most() {
        let cookies = Cookies::new([1, 2]);
        let addr = SocketAddr::from(([10, 0, 0, 1], 4000));
        let second = Span::from_secs(1);
        for made in 0..64 {
            let made = Time::ZERO + second * made;
            let cookie = cookies.make(made, addr, 7);
            let good = |after: u64| cookies.check(made + second * after, addr, 7, cookie);
            assert!((0..=16).all(good), "made at {made:?}");
            assert!(!(32..200).any(good), "made at {made:?}");
        }
    }

    #[test]
    fn a_cookie_is_good_for_one_address_and_one_state_of_affairs() {
        let (cookies, others) = (Cookies::new([1, 2]), Cookies::new([1, 3]));
        let addr = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let now = Time::from_nanos(1);
        let cookie = cookies.make(now, addr(4000), 7);
        assert!(cookies.check(now, addr(4000), 7, cookie));
        assert!(!cookies.check(now, addr(4001), 7, cookie));
        assert!(!cookies.check(now, addr(4000), 8, cookie));
        assert!(!cookies.check(now, addr(4000), 7, 0));
        assert!(!others.check(now, addr(4000), 7, cookie));
    }
}
