//! A netlink socket: questions and answers, and news. For drivers on top of this one, too.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use crate::sys::{NoCancel, spare_standard};

/// Dumps come in pieces of at most this many bytes.
const BUFFER: usize = 64 << 10;
/// Messages of an answer that we read at most: no host has so many addresses or links.
const MAX_MESSAGES: usize = 100_000;

/// See the module documentation.
pub struct Netlink {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Netlink {
    /// A socket for questions.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn open() -> io::Result<Netlink> {
        let _whole = NoCancel::begin();
        let mut socket = spare_standard(Socket::new(NETLINK_ROUTE)?)?;
        socket.bind(&netlink_sys::SocketAddr::new(0, 0))?;
        socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, buffer: Vec::with_capacity(BUFFER), sequence: 0 })
    }

    /// A socket for news of these groups (`RTNLGRP_` of `linux/rtnetlink.h`). It never blocks.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn listen(groups: &[u32]) -> io::Result<Netlink> {
        let netlink = Netlink::open()?;
        netlink.socket.set_non_blocking(true)?;
        for &group in groups {
            netlink.socket.add_membership(group)?;
        }
        Ok(netlink)
    }

    fn send(&mut self, question: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let _whole = NoCancel::begin();
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Asks for one thing.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn get(&mut self, question: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        let mut answer = None;
        self.send(question, NLM_F_ACK)?;
        self.read_answer(|message| answer = Some(message))?;
        answer.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Asks for a route.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn route(&mut self, question: RouteMessage) -> io::Result<RouteMessage> {
        match self.get(RouteNetlinkMessage::GetRoute(question))? {
            RouteNetlinkMessage::NewRoute(answer) => Ok(answer),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The MTU that whoever made the route has set, if any. The answer to the same question by [`route`](Self::route) may hold
    /// one that a message from the network has taught the kernel, be it forged.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn configured_mtu(&mut self, mut question: RouteMessage) -> io::Result<Option<u32>> {
        // The entry of the table that matches, not what was made of it. Kernels before 4.13 do not know the difference.
        question.header.flags |= RouteFlags::FibMatch;
        self.route(question).map(|entry| mtu(&entry))
    }

    /// Asks for all of a kind.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn list(&mut self, question: RouteNetlinkMessage, each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        self.send(question, NLM_F_DUMP)?;
        self.read_answer(each)
    }

    /// Tells the kernel to do something.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn tell(&mut self, order: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(order, NLM_F_ACK | flags)?;
        self.read_answer(|_| ())
    }

    /// Reads up to the end of the answer to the last question.
    fn read_answer(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        let mut outcome = None;
        let sequence = self.sequence;
        for _ in 0..MAX_MESSAGES {
            self.read(|message| {
                let Some(message) = message.filter(|m| m.header.sequence_number == sequence) else { return };
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => each(message),
                    NetlinkPayload::Done(_) => outcome = Some(Ok(())),
                    NetlinkPayload::Error(error) => {
                        outcome = Some(match error.code {
                            None => Ok(()),
                            Some(code) => Err(io::Error::from_raw_os_error(code.get().abs())),
                        });
                    }
                    _ => {}
                }
            })?;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        Err(io::Error::other("the kernel's answer does not end"))
    }

    /// Hands over news, if there are any; `None` for what this crate cannot decode.
    ///
    /// # Errors
    /// `ENOBUFS`: some were lost.
    pub fn news(&mut self, mut each: impl FnMut(Option<RouteNetlinkMessage>)) -> io::Result<()> {
        loop {
            let read = self.read(|message| match message.map(|message| message.payload) {
                Some(NetlinkPayload::InnerMessage(message)) => each(Some(message)),
                Some(_) => {}
                None => each(None),
            });
            match read {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Reads one datagram, which holds several messages; `None` for those that this crate cannot decode.
    fn read(&mut self, mut each: impl FnMut(Option<NetlinkMessage<RouteNetlinkMessage>>)) -> io::Result<()> {
        self.buffer.clear();
        let whole = NoCancel::begin();
        loop {
            match self.socket.recv(&mut self.buffer, 0) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(_) => break,
            }
        }
        drop(whole);
        let mut rest = &self.buffer[..];
        while let Some(length) = rest.first_chunk().map(|b| u32::from_ne_bytes(*b) as usize) {
            if length < 16 || length > rest.len() {
                break;
            }
            each(NetlinkMessage::deserialize(&rest[..length]).ok());
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The question for the route towards `to`, sending from `from` if that is given.
pub fn route_to(to: SocketAddr, from: Option<IpAddr>) -> RouteMessage {
    let mut question = RouteMessage::default();
    question.header.address_family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    question.header.destination_prefix_length = bits(to.ip());
    question.attributes.push(RouteAttribute::Destination(to.ip().into()));
    if let Some(from) = from {
        question.header.source_prefix_length = bits(from);
        question.attributes.push(RouteAttribute::Source(from.into()));
    }
    if let SocketAddr::V6(to) = to
        && to.scope_id() != 0
    {
        question.attributes.push(RouteAttribute::Oif(to.scope_id()));
    }
    question
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// The MTU that a route names.
pub fn mtu(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| {
        let RouteAttribute::Metrics(metrics) = attribute else { return None };
        metrics.iter().find_map(|m| if let RouteMetric::Mtu(mtu) = m { Some(*mtu) } else { None })
    })
}
