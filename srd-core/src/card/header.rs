//! Headers of the card's messages (`docs/protocol.md` section 13).
//!
//! ```text
//! SEND   kind 1, destination QPN 2, source QPN 2, QKey 4, [immediate 4]
//! WRITE  kind 1, destination QPN 2, source QPN 2, QKey 4, [immediate 4], rkey 4, address 8
//! READ   kind 1, destination QPN 2, source QPN 2, QKey 4, rkey 4, address 8, length 4, read id 4
//! DATA   kind 1, read id 4
//! FAIL   kind 1, read id 4, status 1
//! SENDS  kind 1, destination QPN 2, source QPN 2, QKey 4, sends 2, bytes of the longest 2
//! ```

use crate::upper::MAX_HEADER;

const SEND: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const DATA: u8 = 3;
const FAIL: u8 = 4;
const SENDS: u8 = 5;
const UD: u8 = 0x10;
const IMM: u8 = 0x20;
const UNSOLICITED: u8 = 0x40;

/// From queue pair to queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) dst: u16,
    pub(super) src: u16,
    pub(super) qkey: u32,
}

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    Send {
        route: Route,
        ud: bool,
        imm: Option<u32>,
    },
    Write {
        route: Route,
        imm: Option<u32>,
        unsolicited: bool,
        rkey: u32,
        addr: u64,
    },
    Read {
        route: Route,
        rkey: u32,
        addr: u64,
        len: u32,
        id: u32,
    },
    /// The payload is what a read asked for.
    Data {
        id: u32,
    },
    /// The read cannot be answered (any more).
    Fail {
        id: u32,
        status: u8,
    },
    /// Several sends; the payload is each of them behind its length.
    Sends {
        route: Route,
        count: u16,
        longest: u16,
    },
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoded {
    bytes: [u8; MAX_ENCODED],
    len: u8,
}

const MAX_ENCODED: usize = 29;
const _: () = assert!(MAX_ENCODED <= MAX_HEADER);

impl Encoded {
    /// None.
    pub(super) const EMPTY: Encoded = Encoded { bytes: [0; MAX_ENCODED], len: 0 };

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    #[inline]
    pub(super) fn len(&self) -> u8 {
        self.len
    }

    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        let at = self.len as usize;
        self.bytes[at..at + N].copy_from_slice(&bytes);
        self.len += N as u8;
    }

    /// Begins a header with its kind and a route.
    #[inline]
    fn begin_routed(&mut self, kind: u8, route: &Route) {
        self.begin(kind);
        self.put(route.dst.to_be_bytes());
        self.put(route.src.to_be_bytes());
        self.put(route.qkey.to_be_bytes());
    }

    /// Begins a header.
    #[inline]
    fn begin(&mut self, kind: u8) {
        (self.bytes[0], self.len) = (kind, 1);
    }

    /// Becomes this header.
    // [CARD-1]
    // Inlined where the kind is known, little is left of it.
    #[inline(always)]
    pub(super) fn set(&mut self, header: &Header) {
        match *header {
            Header::Send { ref route, ud, imm } => {
                self.begin_routed(SEND | flag(ud, UD) | flag(imm.is_some(), IMM), route);
                if let Some(imm) = imm {
                    self.put(imm.to_be_bytes());
                }
            }
            Header::Write { ref route, imm, unsolicited, rkey, addr } => {
                let flags = flag(imm.is_some(), IMM) | flag(unsolicited, UNSOLICITED);
                self.begin_routed(WRITE | flags, route);
                if let Some(imm) = imm {
                    self.put(imm.to_be_bytes());
                }
                self.put(rkey.to_be_bytes());
                self.put(addr.to_be_bytes());
            }
            Header::Read { ref route, rkey, addr, len, id } => {
                self.begin_routed(READ, route);
                self.put(rkey.to_be_bytes());
                self.put(addr.to_be_bytes());
                self.put(len.to_be_bytes());
                self.put(id.to_be_bytes());
            }
            Header::Data { id } => {
                self.begin(DATA);
                self.put(id.to_be_bytes());
            }
            Header::Fail { id, status } => {
                self.begin(FAIL);
                self.put(id.to_be_bytes());
                self.put([status]);
            }
            Header::Sends { ref route, count, longest } => {
                self.begin_routed(SENDS, route);
                self.put(count.to_be_bytes());
                self.put(longest.to_be_bytes());
            }
        }
    }
}

fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[b]| b)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn route(&mut self) -> Option<Route> {
        Some(Route { dst: self.u16()?, src: self.u16()?, qkey: self.u32()? })
    }
}

impl Header {
    /// `None` if it is none.
    // [CARD-2]
    // Inlined where it is used: it is made in parts, which a copy of it would have to wait for.
    #[inline(always)]
    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let mut r = Reader(bytes);
        let kind = r.u8()?;
        let (op, flags) = (kind & 0x0f, kind & 0xf0);
        let permitted = match op {
            SEND => UD | IMM,
            WRITE => IMM | UNSOLICITED,
            _ => 0,
        };
        if flags & !permitted != 0 {
            return None;
        }
        let header = match op {
            SEND | WRITE => {
                let route = r.route()?;
                let imm = if flags & IMM != 0 { Some(r.u32()?) } else { None };
                if op == SEND {
                    Header::Send { route, ud: flags & UD != 0, imm }
                } else {
                    Header::Write { route, imm, unsolicited: flags & UNSOLICITED != 0, rkey: r.u32()?, addr: r.u64()? }
                }
            }
            READ => Header::Read { route: r.route()?, rkey: r.u32()?, addr: r.u64()?, len: r.u32()?, id: r.u32()? },
            DATA => Header::Data { id: r.u32()? },
            FAIL => Header::Fail { id: r.u32()?, status: r.u8()? },
            SENDS => Header::Sends { route: r.route()?, count: r.u16()?, longest: r.u16()? },
            _ => return None,
        };
        r.0.is_empty().then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use crate::repeatable::repeatable;
    use proptest::prelude::*;

    use super::*;

    fn encode(header: &Header) -> Encoded {
        let mut encoded = Encoded::EMPTY;
        encoded.set(header);
        encoded
    }

    #[test]
    fn golden_bytes() {
        let route = Route { dst: 0x0102, src: 0x0304, qkey: 0x0506_0708 };
        let hex = |h: Header| encode(&h).as_bytes().iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(Header::Send { route, ud: false, imm: None }), "000102030405060708");
        assert_eq!(hex(Header::Send { route, ud: true, imm: Some(9) }), "30010203040506070800000009");
        let write = Header::Write { route, imm: Some(1), unsolicited: true, rkey: 2, addr: 3 };
        assert_eq!(hex(write), "61010203040506070800000001000000020000000000000003");
        let read = Header::Read { route, rkey: 1, addr: 2, len: 3, id: 4 };
        assert_eq!(hex(read), "0201020304050607080000000100000000000000020000000300000004");
        assert_eq!(hex(Header::Data { id: 5 }), "0300000005");
        assert_eq!(hex(Header::Fail { id: 5, status: 7 }), "040000000507");
        assert_eq!(hex(Header::Sends { route, count: 9, longest: 10 }), "0501020304050607080009000a");
    }

    proptest! {
        #![proptest_config(repeatable())]

        #[test]
        fn what_decodes_encodes_to_the_same(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(header) = Header::decode(&bytes) {
                let encoded = encode(&header);
                prop_assert_eq!(encoded.as_bytes(), &bytes[..]);
            }
        }
    }
}
